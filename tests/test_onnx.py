"""The same vectors through ONNX Runtime, and indexes that carry their encoder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Retr, make_tiny_model, random_texts
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from retrieval import Index
from retrieval.encoders.load import as_graph, load_encoder, resolve_settings
from retrieval.encoders.onnx import GRAPH, OnnxEncoder
from retrieval.errors import EncoderError, UsageError

pytest.importorskip("onnxscript")
from retrieval.encoders.onnx_export import _rounded_rows

TEXTS = [*random_texts(30), "ABC def", "\u3000", "字" * 200]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Graphs of random models are no use to the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "albert", "xlm-roberta"])
def test_float32_graph_gives_torchs_vectors_for_every_architecture(kind: str, tmp_path: Path) -> None:
    encoder = load_encoder(resolve_settings(make_tiny_model(tmp_path / kind, kind)), "cpu")
    graph = as_graph(encoder, "float32")
    ours = graph.encode(TEXTS)
    np.testing.assert_allclose(ours, encoder.encode(TEXTS), atol=1e-4)
    assert graph.counts == encoder.counts
    assert (graph.dimension, graph.family, graph.settings) == (encoder.dimension, encoder.family, encoder.settings)
    assert graph.fingerprint != encoder.fingerprint
    assert graph.encode([]).shape == (0, encoder.dimension)


@pytest.mark.parametrize("pooling", ["cls", "last2-avg", "first-last-avg", "pooler", "max", "last-token", "layers-0,2"])
def test_every_pooling_is_in_the_graph(pooling: str, tiny_model: Path) -> None:
    encoder = load_encoder(resolve_settings(tiny_model, pooling=pooling), "cpu")
    assert cosines(as_graph(encoder, "float32").encode(TEXTS), encoder.encode(TEXTS)).min() >= 0.99999


def test_int8_graph_stays_near_and_is_smaller(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.encoders.onnx_export._LEAST_TABLE", 1000)  # the tiny model has 30,112 values
    encoder = load_encoder(resolve_settings(tiny_model), "cpu")
    graphs = [as_graph(encoder, precision) for precision in ("float32", "int8")]
    assert cosines(graphs[1].encode(TEXTS), encoder.encode(TEXTS)).min() > 0.995
    sizes = [(graph._folder / GRAPH).stat().st_size for graph in graphs]
    assert sizes[1] < 0.8 * sizes[0]
    assert graphs[0].fingerprint != graphs[1].fingerprint


@given(st.integers(1, 20), st.integers(1, 40), st.integers(0, 1000))
def test_rounded_rows_are_within_half_a_step(rows: int, width: int, seed: int) -> None:
    table = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    table[0] = 0
    rounded, scales = _rounded_rows(table)
    assert np.abs(rounded * scales - table).max() <= scales.max() * 0.501


@pytest.fixture(scope="module")
def graph(tiny_model: Path, cache: None) -> OnnxEncoder:
    return as_graph(load_encoder(resolve_settings(tiny_model), "cpu"), "float32")


@examples(max_examples=20)
@given(st.lists(st.sampled_from(random_texts(40)), min_size=1, max_size=40))
def test_a_vector_never_depends_on_its_batch(graph: OnnxEncoder, texts: list[str]) -> None:
    alone = np.concatenate([graph.encode([text]) for text in texts])
    np.testing.assert_allclose(graph.encode(texts), alone, atol=1e-5)


def test_an_index_with_a_graph_answers_without_torch_and_without_the_model(tmp_path: Path, tiny_model: Path) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    texts = random_texts(60)
    (tmp_path / "c.txt").write_text("\n".join(texts), encoding="utf-8")
    Index.build(
        tmp_path / "c.txt", tmp_path / "i", model=model, transform="rotate-16", backend="onnx", precision="int8"
    )
    shutil.rmtree(model)
    moved = shutil.copytree(tmp_path / "i", tmp_path / "elsewhere" / "i")
    code = (
        "import sys, retrieval; index = retrieval.Index.open(sys.argv[1]);"
        "hits = index.search(sys.argv[2], k=1)[0];"
        "print(hits[0].doc_id, round(hits[0].score, 3), [m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, moved, texts[7]], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "7 1.0 []"


def test_command_line_builds_and_shows_the_backend(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    (tmp_path / "c.txt").write_text("\n".join(random_texts(20)), encoding="utf-8")
    done = retr("index", "c.txt", "--model", tiny_model, "--backend", "onnx")
    assert done.returncode == 0, done.stderr
    assert "backend      onnx, float32" in retr("info").stdout
    assert json.loads(retr("query", random_texts(1)[0], "-k", "1", "--json").stdout)["id"] == "0"
    (tmp_path / "indexes" / "c" / "encoder" / GRAPH).write_bytes(b"x")
    damaged = retr("query", "甲")
    assert damaged.returncode == 1
    assert "model.onnx has 1 bytes" in damaged.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("tensorrt", "float32"), "unknown backend 'tensorrt'"),
        (("onnx", "int3"), "unknown precision 'int3'"),
        (("torch", "int8"), "needs the backend onnx"),
    ],
)
def test_backends_that_are_not_there_are_named(options: tuple[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("a\n")
    with pytest.raises(UsageError, match=message):
        Index.build(tmp_path / "c.txt", tmp_path / "i", backend=options[0], precision=options[1])


def test_missing_onnx_runtime_says_what_to_install(
    graph: OnnxEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.copy_to(tmp_path / "g")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EncoderError, match="pip install onnxruntime"):
        OnnxEncoder(tmp_path / "g")


def test_damaged_graph_folder_is_one_clear_error(graph: OnnxEncoder, tmp_path: Path) -> None:
    graph.copy_to(tmp_path / "g")
    for name in ("encoder.json", "tokenizer.json", GRAPH):
        copy = shutil.copytree(tmp_path / "g", tmp_path / name)
        (copy / name).unlink()
        (copy / name).write_bytes(b"{")
        with pytest.raises(EncoderError, match="cannot be loaded"):
            OnnxEncoder(copy)
