"""Every kind of index: laws of search, filters, saving, tuning and choosing, on small data."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from retrieval.cli.bounds import parse_wanted
from retrieval.errors import UsageError
from retrieval.index.building import build_vectors
from retrieval.index.rescored import RescoredIndex
from retrieval.index.spec import (
    EXACT,
    KINDS,
    Setting,
    Wanted,
    check_spec,
    choose_spec,
    file_bytes,
    is_rescored,
    list_count,
)
from retrieval.index.tuning import HeldOut, Point, pick, setting_for
from retrieval.index.vectors import VectorIndex, check_factory
from retrieval.transforms.apply import unit_vectors

ROWS, DIMENSION, QUERIES = 2000, 16, 20
FACTORIES = ("OPQ8,IVF16,PQ8x4fs,Refine(SQfp16)", "PQ8x4fs", "OPQ4,PQ4", "RaBitQfs", "HNSW16", "PCA8,SQ8")
EVERY = (*KINDS, *FACTORIES)
# What a stored vector is rounded to: float32 sums, float16 rotated first, 8 bits of each dimension's range.
SCORE_TOLERANCE = {
    **dict.fromkeys(("flat", "ivf", "ivf-pqfs-disk", "hnsw"), 2e-6),
    **dict.fromkeys(("flat-sq8", "hnsw-sq8"), 1.5e-2),
}
ROUNDED_SCORE = 5e-4


def vectors(rows: int = ROWS, seed: int = 0) -> NDArray[np.float32]:
    """Clusters about a common direction, as those of sentence encoders lie."""
    random, centres = np.random.default_rng(seed), np.random.default_rng(99)
    points = centres.normal(size=(30, DIMENSION))[random.integers(0, 30, rows)]
    return unit_vectors((points + 0.7 * random.normal(size=points.shape) + 2).astype(np.float32), None)


@functools.cache
def filled(spec: str, numbered: bool = False) -> VectorIndex:
    documents = vectors()
    if numbered:
        documents[::5] = 0
    index = whole(spec, VectorIndex(DIMENSION, spec, numbered, rows=ROWS), documents)
    index.train(vectors())
    for chunk in np.array_split(documents, 3):
        index.add(chunk)
    return index


def whole(spec: str, index: VectorIndex, documents: NDArray[np.float32]) -> VectorIndex:
    """With the vectors that a kind of codes alone scores its candidates with."""
    return RescoredIndex(index, documents.__getitem__) if is_rescored(spec) else index


def brute_force(queries: NDArray[np.float32], allowed: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
    scores: NDArray[np.float32] = queries @ vectors().T
    return scores if allowed is None else np.where(allowed, scores, -2)


def recall(found: NDArray[np.int64], scores: NDArray[np.float32], k: int) -> float:
    truth = np.argsort(-scores, axis=1)[:, :k]
    return float(np.mean([len(set(a) & set(b)) / k for a, b in zip(found.tolist(), truth.tolist(), strict=True)]))


@pytest.mark.parametrize("kind", KINDS)
def test_exact_search_of_every_kind_equals_brute_force_up_to_its_rounding(kind: str) -> None:
    asked = vectors(QUERIES, seed=1)
    scores, rows = filled(kind).search(asked, 10, setting=EXACT)
    expected, tolerance = brute_force(asked), SCORE_TOLERANCE.get(kind, ROUNDED_SCORE)
    np.testing.assert_allclose(scores, np.take_along_axis(expected, rows, axis=1), atol=tolerance)
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :10], atol=tolerance)
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("kind", EVERY)
@given(share=st.sampled_from([0.0, 0.001, 0.2, 0.7, 1.0]), k=st.integers(1, 40), seed=st.integers(0, 100))
@settings(max_examples=15)
def test_k_hits_come_back_and_all_are_allowed(kind: str, share: float, k: int, seed: int) -> None:
    allowed = np.random.default_rng(seed).random(ROWS) < share
    asked = vectors(3, seed=seed + 1)
    scores, rows = filled(kind).search(asked, k, allowed=allowed)
    assert scores.shape == rows.shape == (3, min(k, int(allowed.sum())))
    assert allowed[rows].all()
    assert all(len(set(found)) == len(found) for found in rows.tolist())


@pytest.mark.parametrize("kind", EVERY)
def test_filters_hold_where_a_search_is_not_exhaustive(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.index.vectors._FEW_ALLOWED", 0)
    asked = vectors(QUERIES, seed=2)
    for share in (0.3, 0.9):
        allowed = np.random.default_rng(5).random(ROWS) < share
        hard = Setting(nprobe=16, k_factor=20, ef_search=300)
        _, rows = filled(kind).search(asked, 10, allowed=allowed, setting=hard)
        assert allowed[rows].all()
        if kind in KINDS:
            assert recall(rows, brute_force(asked, allowed), 10) > 0.9


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("numbered", [False, True])
def test_k_above_the_rows_gives_all_of_them(kind: str, numbered: bool) -> None:
    scores, rows = filled(kind, numbered).search(vectors(2, seed=3), ROWS + 7)
    expected = [row for row in range(ROWS) if not numbered or row % 5]
    assert scores.shape == (2, len(expected))
    assert all(sorted(found) == expected for found in rows.tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_recall_never_falls_as_k_grows(kind: str) -> None:
    asked = vectors(QUERIES, seed=4)
    expected = brute_force(asked)
    found = [recall(filled(kind).search(asked, k)[1], expected, 5) for k in (5, 6, 8, 12, 30, 100, 600)]
    assert all(more >= fewer - 0.011 for fewer, more in itertools.pairwise(found)), found  # one neighbour of 100
    assert found[-1] > 0.95


@pytest.mark.parametrize("kind", EVERY)
def test_saving_keeps_hits_and_setting_mapped_or_read(kind: str, tmp_path: Path) -> None:
    index, asked = filled(kind, True), vectors(4, seed=6)
    index.save(tmp_path / "v.faiss")
    with pytest.raises(UsageError, match="memory-mapped, and takes no vectors"):
        VectorIndex.load(tmp_path / "v.faiss").add(vectors(1))
    documents = np.concatenate([vectors(), vectors(3, seed=7)])
    for mmap in (True, False):
        loaded = whole(kind, VectorIndex.load(tmp_path / "v.faiss", mmap), documents)
        assert (loaded.setting, loaded.lists, len(loaded)) == (index.setting, index.lists, len(index))
        for one, other in zip(index.search(asked, 9), loaded.search(asked, 9), strict=True):
            np.testing.assert_array_equal(one, other)
    loaded.add(vectors(3, seed=7))
    assert (len(loaded), loaded.rows) == (len(index) + 3, ROWS + 3)
    if kind in KINDS:  # the codes of other strings alone do not tell vectors apart
        assert loaded.search(vectors(3, seed=7), 1, setting=EXACT)[1].ravel().tolist() == [ROWS, ROWS + 1, ROWS + 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused(bad: float) -> None:
    index, wrong = VectorIndex(DIMENSION), vectors(3)
    wrong[1, 2] = bad
    for call in (lambda: index.add(wrong), lambda: index.search(wrong, 1)):
        with pytest.raises(UsageError, match="vector 1 holds NaN or infinity"):
            call()


def test_what_is_not_trained_takes_no_vectors() -> None:
    with pytest.raises(UsageError, match="train it before"):
        VectorIndex(DIMENSION, "ivf-pqfs", rows=ROWS).add(vectors(3))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("tree", "unknown index 'tree': expected one of auto, flat, .* or a string"),
        ("PQ5x4fs", "for inner products of 16 dimensions"),
        ("LSH", "for inner products"),
        ("NSG32", "takes all its vectors at once"),
    ],
)
def test_factory_strings_that_faiss_cannot_build_are_refused(spec: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_factory(spec, DIMENSION)


def test_before_the_dimension_is_known_only_nonsense_is_refused() -> None:
    check_factory("PQ7x4fs,Refine(SQfp16)")
    check_factory("auto")
    with pytest.raises(UsageError, match="unknown index 'tree'"):
        check_factory("tree")


@pytest.mark.parametrize("spec", ["", " ", "IDMap,Flat"])
def test_kinds_that_cannot_be_meant_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="the index"):
        check_spec(spec)


@pytest.mark.parametrize(
    ("rows", "wanted", "chosen"),
    [
        (10, Wanted(), "flat"),
        (20_000, Wanted(), "flat"),
        (50_000, Wanted(), "pqfs"),
        (50_000, Wanted(0.9), "ivf-pqfs"),
        (200_000, Wanted(), "ivf-pqfs"),
        (200_000, Wanted(1.0), "flat"),
        (200_000, Wanted(1.0, 150 * 2**20), "flat-fp16"),
        (200_000, Wanted(0.99, 60 * 2**20), "ivf-pqfs-disk"),
        (50_000, Wanted(0.99, 14 * 2**20), "flat-sq8"),
        (10_000, Wanted(0.99, 3 * 2**19), "ivf-pqfs-disk"),
        (1_000_000, Wanted(0.95, 2**30), "ivf-pqfs"),
        (1_000_000, Wanted(0.95, 2**29), "ivf-pqfs-disk"),
    ],
)
def test_auto_chooses_by_rows_recall_and_memory(rows: int, wanted: Wanted, chosen: str) -> None:
    spec, reason = choose_spec("auto", rows, 256, wanted)
    assert spec == chosen
    assert reason is not None
    assert reason.startswith(f"index {chosen}, ")
    assert f"{rows:,} vectors of 256 dimensions" in reason
    assert ("the embeddings on disk score its candidates" in reason) == (chosen == "ivf-pqfs-disk")


def test_too_few_rows_for_a_kind_fall_back_with_a_word() -> None:
    assert choose_spec("ivf-pqfs", 500, 64, Wanted()) == (
        "flat",
        "index flat, not ivf-pqfs: it learns from at least 1,024 vectors, and there are 500",
    )


@pytest.mark.parametrize("spec", ["auto", "flat"])
def test_a_memory_that_nothing_meets_names_the_least(spec: str) -> None:
    with pytest.raises(UsageError, match=r"do not fit into 1 MiB.* the smallest kind, ivf-pqfs-disk, takes 10.2 MiB"):
        choose_spec(spec, 100_000, 256, Wanted(most_bytes=2**20))


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_foretold(kind: str, tmp_path: Path) -> None:
    filled(kind).save(tmp_path / "v.faiss")
    assert (tmp_path / "v.faiss").stat().st_size == pytest.approx(file_bytes(kind, ROWS, DIMENSION), rel=0.35)


@given(st.integers(0, 10**8))
def test_lists_have_enough_rows_each_to_be_trained_on(rows: int) -> None:
    assert 1 <= list_count(rows) <= max(1, rows // 64)


def chunks(documents: NDArray[np.float32], size: int = 300) -> Any:
    return lambda: (documents[start : start + size] for start in range(0, len(documents), size))


class Notes:
    """Progress that remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, message: str) -> None:
        self.told.append(message)

    def stage(self, name: str, unit: str, total: int | None, done: int = 0) -> Any:
        from retrieval.types import NoProgress

        return NoProgress().stage(name, unit, total, done)


@pytest.mark.parametrize("kind", ["ivf", "ivf-pqfs", "ivf-pqfs-disk", "pqfs", "hnsw", "rabitq", "ivf-sq8"])
def test_tuning_reaches_the_recall_on_queries_that_it_never_saw(kind: str) -> None:
    progress, documents = Notes(), vectors()
    built = build_vectors(
        chunks(documents),
        ROWS,
        DIMENSION,
        kind,
        take=documents.__getitem__,
        wanted=Wanted(0.95),
        numbered=True,
        progress=progress,
    )
    assert [point.recall for point in built.curve] == sorted(point.recall for point in built.curve)
    assert built.recall is not None
    assert built.recall >= 0.95
    asked = vectors(200, seed=8)
    assert recall(built.vectors.search(asked, 10)[1], brute_force(asked), 10) >= 0.92  # 100 were held out
    assert len(built.vectors) == ROWS
    assert any("recall@10" in note for note in progress.told)
    stored = built.to_json()
    assert stored["setting"] == built.vectors.setting.to_json()
    assert setting_for(stored["curve"], 0.95)[0].to_json().items() <= stored["setting"].items()


def test_a_graph_is_tuned_by_vectors_that_are_not_in_it() -> None:
    # Evenly spread vectors, among which a graph has to look around.
    random = np.random.default_rng(5)
    documents = unit_vectors(random.normal(size=(4000, 24)).astype(np.float32), None)
    documents[-40:] = 0  # texts without a vector, the last of all
    built = build_vectors(chunks(documents), 4000, 24, "hnsw", numbered=True)
    index, exact = built.vectors, VectorIndex(24, "flat", True)
    exact.add(documents)
    assert len(index) == len(exact) == 3960
    assert index.search(documents[3900:3960], 1)[1][:, 0].tolist() == list(range(3900, 3960))  # they joined it
    asked = unit_vectors(random.normal(size=(400, 24)).astype(np.float32), None)
    truth = exact.search(asked, 10)[1]
    told = [point for point in built.curve if 0.7 < point.recall < 0.97]
    assert told
    for point in told:
        assert recall_of_rows(index.search(asked, 10, setting=point.setting)[1], truth) > point.recall - 0.04


def recall_of_rows(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    return float((found[:, :, None] == truth[:, None, :]).any(axis=1).mean())


@pytest.mark.parametrize("kind", ["ivf-pqfs", "ivf-pqfs-disk"])
def test_a_build_is_the_same_to_the_bit_again(kind: str, tmp_path: Path) -> None:
    documents = vectors()
    for name in ("a", "b"):
        built = build_vectors(chunks(documents), ROWS, DIMENSION, kind, take=documents.__getitem__)
        built.vectors.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_factory_string_that_cannot_be_trained_becomes_flat_with_a_word() -> None:
    progress = Notes()
    built = build_vectors(chunks(vectors(200)), 200, DIMENSION, "IVF256,PQ8", progress=progress)
    assert (built.spec, len(built.vectors)) == ("flat", 200)
    assert progress.told[0].startswith("index flat, not IVF256,PQ8: ")


def test_nothing_that_is_said_by_cpp_reaches_the_terminal() -> None:
    code = (
        "import numpy as np; from retrieval.index.building import build_vectors\n"
        "x = np.random.default_rng(0).normal(size=(700, 16)).astype('f4'); x /= np.linalg.norm(x, axis=1)[:, None]\n"
        "for spec in ('IVF64,Flat', 'OPQ4,PQ4', 'IVF1024,PQ4', 'PQ8x4fs'):\n"
        "    build_vectors(lambda: iter([x]), 700, 16, spec)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == done.stdout == ""


def test_held_out_neighbours_are_those_of_brute_force_without_the_held_out() -> None:
    documents = vectors()
    rows = np.arange(0, ROWS, 40)
    held_out = HeldOut(documents[rows], rows)
    for start in range(0, ROWS, 300):
        held_out.update(documents[start : start + 300], start)
    expected = np.argsort(-brute_force(documents[rows], held_out.allowed(ROWS)), axis=1)[:, :10]
    assert held_out.recall(expected) == 1
    assert held_out.recall(expected[:, :4]) == pytest.approx(0.4)


def test_equal_vectors_are_as_good_as_each_other_for_recall() -> None:
    thrice = np.concatenate([vectors(50)] * 3)
    held_out = HeldOut(thrice[:1], np.array([0]))
    held_out.update(thrice, 0)
    scores = thrice @ thrice[0]
    scores[0] = -2
    nearest = np.argsort(-scores, kind="stable")[:12]
    # Two other copies of the query, then threes of equal scores: the last place of ten may go to any of a three.
    assert np.ptp(scores[nearest[8:11]]) < 1e-6 < scores[nearest[8]] - scores[nearest[11]]
    for last in nearest[9:11]:
        assert held_out.recall(np.array([[*nearest[:9], last]])) == 1
    assert held_out.recall(np.array([[*nearest[:9], nearest[11]]])) == pytest.approx(0.9)
    assert held_out.recall(nearest[None, :11]) == 1


POINTS = [
    Point(Setting(nprobe=1), 0.8, 0.1),
    Point(Setting(nprobe=4), 0.95, 0.2),
    Point(Setting(nprobe=9), 0.97, 0.5),
]


@pytest.mark.parametrize(
    ("wanted", "most", "nprobe", "lacking"),
    [
        (0.9, None, 4, None),
        (0.95, 0.2, 4, None),
        (0.96, 0.3, 4, "recall 0.96 is not reached within 0.3 ms, the best is 0.950; --index flat is exact"),
        (0.99, None, 9, "recall 0.99 is not reached, the best is 0.970; --index flat is exact"),
        (0.99, 0.01, 1, "no search takes 0.01 ms or less, the fastest 0.1 ms"),
    ],
)
def test_the_cheapest_point_that_reaches_is_picked_else_the_best_with_a_word(
    wanted: float, most: float | None, nprobe: int, lacking: str | None
) -> None:
    point, told = pick(POINTS, wanted, most)
    assert (point.setting.nprobe, told) == (nprobe, lacking)


def test_a_recall_beyond_the_curve_is_exact_search_and_told() -> None:
    curve = [point.to_json() for point in POINTS]
    assert setting_for(curve, 0.9) == (Setting(nprobe=4), None)
    assert setting_for(curve, 1) == (EXACT, None)
    assert setting_for([], 0.5) == (EXACT, None)
    assert setting_for(curve, 0.98) == (EXACT, "all vectors are compared: the curve of this index ends at recall 0.970")


def test_bounds_are_read_with_their_units() -> None:
    assert parse_wanted(None, None, None) == Wanted(0.99)
    assert parse_wanted(".95", "2GiB", "5ms") == Wanted(0.95, 2 * 2**30, 5.0)
    assert parse_wanted("exact", "1.5 MB", "1s") == Wanted(1.0, 1_500_000, 1000.0)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (("0", None, None), "--recall is '0', expected more than 0 and at most 1"),
        (("1.01", None, None), "--recall is '1.01'"),
        (("nan", None, None), "--recall is 'nan'"),
        (("high", None, None), "--recall is 'high'"),
        ((None, "2 parsec", None), "--max-memory is '2 parsec', expected a size such as 2GiB"),
        ((None, "0", None), "--max-memory is '0'"),
        ((None, None, "5"), "--max-latency is '5', expected a time such as 5ms"),
        ((None, None, "-1ms"), "--max-latency is '-1ms'"),
    ],
)
def test_bounds_out_of_range_are_named(bounds: tuple[str | None, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_wanted(*bounds)


@pytest.mark.parametrize("order", list(itertools.permutations(["faiss", "torch", "onnxruntime"])))
def test_the_libraries_threads_do_not_clash_in_any_order_of_import(order: tuple[str, ...]) -> None:
    pytest.importorskip("onnxruntime")
    code = (
        f"import {', '.join(order)}, numpy as np, torch, onnx.helper as h, onnxruntime, faiss\n"
        "x = np.random.default_rng(0).normal(size=(4096, 64)).astype('f4')\n"
        "graph = h.make_graph([h.make_node('MatMul', ['a', 'a'], ['b'])], 'g',"
        " [h.make_tensor_value_info('a', 1, [64, 64])], [h.make_tensor_value_info('b', 1, [64, 64])])\n"
        "model = h.make_model(graph, opset_imports=[h.make_opsetid('', 17)], ir_version=8).SerializeToString()\n"
        "session = onnxruntime.InferenceSession(model, providers=['CPUExecutionProvider'])\n"
        "index = faiss.index_factory(64, 'IVF16,PQ32x4fs', faiss.METRIC_INNER_PRODUCT)\n"
        "index.train(x); index.add(x); index.nprobe = 16\n"
        "for _ in range(3):\n"
        "    a = torch.from_numpy(x[:64]) @ torch.from_numpy(x[:64])\n"
        "    b = session.run(None, {'a': x[:64]})[0]\n"
        "    _, rows = index.search(x[:500], 1)\n"
        "assert np.allclose(a.numpy(), b, atol=1e-3) and (rows >= 0).all()\n"
        "print('ok', faiss.omp_get_max_threads(), torch.get_num_threads())\n"
    )
    import os

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok 1 1\n", "")
