"""Vectors in two inverted lists: which, found once, in few lists, added later, and given away in one list."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from retrieval.index.export import write_faiss
from retrieval.index.knobs import layers
from retrieval.index.spec import KINDS, Setting
from retrieval.index.spilled import _two_lists, distinct
from retrieval.index.vectors import VectorIndex
from retrieval.transforms.apply import unit_vectors

ROWS, DIMENSION, KIND = 4000, 16, "ivf-pqfs"


def vectors(rows: int = ROWS, seed: int = 0) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    return unit_vectors((random.normal(size=(rows, DIMENSION)) + 1).astype(np.float32), None)


def filled(numbered: bool = False, pieces: int = 3) -> VectorIndex:
    index = VectorIndex(DIMENSION, KIND, numbered, rows=ROWS)
    index.train(vectors())
    for chunk in np.array_split(vectors(), pieces):
        index.add(chunk)
    return index


def lists_of(index: VectorIndex) -> list[list[int]]:
    """The lists of each row."""
    index.search(vectors(1), 1)  # what was added is packed then
    packed = layers(index._inner)[-1].invlists
    found: list[list[int]] = [[] for _ in range(len(index))]
    for place in range(packed.nlist):
        if packed.list_size(place):
            for row in faiss.rev_swig_ptr(packed.get_ids(place), packed.list_size(place)):
                found[row].append(place)
    return found


def recall(index: VectorIndex, setting: Setting) -> float:
    asked = vectors(300, seed=1)
    truth = np.argsort(-(asked @ vectors().T), axis=1)[:, :10]
    _, rows = index.search(asked, 10, setting=setting)
    return float((rows[:, :, None] == truth[:, None]).any(axis=1).mean())


@pytest.mark.parametrize("pieces", [1, 7])
def test_every_row_is_in_two_lists(pieces: int) -> None:
    assert all(len(set(lists)) == len(lists) == 2 for lists in lists_of(filled(pieces=pieces)))


@given(st.integers(0, 1000), st.integers(2, 9))
def test_the_second_list_is_near_and_across(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    points, centroids = (random.normal(size=(rows, 5)).astype(np.float32) for rows in (4, count))
    first, second = _two_lists(points, centroids)
    for point, one, other in zip(points, first, second, strict=True):
        assert point @ centroids[one] == pytest.approx(max(centroids @ point), abs=1e-6)
        residual = point - centroids[one]
        losses = [
            np.sum((point - centroid) ** 2) + (residual @ (point - centroid)) ** 2 / (residual @ residual)
            for centroid in np.delete(centroids, one, axis=0)
        ]
        chosen = losses[other - (other > one)]
        assert other != one
        assert chosen == pytest.approx(min(losses), rel=1e-4, abs=1e-4)


def test_as_many_lists_find_more_than_with_one_a_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = filled()
    monkeypatch.setitem(KINDS, KIND, KINDS[KIND].__class__(KINDS[KIND].factory, 1, "", twice=False))
    once = filled()
    assert once.lists == twice.lists == 32
    few = Setting(nprobe=4, k_factor=20)
    assert recall(twice, few) > recall(once, few) + 0.1
    assert twice.code_bytes == 2 * once.code_bytes


@given(st.lists(st.tuples(st.integers(-1, 6), st.booleans()), min_size=1, max_size=9), st.integers(1, 9))
def test_distinct_hits_are_the_best_of_each_position_once(found: list[tuple[int, bool]], k: int) -> None:
    score = {-1: -np.inf, **{position: -float(position // 2) for position in range(7)}}  # equal in twos
    positions = np.array([[position for position, twice in found for _ in range(1 + twice)]])
    positions = np.array([[*dict.fromkeys(positions[0].tolist()), *np.unique(positions[0][positions[0] >= 0])]])
    scores = np.vectorize(score.__getitem__, otypes=[np.float32])(positions)
    kept_scores, kept = distinct(scores, positions, k)
    expected = sorted(set(positions[0].tolist()) - {-1}, key=lambda position: (-score[position], position))[:k]
    assert [position for position in kept[0].tolist() if position >= 0] == expected
    assert kept_scores[0, : len(expected)].tolist() == [score[position] for position in expected]
    assert (kept[0, len(expected) :] == -1).all()
    assert np.isneginf(kept_scores[0, len(expected) :]).all()


@pytest.mark.parametrize("numbered", [False, True])
def test_what_is_added_after_opening_is_as_if_it_had_been_there(numbered: bool, tmp_path: Path) -> None:
    whole, first = (VectorIndex(DIMENSION, KIND, numbered, rows=ROWS) for _ in range(2))
    documents = vectors()
    documents[1500:1510] = 0 if numbered else documents[1500:1510]
    pieces = np.split(documents, [1000, 1001, 3000])
    for index in (whole, first):
        index.train(vectors())
        index.add(pieces[0])
    first.save(tmp_path / "first.faiss")
    later = VectorIndex.load(tmp_path / "first.faiss", mmap=False)
    for piece in pieces[1:]:
        whole.add(piece)
        later.add(piece)
        later.search(vectors(1), 1)  # and packed in between
    for index, name in ((whole, "whole"), (later, "later")):
        index.save(tmp_path / f"{name}.faiss")
    assert (tmp_path / "later.faiss").read_bytes() == (tmp_path / "whole.faiss").read_bytes()


def test_given_away_as_a_faiss_file_every_row_is_in_one_list_and_found_as_well(tmp_path: Path) -> None:
    index = filled(numbered=True)
    index.setting = Setting(nprobe=4, k_factor=20)
    index.save(tmp_path / "v.faiss")
    with (tmp_path / "out.faiss").open("wb") as file:
        write_faiss(tmp_path / "v.faiss", None, DIMENSION, file)
    asked = vectors(300, seed=1)
    _, rows = faiss.read_index(str(tmp_path / "out.faiss")).search(asked, 10)
    assert all(len(set(found)) == 10 for found in rows.tolist())
    truth = np.argsort(-(asked @ vectors().T), axis=1)[:, :10]
    found = float((rows[:, :, None] == truth[:, None]).any(axis=1).mean())
    assert found >= recall(index, index.setting) - 0.01


def test_files_of_one_list_a_vector_still_open_and_take_vectors(tmp_path: Path) -> None:
    former = VectorIndex(DIMENSION, f"IVF16,PQ{DIMENSION}x4fsr,Refine(RR{DIMENSION},SQfp16)", rows=ROWS)
    former.train(vectors())
    former.add(vectors())
    former.save(tmp_path / "v.faiss")
    opened = VectorIndex.load(tmp_path / "v.faiss", mmap=False)
    opened.add(vectors(5, seed=7))
    assert opened.search(vectors(5, seed=7), 1)[1].ravel().tolist() == list(range(ROWS, ROWS + 5))
    assert {len(lists) for lists in lists_of(opened)} == {1}
