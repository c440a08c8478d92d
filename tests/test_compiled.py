"""Compiled graphs in the user's cache: taken up as they were written, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_texts

from retrieval import Index
from retrieval.encoders import compiled
from retrieval.encoders.compiled import CompiledGraphs
from retrieval.encoders.load import load_to_build, resolve_settings
from retrieval.encoders.onnx import WEIGHTS, OnnxEncoder, copy_graph

TEXTS = random_texts(20)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, in which nothing is compiled yet."""
    monkeypatch.setattr(compiled, "cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "compiled"


@pytest.fixture(params=["float32", "bf16", "int8"])
def graph(request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path, cache: Path) -> Path:
    encoder = load_to_build(resolve_settings(tiny_model), "cpu", "openvino", request.param)
    assert isinstance(encoder, OnnxEncoder)
    copy_graph(encoder, tmp_path / "graph")
    shutil.rmtree(cache, ignore_errors=True)
    return tmp_path / "graph"


@pytest.fixture
def taken_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For every graph that was opened, whether it was compiled before."""
    found: list[bool] = []
    load = CompiledGraphs.load

    def spy(self: CompiledGraphs) -> dict[str, Any]:
        parts = load(self)
        found.append(bool(parts))
        return parts

    monkeypatch.setattr(CompiledGraphs, "load", spy)
    return found


def vectors(graph: Path) -> np.ndarray:
    return OnnxEncoder(graph, "openvino").encode(TEXTS)


def test_a_graph_is_compiled_once_and_gives_the_same_vectors(graph: Path, cache: Path, taken_up: list[bool]) -> None:
    first = vectors(graph)
    np.testing.assert_array_equal(vectors(graph), first)
    assert taken_up == [False, True]
    (kept,) = cache.iterdir()
    assert sum(path.stat().st_size for path in kept.iterdir()) < 300_000


def test_a_damaged_one_is_compiled_anew(graph: Path, cache: Path, taken_up: list[bool]) -> None:
    first = vectors(graph)
    (kept,) = cache.iterdir()
    (kept / "pooled").write_bytes(b"not a graph")
    np.testing.assert_array_equal(vectors(graph), first)
    assert taken_up == [False, False]


def test_other_weights_are_compiled_anew(graph: Path, cache: Path, taken_up: list[bool]) -> None:
    first = vectors(graph)
    weights = bytearray((graph / WEIGHTS).read_bytes())
    weights[: len(weights) // 2] = bytes(len(weights) // 2)
    (graph / WEIGHTS).write_bytes(weights)
    assert not np.array_equal(vectors(graph), first)
    assert taken_up == [False, False]
    assert len(list(cache.iterdir())) == 2


def test_one_that_would_compute_something_else_is_not_kept(
    graph: Path, cache: Path, taken_up: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_sample", lambda part: np.frombuffer(os.urandom(8)))
    first = vectors(graph)
    assert not list(cache.iterdir())
    np.testing.assert_array_equal(vectors(graph), first)


def test_a_cache_that_cannot_be_written_costs_nothing_else(graph: Path, cache: Path, taken_up: list[bool]) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_bytes(b"a file where the folder would be")
    np.testing.assert_array_equal(vectors(graph), vectors(graph))
    assert taken_up == [False, False]


def test_those_unused_longest_are_forgotten(
    graph: Path, cache: Path, taken_up: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "MOST_GRAPHS", 2)
    for number in range(2):
        copy = shutil.copytree(graph, tmp_path / f"copy{number}")
        with (copy / WEIGHTS).open("ab") as file:
            file.write(bytes(number + 1))
        vectors(copy)
    vectors(tmp_path / "copy0")
    vectors(graph)
    assert len(list(cache.iterdir())) == 2
    vectors(tmp_path / "copy0")
    vectors(tmp_path / "copy1")
    assert taken_up == [False, False, True, False, True, False]


def test_an_indexs_own_graph_answers_the_same_from_the_cache(
    tiny_model: Path, corpus: Path, tmp_path: Path, cache: Path, taken_up: list[bool]
) -> None:
    index = Index.build(corpus, tmp_path / "index", model=tiny_model, transform="rotate-4", backend="openvino")
    query = TEXTS[0]
    first = index.search(query)
    taken_up.clear()
    assert Index.open(tmp_path / "index").search(query) == first
    assert taken_up == [True]
