"""The same vectors out of a graph, through OpenVINO and ONNX Runtime, and indexes that carry their encoder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Retr, make_tiny_model, random_texts
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from retrieval import Index
from retrieval.encoders import onnx_precision
from retrieval.encoders.base import Encoder
from retrieval.encoders.load import load_encoder, load_to_build, resolve_settings
from retrieval.encoders.normalize import NormalizingEncoder
from retrieval.encoders.onnx import DESCRIPTION, GRAPH, WEIGHTS, OnnxEncoder, copy_graph
from retrieval.encoders.onnx_precision import rounded_blocks, rounded_rows
from retrieval.encoders.quick_tokenizer import TOKENIZER
from retrieval.encoders.runtime import RUNTIMES, openvino_has_bf16
from retrieval.errors import EncoderError, UsageError
from retrieval.transforms.apply import unit_vectors

TEXTS = [*random_texts(30), "ABC def", "\u3000", "字" * 200]
LEAST_COSINE = {"float32": 0.999999, "bf16": 0.999, "int8": 0.995}
"""To torch's float32, of a tiny random model, whose directions are worth less than a real one's."""


def graph_encoder(model: Path, runtime: str = "openvino", precision: str = "float32", **options: str) -> OnnxEncoder:
    encoder = load_to_build(resolve_settings(model, **options), "cpu", runtime, precision)
    assert isinstance(encoder, OnnxEncoder)
    return encoder


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "albert", "xlm-roberta"])
def test_float32_graph_gives_torchs_vectors_for_every_architecture(kind: str, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / kind, kind)
    encoder = load_encoder(resolve_settings(model), "cpu")
    expected = encoder.encode(TEXTS)
    for runtime in RUNTIMES:
        graph = graph_encoder(model, runtime)
        np.testing.assert_allclose(graph.encode(TEXTS), expected, atol=1e-4)
        assert graph.counts == encoder.counts
        assert (graph.dimension, graph.family, graph.settings) == (encoder.dimension, encoder.family, encoder.settings)
        assert (graph.backend, graph.precision) == (runtime, "float32")
        assert graph.fingerprint != encoder.fingerprint
        assert graph.encode([]).shape == (0, encoder.dimension)


@pytest.mark.parametrize(
    "pooling",
    ["cls", "last2-avg", "first-last-avg", "pooler", "max", "last-token", "layers-0,2", "cls+last2-avg+layers-0"],
)
def test_every_pooling_is_in_the_graph(pooling: str, tiny_model: Path) -> None:
    expected = load_encoder(resolve_settings(tiny_model, pooling=pooling), "cpu").encode(TEXTS)
    assert cosines(graph_encoder(tiny_model, pooling=pooling).encode(TEXTS), expected).min() >= 0.99999


@pytest.mark.parametrize(("runtime", "precision"), [("openvino", "bf16"), ("openvino", "int8"), ("onnx", "int8")])
def test_smaller_numbers_stay_near_and_take_less_room(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, precision: str
) -> None:
    monkeypatch.setattr(onnx_precision, "_LEAST_TABLE", 1000)  # the tiny model has 30,112 values
    monkeypatch.setenv("RETR_CACHE", str(tmp_path))
    expected = load_encoder(resolve_settings(tiny_model), "cpu").encode(TEXTS)
    graphs = [graph_encoder(tiny_model, runtime, name) for name in ("float32", precision)]
    found = cosines(graphs[1].encode(TEXTS), expected).min()
    assert LEAST_COSINE[precision] < found < 0.9999999
    sizes = [(graph.folder / WEIGHTS).stat().st_size for graph in graphs]
    assert sizes[1] < 0.6 * sizes[0]
    assert graphs[0].fingerprint != graphs[1].fingerprint


@given(st.integers(1, 20), st.integers(1, 40), st.integers(0, 1000))
def test_rounded_rows_are_within_half_a_step(rows: int, width: int, seed: int) -> None:
    table = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    table[0] = 0
    rounded, scales = rounded_rows(table)
    assert np.abs(rounded * scales - table).max() <= scales.max() * 0.501


@given(st.integers(1, 100), st.integers(1, 9), st.integers(0, 1000))
def test_rounded_blocks_are_within_half_a_step_of_the_matrix(k: int, n: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).normal(size=(k, n)).astype(np.float32)
    blocks, scales = rounded_blocks(matrix)
    assert blocks.shape == (n, -(-k // 32), 32)
    restored = ((blocks.astype(np.float32) - 128) * scales[:, :, None]).reshape(n, -1)[:, :k].T
    assert np.abs(restored - matrix).max() <= scales.max() * 0.501


@pytest.fixture(scope="module")
def graph(tiny_model: Path) -> OnnxEncoder:
    return graph_encoder(tiny_model)


@examples(max_examples=20)
@given(st.lists(st.sampled_from(random_texts(40)), min_size=1, max_size=40))
def test_a_vector_never_depends_on_its_batch(graph: OnnxEncoder, texts: list[str]) -> None:
    alone = np.concatenate([graph.encode([text]) for text in texts])
    np.testing.assert_allclose(graph.encode(texts), alone, atol=1e-5)


def test_a_graph_in_the_cache_is_loaded_without_torch_and_made_again_where_it_is_damaged(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETR_CACHE", str(tmp_path))
    expected = graph_encoder(tiny_model).encode(TEXTS)
    code = (
        "import sys; from retrieval.encoders.load import load_to_build, resolve_settings;"
        "load_to_build(resolve_settings(sys.argv[1]), 'auto', 'openvino', 'float32');"
        "print([m for m in ('torch', 'transformers', 'onnx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, tiny_model], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    place = next((tmp_path / "onnx").iterdir())
    (place / WEIGHTS).write_bytes(b"x" * (place / WEIGHTS).stat().st_size)
    notes: list[str] = []
    again = load_to_build(resolve_settings(tiny_model), "cpu", "openvino", "float32", notes.append)
    assert "model.onnx.data is damaged; exporting again" in notes[0]
    np.testing.assert_array_equal(again.encode(TEXTS), expected)


def test_graph_names_no_file_of_the_machine_that_exported_it(graph: OnnxEncoder) -> None:
    content = (graph.folder / GRAPH).read_bytes()
    assert b".py" not in content
    assert b"/" + sys.prefix.encode().strip(b"/") not in content


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("transform", ["whiten-16", "none"])
def test_the_graph_of_an_index_goes_on_to_the_vectors_that_it_holds(
    tmp_path: Path, tiny_model: Path, runtime: str, transform: str
) -> None:
    (tmp_path / "c.txt").write_text("\n".join(random_texts(60)), encoding="utf-8")
    built = Index.build(
        tmp_path / "c.txt",
        tmp_path / "i",
        model=tiny_model,
        transform=transform,
        backend=runtime,
        precision="float32",
    )
    graph = built.encoder
    assert isinstance(graph, OnnxEncoder)
    m = built.manifest.index["dimension"]
    expected = unit_vectors(graph.encode(TEXTS), built.transform)
    np.testing.assert_allclose(graph.unit_vectors(TEXTS, m), expected, atol=2e-6)
    assert {value.name for value in onnx.load(tmp_path / "i" / "encoder" / GRAPH).graph.output} == {"pooled", "vector"}


def test_bf16_ends_before_the_transform(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "c.txt").write_text("\n".join(random_texts(60)), encoding="utf-8")
    built = Index.build(
        tmp_path / "c.txt",
        tmp_path / "i",
        model=tiny_model,
        transform="whiten-16",
        backend="openvino",
        precision="bf16",
    )
    graph = built.encoder
    assert isinstance(graph, OnnxEncoder)
    expected = unit_vectors(graph.encode(TEXTS), built.transform)
    np.testing.assert_allclose(graph.unit_vectors(TEXTS, 16), expected, atol=2e-6)


def test_an_index_answers_without_torch_and_without_the_model(tmp_path: Path, tiny_model: Path) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    texts = random_texts(60)
    (tmp_path / "c.txt").write_text("\n".join(texts), encoding="utf-8")
    Index.build(tmp_path / "c.txt", tmp_path / "i", model=model, transform="rotate-16")
    shutil.rmtree(model)
    moved = shutil.copytree(tmp_path / "i", tmp_path / "elsewhere" / "i")
    code = (
        "import sys, retrieval; index = retrieval.Index.open(sys.argv[1]);"
        "hits = index.search(sys.argv[2], k=1)[0];"
        "print(hits[0].doc_id, round(hits[0].score, 3), [m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, moved, texts[7]], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "7 1.0 []"


def test_a_cold_query_loads_only_what_it_needs(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "c.txt").write_text("\n".join(random_texts(20)), encoding="utf-8")
    Index.build(tmp_path / "c.txt", tmp_path / "i", model=tiny_model)
    code = (
        "import sys; from retrieval.cli.main import _run\n"
        "sys.argv[1:] = ['query', '甲', '-k', '1', '-i', sys.argv[1]]\n"
        "_run(); print([name for name in sys.argv[6:] + 'torch transformers onnx onnxscript rich scipy '"
        "'pyarrow.parquet pyarrow.compute huggingface_hub safetensors'.split() if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "i")], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout


def test_texts_are_normalised_before_the_graph(tmp_path: Path, tiny_model: Path) -> None:
    encoder = load_to_build(resolve_settings(tiny_model, normalize="nfkc"), "cpu", "openvino", "float32")
    assert isinstance(encoder, NormalizingEncoder)
    np.testing.assert_array_equal(encoder.encode(["ＡＢＣ"]), encoder.encode(["ABC"]))
    (tmp_path / "c.txt").write_text("\n".join(["ABC", *random_texts(40)]), encoding="utf-8")
    built = Index.build(tmp_path / "c.txt", tmp_path / "i", model=tiny_model, normalize="nfkc", transform="rotate-8")
    hit = built.search("ＡＢＣ", k=1)[0][0]
    assert (hit.doc_id, round(hit.score, 4)) == ("0", 1.0)


def test_command_line_chooses_records_and_shows_the_backend(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    (tmp_path / "c.txt").write_text("\n".join(random_texts(20)), encoding="utf-8")
    done = retr("index", "c.txt", "--model", tiny_model)
    assert done.returncode == 0, done.stderr
    assert f"backend      openvino, {'bf16' if openvino_has_bf16() else 'float32'}" in retr("info").stdout
    assert json.loads(retr("query", random_texts(1)[0], "-k", "1", "--json").stdout)["id"] == "0"
    (tmp_path / "indexes" / "c" / "encoder" / GRAPH).write_bytes(b"x")
    damaged = retr("query", "甲")
    assert damaged.returncode == 1
    assert "model.onnx has 1 bytes" in damaged.stderr


def test_auto_takes_torch_for_what_cannot_be_exported(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETR_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    notes: list[str] = []
    encoder: Encoder = load_to_build(resolve_settings(tiny_model), "auto", "auto", "auto", notes.append)
    assert (encoder.backend, encoder.precision) == ("torch", "float32")
    assert "backend torch: the exporter is not installed" in notes[0]
    rounded = load_to_build(resolve_settings(tiny_model), "auto", "auto", "bf16")
    assert (rounded.backend, rounded.precision) == ("torch", "bf16")
    with pytest.raises(EncoderError, match=r"pip install onnx onnxscript.*use --backend torch"):
        load_to_build(resolve_settings(tiny_model), "auto", "openvino", "auto")


def test_auto_takes_the_runtime_that_is_installed(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = sys.modules["importlib.util"].find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "openvino" else find(name))
    encoder = load_to_build(resolve_settings(tiny_model), "auto", "auto", "auto")
    assert (encoder.backend, encoder.precision) == ("onnx", "float32")


def test_a_cache_that_cannot_be_written_costs_the_graph_and_nothing_else(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("RETR_CACHE", str(tmp_path / "file"))
    notes: list[str] = []
    assert load_to_build(resolve_settings(tiny_model), "auto", "auto", "auto", notes.append).backend == "torch"
    assert "backend torch: " in notes[-1]
    with pytest.raises(OSError, match="file"):
        load_to_build(resolve_settings(tiny_model), "auto", "openvino", "auto")


@pytest.mark.parametrize(("runtime", "package"), [("openvino", "openvino"), ("onnx", "onnxruntime")])
def test_a_runtime_that_is_not_installed_is_told_before_the_export(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, package: str
) -> None:
    find = sys.modules["importlib.util"].find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else find(name))
    monkeypatch.setenv("RETR_CACHE", str(tmp_path))
    with pytest.raises(EncoderError, match=f"backend {runtime} is not installed: pip install {package}"):
        load_to_build(resolve_settings(tiny_model), "cpu", runtime, "float32")
    assert not (tmp_path / "onnx").exists()


def test_word_vectors_have_no_graph(tmp_path: Path) -> None:
    pytest.importorskip("gensim")
    (tmp_path / "words.txt").write_text("2 2\n退货 1 0\n快递 0 1\n", encoding="utf-8")
    settings = resolve_settings(tmp_path / "words.txt")
    assert load_to_build(settings, "auto", "auto", "auto").backend == "numpy"
    for backend, precision in (("openvino", "auto"), ("auto", "int8")):
        with pytest.raises(EncoderError, match=r"(openvino|int8) needs a graph, and .*words.txt has none"):
            load_to_build(settings, "auto", backend, precision)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("tensorrt", "float32", "cpu"), "unknown backend 'tensorrt': expected one of auto, torch, openvino, onnx"),
        (("onnx", "int3", "cpu"), "unknown precision 'int3': expected one of auto, float32, bf16, int8"),
        (("torch", "int8", "cpu"), "backend torch has no precision 'int8': use --backend openvino or onnx"),
        (("onnx", "bf16", "cpu"), "backend onnx has no precision 'bf16': use --backend torch or openvino"),
        (("openvino", "bf16", "cuda"), "backend openvino runs on the CPU, not on 'cuda'"),
        (("auto", "int8", "cuda"), "int8 runs on the CPU, not on 'cuda'"),
    ],
)
def test_backends_that_are_not_there_are_named(options: tuple[str, str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("a\n")
    backend, precision, device = options
    with pytest.raises(UsageError, match=message):
        Index.build(tmp_path / "c.txt", tmp_path / "i", backend=backend, precision=precision, device=device)


@pytest.mark.parametrize(("runtime", "package"), [("openvino", "openvino"), ("onnx", "onnxruntime")])
def test_missing_runtime_says_what_to_install(
    graph: OnnxEncoder, monkeypatch: pytest.MonkeyPatch, runtime: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EncoderError, match=f"pip install {package}"):
        OnnxEncoder(graph.folder, runtime)


def test_damaged_graph_folder_is_one_clear_error(graph: OnnxEncoder, tmp_path: Path) -> None:
    copy_graph(graph, tmp_path / "g")
    for name in (DESCRIPTION, TOKENIZER, GRAPH):
        copy = shutil.copytree(tmp_path / "g", tmp_path / name)
        (copy / name).unlink()
        (copy / name).write_bytes(b"{")
        for runtime in RUNTIMES:
            with pytest.raises(EncoderError, match="cannot be loaded"):
                OnnxEncoder(copy, runtime)


def test_graph_folder_of_another_format_is_refused(graph: OnnxEncoder, tmp_path: Path) -> None:
    copy_graph(graph, tmp_path / "g")
    description = json.loads((tmp_path / "g" / DESCRIPTION).read_text(encoding="utf-8"))
    (tmp_path / "g" / DESCRIPTION).write_text(json.dumps(description | {"format": 9}), encoding="utf-8")
    with pytest.raises(EncoderError, match="has format 9, and this retr reads 1: build the index again"):
        OnnxEncoder(tmp_path / "g", "openvino")


def test_what_a_killed_build_left_of_its_graph_is_not_taken_for_another_encoders(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.txt").write_text("\n".join(random_texts(40)), encoding="utf-8")
    other = make_tiny_model(tmp_path / "other", seed=1)
    with monkeypatch.context() as patch:
        patch.setattr("retrieval.pipeline.build.Fitting.fit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Index.build(tmp_path / "c.txt", tmp_path / "i", model=tiny_model)
    assert (tmp_path / ".i.building" / "index" / "encoder" / GRAPH).exists()
    Index.build(tmp_path / "c.txt", tmp_path / "i", model=f"{tiny_model}+0.5*{other}", transform="none")
    assert [path.name for path in (tmp_path / "i" / "encoder").iterdir()] == ["fusion.safetensors"]
    assert Index.open(tmp_path / "i").search(random_texts(40)[3], k=1)[0][0].doc_id == "3"


def test_the_family_is_the_names_own_whoever_filled_the_cache(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETR_CACHE", str(tmp_path))
    monkeypatch.setattr("retrieval.encoders.load.find_model", lambda source, note: tiny_model)
    families = {}
    for name, options in ((str(tiny_model), {"pooling": "cls"}), ("simbert-tiny", {})):
        families[name] = load_to_build(resolve_settings(name, **options), "cpu", "openvino", "float32").family
    assert families == {str(tiny_model): "raw", "simbert-tiny": "tuned"}


def test_rounded_vectors_of_two_runtimes_are_not_taken_for_each_other(tiny_model: Path) -> None:
    prints = [graph_encoder(tiny_model, runtime, "int8").fingerprint for runtime in RUNTIMES]
    exact = [graph_encoder(tiny_model, runtime).fingerprint for runtime in RUNTIMES]
    assert prints[0] != prints[1]
    assert exact[0] == exact[1]


def test_options_beside_a_given_encoder_are_refused(tmp_path: Path, graph: OnnxEncoder) -> None:
    with pytest.raises(UsageError, match="are those of the encoder given"):
        Index.build(tmp_path / "c.txt", tmp_path / "i", encoder=graph, precision="int8")
