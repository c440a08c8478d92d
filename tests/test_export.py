"""Exports: a stock sentence-transformers folder and one FAISS file give what the index gives."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import HIDDEN, LAYERS, Retr, make_tiny_model, random_texts, write_jsonl

import retrieval
from retrieval.encoders import st_export
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.encoders.st_export import MARK, TOLERANCE
from retrieval.errors import EncoderError, IndexFolderError, TransformError
from retrieval.export import export_faiss, export_st
from retrieval.index.export import write_faiss
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.moments import Moments
from retrieval.transforms.whitening import Whitening

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the library warns of at import is not ours
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers import models

TEXTS = [*random_texts(12, seed=5), "ABC def"]
Vectors = np.ndarray[Any, Any]


def theirs(folder: Path, **options: Any) -> Vectors:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        return np.asarray(model.encode(TEXTS, **options))


def saved(folder: Path, *modules: torch.nn.Module, **options: Any) -> Path:
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.SentenceTransformer(modules=list(modules), device="cpu", **options).save(str(folder))
    return folder


def transformer(folder: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return models.Transformer(str(folder), **options)


def whitening(embeddings: Vectors, m: int = 8, beta: float = 1.0, gamma: float = 1.0) -> Whitening:
    moments = Moments(embeddings.shape[1])
    moments.update(embeddings)
    return Whitening.fit(moments, m, beta=beta, gamma=gamma)[0]


def check_export(model: Path, folder: Path, m: int = 8, **options: Any) -> list[str]:
    """Export a model with a whitening; sentence-transformers and we read the same vectors out of the folder."""
    settings = resolve_settings(model, **options)
    encoder = load_encoder(settings, "cpu")
    transform = whitening(encoder.encode(random_texts(200)), m)
    found = export_st(folder, settings=settings, transform=transform)
    again = load_encoder(resolve_settings(folder), "cpu")
    for kind in ("document", "query"):
        ours = unit_vectors(encoder.encode(TEXTS, kind=kind), transform)  # type: ignore[arg-type]
        np.testing.assert_allclose(theirs(folder, prompt_name=kind), ours, atol=TOLERANCE)
        np.testing.assert_allclose(again.encode(TEXTS, kind=kind), ours, atol=TOLERANCE)  # type: ignore[arg-type]
    np.testing.assert_allclose(theirs(folder), unit_vectors(encoder.encode(TEXTS), transform), atol=TOLERANCE)
    assert found.largest_difference is not None
    assert found.largest_difference <= TOLERANCE
    assert found.dimension == again.dimension == m
    assert not list(folder.rglob("*.py"))
    return found.modules


OF_LAYERS = ("last2-avg", "first-last-avg", f"layers-0,{LAYERS}", "layers-2,2,1")
OF_THE_LAST = ("cls", "last-avg", "max", "last-token", "sqrt-avg", "weighted-avg")


@pytest.mark.parametrize("pooling", [*OF_THE_LAST, *OF_LAYERS])
def test_every_pooling_is_exported_with_its_whitening_and_prompts(
    pooling: str, tiny_model: Path, tmp_path: Path
) -> None:
    modules = check_export(
        tiny_model, tmp_path / "st", pooling=pooling, query_prompt="ask ", document_prompt="b c ", max_length=20
    )
    layers = ["WeightedLayerPooling"] if pooling in OF_LAYERS else []
    assert modules == ["Transformer", *layers, "Pooling", "Dense", "Normalize"]


@pytest.mark.parametrize("kind", ["bert", "albert"])
def test_a_pooler_is_a_dense_layer_with_tanh(kind: str, tmp_path: Path) -> None:
    modules = check_export(make_tiny_model(tmp_path / "model", kind), tmp_path / "st", pooling="pooler")
    assert modules == ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "albert", "distilbert"])
def test_other_architectures_are_exported(kind: str, tmp_path: Path) -> None:
    check_export(make_tiny_model(tmp_path / "model", kind), tmp_path / "st", pooling="first-last-avg")


def test_the_modules_of_a_folder_stay_before_the_transform(tiny_model: Path, tmp_path: Path) -> None:
    folder = saved(
        tmp_path / "model",
        transformer(tiny_model, max_seq_length=16, do_lower_case=True),
        models.Pooling(HIDDEN, ("cls", "mean"), include_prompt=False),
        models.Dense(2 * HIDDEN, 20),
        models.LayerNorm(20),
        models.Normalize(),
        prompts={"query": "ask me ", "document": ""},
    )
    modules = check_export(folder, tmp_path / "st")
    assert modules == ["Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", "Dense", "Normalize"]


def test_half_precision_weights_are_exported_as_they_are_computed_with(tiny_model: Path, tmp_path: Path) -> None:
    import transformers

    folder = tmp_path / "half"
    transformers.AutoModel.from_pretrained(tiny_model).half().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny_model / name).read_bytes())
    check_export(folder, tmp_path / "st", pooling="cls")


def test_a_static_embedding_is_exported(tiny_model: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    torch.manual_seed(1)
    static = models.StaticEmbedding(Tokenizer.from_file(str(tiny_model / "tokenizer.json")), embedding_dim=20)
    modules = check_export(saved(tmp_path / "model", static, models.Normalize()), tmp_path / "st")
    assert modules == ["StaticEmbedding", "Normalize", "Dense", "Normalize"]


def test_layers_weighted_by_other_than_whole_numbers_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    layers = models.WeightedLayerPooling(HIDDEN, LAYERS, 1, torch.nn.Parameter(torch.tensor([1.0, 0.37, 0.1])))
    config = {"config_kwargs": {"output_hidden_states": True}}
    folder = saved(tmp_path / "model", transformer(tiny_model, **config), layers, models.Pooling(HIDDEN, "mean"))
    with pytest.raises(EncoderError, match="layers are weighted by other than whole numbers"):
        load_encoder(resolve_settings(folder), "cpu")


def test_without_a_transform_vectors_are_of_unit_length_and_raw_ones_are_not(tiny_model: Path, tmp_path: Path) -> None:
    settings = resolve_settings(tiny_model, pooling="cls")
    encoder = load_encoder(settings, "cpu")
    assert export_st(tmp_path / "unit", settings=settings).modules == ["Transformer", "Pooling", "Normalize"]
    np.testing.assert_allclose(theirs(tmp_path / "unit"), unit_vectors(encoder.encode(TEXTS), None), atol=TOLERANCE)
    assert export_st(tmp_path / "raw", settings=settings, raw=True).modules == ["Transformer", "Pooling"]
    np.testing.assert_allclose(theirs(tmp_path / "raw"), encoder.encode(TEXTS), atol=1e-4)


def test_what_has_no_stock_module_is_refused_and_nothing_is_written(tiny_model: Path, tmp_path: Path) -> None:
    from retrieval.transforms.flow import Flow

    words = tmp_path / "words.txt"
    words.write_text("2 3\n好 1 0 0\n坏 0 1 0\n", encoding="utf-8")
    elmo = tmp_path / "elmo"
    elmo.mkdir()
    (elmo / "encoder.pkl").write_bytes(b"")
    refused = [
        (str(words), {}, "is a file of word vectors, and stock sentence-transformers has no module"),
        (str(elmo), {}, "is an ELMo"),
        ("use-multilingual", {}, "is the Universal Sentence Encoder"),
        (f"{tiny_model}+0.5*{words}", {}, "is a fusion of encoders"),
        (str(tiny_model), {"normalize": "nfkc"}, "texts are normalised"),
    ]
    for model, options, message in refused:
        with pytest.raises(EncoderError, match=message):
            export_st(tmp_path / "st", settings=resolve_settings(model, **options))  # type: ignore[arg-type]
    settings = resolve_settings(tiny_model, pooling="cls")
    encoder = load_encoder(settings, "cpu")
    flow = Flow.fit([encoder.encode(random_texts(120))])
    with pytest.raises(TransformError, match=r"the transform is a flow, .* whiten-M, rotate-M, soft-M or none"):
        export_st(tmp_path / "st", settings=settings, transform=flow)
    other = whitening(np.random.default_rng(0).standard_normal((50, 20)).astype(np.float32))
    with pytest.raises(TransformError, match="takes vectors of 20 dimensions"):
        export_st(tmp_path / "st", settings=settings, transform=other)
    assert not (tmp_path / "st").exists()
    assert not list(tmp_path.glob(".st.*"))


def test_an_export_is_replaced_and_anything_else_is_kept(tiny_model: Path, tmp_path: Path) -> None:
    settings = resolve_settings(tiny_model, pooling="cls")
    mine = tmp_path / "mine"
    saved(mine, transformer(tiny_model), models.Pooling(HIDDEN, "mean"))
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    with pytest.raises(IndexFolderError, match="is no folder that retr export wrote"):
        export_st(mine, settings=settings)
    assert before == {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    export_st(tmp_path / "st", settings=settings, check=False)
    export_st(tmp_path / "st", settings=resolve_settings(tiny_model, pooling="max"), check=False)
    assert json.loads((tmp_path / "st" / MARK).read_text(encoding="utf-8"))["pooling"] == "max"
    with pytest.raises(EncoderError):
        export_st(tmp_path / "st", settings=resolve_settings(tiny_model, pooling="pooler", normalize="lower"))
    assert json.loads((tmp_path / "st" / MARK).read_text(encoding="utf-8"))["pooling"] == "max"


def test_vectors_that_differ_are_not_written(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolve_settings(tiny_model, pooling="max")
    written = st_export._write_pooling
    monkeypatch.setattr(st_export, "_write_pooling", lambda folder, hidden, mode: written(folder, hidden, "mean"))
    with pytest.raises(EncoderError, match=r"makes other vectors .* nothing was written"):
        export_st(tmp_path / "st", settings=settings)
    assert not (tmp_path / "st").exists()
    monkeypatch.setattr(st_export.importlib.util, "find_spec", lambda name: None)
    assert export_st(tmp_path / "st", settings=settings).largest_difference is None


def build(tmp_path: Path, model: Path, **options: Any) -> retrieval.Index:
    records = [{"id": f"d{n}", "text": text, "kind": n % 3} for n, text in enumerate(random_texts(300))]
    corpus = write_jsonl(tmp_path / "corpus.jsonl", records)
    columns = retrieval.CorpusOptions(id_column="id", keep=("kind",))
    return retrieval.Index.build(corpus, tmp_path / "index", model=model, corpus=columns, **options)


@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_an_index_is_exported_and_its_export_indexes_to_the_same_vectors(
    backend: str, tiny_model: Path, tmp_path: Path
) -> None:
    options = {"pooling": "first-last-avg", "transform": "whiten-16", "backend": backend, "precision": "float32"}
    index = build(tmp_path, tiny_model, **options)
    found = export_st(tmp_path / "st", index=index.path)
    assert found.lowest_cosine == pytest.approx(1, abs=1e-5)
    ours = unit_vectors(index.encoder.encode(TEXTS), index.transform)
    np.testing.assert_allclose(theirs(tmp_path / "st"), ours, atol=TOLERANCE)
    (tmp_path / "again").mkdir()
    again = build(tmp_path / "again", tmp_path / "st", transform="none", backend=backend, precision="float32")
    hits, expected = again.search(TEXTS, 5), index.search(TEXTS, 5)
    for one, other in zip(hits, expected, strict=True):
        assert [hit.doc_id for hit in one] == [hit.doc_id for hit in other]
        np.testing.assert_allclose([hit.score for hit in one], [hit.score for hit in other], atol=TOLERANCE)


def test_a_model_that_changed_since_the_index_was_built_is_not_exported(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    index = build(tmp_path, model, pooling="cls", transform="none", backend="openvino")
    make_tiny_model(model, seed=1)
    with pytest.raises(EncoderError, match="was built by another encoder"):
        export_st(tmp_path / "st", index=index.path)
    assert not (tmp_path / "st").exists()


@pytest.mark.parametrize("transform", ["none", "whiten-16", "rotate-12", "soft-8"])
def test_one_faiss_file_answers_raw_embeddings_alone(transform: str, tiny_model: Path, tmp_path: Path) -> None:
    index = build(tmp_path, tiny_model, pooling="last-avg", transform=transform, backend="torch")
    file, rows = export_faiss(index.path, tmp_path / "index.faiss")
    raw = index.encoder.encode(TEXTS, kind="query")
    scores, found = faiss.read_index(str(file)).search(raw, 10)
    documents = pq.read_table(rows).to_pylist()
    assert [document["row"] for document in documents] == list(range(300))
    for hits, values, places in zip(index.search(TEXTS, 10), scores, found, strict=True):
        chosen = [documents[place] for place in places]
        assert [hit.doc_id for hit in hits] == [document["id"] for document in chosen]
        assert [(hit.text, hit.fields["kind"]) for hit in hits] == [(one["text"], one["kind"]) for one in chosen]
        np.testing.assert_allclose([hit.score for hit in hits], values, atol=TOLERANCE)


@pytest.mark.parametrize("factory", ["IDMap,Flat", "IVF4,Flat", "HNSW8", "PQ4x4", "Flat,Refine(SQfp16)"])
def test_faiss_file_holds_whatever_the_index_is(factory: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    raw = random.standard_normal((400, 12)).astype(np.float32) + 3
    transform = whitening(raw)
    vectors = unit_vectors(raw, transform)
    index = faiss.index_factory(8, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    if factory.startswith("IDMap"):
        index.add_with_ids(vectors[::2], np.arange(0, 400, 2))
    else:
        index.add(vectors)
    faiss.write_index(index, str(tmp_path / "vectors.faiss"))
    with (tmp_path / "out.faiss").open("wb") as file:
        write_faiss(tmp_path / "vectors.faiss", transform, 12, file)
    queries = random.standard_normal((20, 12)).astype(np.float32) + 3
    scores, rows = faiss.read_index(str(tmp_path / "out.faiss")).search(queries, 5)
    expected_scores, expected_rows = index.search(unit_vectors(queries, transform), 5)
    np.testing.assert_allclose(scores, expected_scores, atol=TOLERANCE)
    assert (rows == expected_rows).mean() > 0.98  # ties of coarse codes


def test_faiss_export_keeps_what_is_no_faiss_file(tiny_model: Path, tmp_path: Path) -> None:
    index = build(tmp_path, tiny_model, pooling="cls", transform="flow", backend="torch")
    with pytest.raises(TransformError, match="the transform is a flow, and FAISS has linear transforms only"):
        export_faiss(index.path, tmp_path / "out.faiss")
    notes = tmp_path / "notes.txt"
    notes.write_text("mine", encoding="utf-8")
    with pytest.raises(IndexFolderError, match="it is no FAISS file"):
        export_faiss(index.path, notes)
    with pytest.raises(IndexFolderError, match="is a folder"):
        export_faiss(index.path, tmp_path)
    with pytest.raises(IndexFolderError, match="there is no folder"):
        export_faiss(index.path, tmp_path / "nowhere" / "out.faiss")
    assert notes.read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "out.faiss").exists()


def test_command_line_exports_an_index_and_a_model(retr: Retr, tiny_model: Path, tmp_path: Path) -> None:
    build(tmp_path, tiny_model, pooling="cls", transform="whiten-8", backend="torch")
    done = retr("export", "st", "-i", "index", "-o", "st", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["modules"] == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert record["largest_difference"] <= TOLERANCE
    done = retr(
        *("export", "st", "--model", tiny_model, "--pool", "cls", "-o", "same"),
        *("--transform-file", "index/transform.safetensors"),
    )
    assert done.returncode == 0, done.stderr
    assert "checked with sentence-transformers" in done.stderr
    np.testing.assert_allclose(theirs(tmp_path / "same"), theirs(tmp_path / "st"), atol=TOLERANCE)
    done = retr("export", "faiss", "-i", "index", "-o", "index.faiss")
    assert done.returncode == 0, done.stderr
    assert faiss.read_index(str(tmp_path / "index.faiss")).ntotal == 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("st", "-o", "x", "--pool", "cls"), "--pool cls is for --model"),
        (("st", "-o", "x", "--model", "a", "-i", "b"), "exclude each other"),
        (("st", "-o", "x", "--model", "a", "--transform-file", "none.safetensors"), "no file 'none.safetensors'"),
        (("faiss", "-i", "nowhere", "-o", "x"), "no index at 'nowhere'"),
    ],
)
def test_wrong_calls_are_one_line(retr: Retr, arguments: tuple[str, ...], message: str) -> None:
    done = retr("export", *arguments)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
