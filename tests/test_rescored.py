"""Codes in vectors.faiss, scores from the embeddings on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Retr, random_texts, write_jsonl
from hypothesis import given
from hypothesis import strategies as st
from made_up_encoder import UNKNOWN, MadeUpEncoder
from numpy.typing import NDArray

from retrieval import CorpusOptions, Index
from retrieval.errors import IndexFolderError, UsageError
from retrieval.index import folder as layout
from retrieval.index.balance import balanced_axes
from retrieval.index.building import build_vectors
from retrieval.index.embeddings import Embeddings, EmbeddingShards, EmbeddingsKey
from retrieval.index.rescored import RescoredIndex, transformed
from retrieval.index.spec import EXACT, Setting, Wanted, choose_spec, code_count
from retrieval.index.vectors import VectorIndex
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.moments import Moments
from retrieval.transforms.whitening import Whitening

KIND = "ivf-pqfs-disk"
ROWS, DIMENSION = 4000, 16
TEXTS = random_texts(4000, seed=21, longest=12)
QUERIES = random_texts(20, seed=22)
TOLERANCE = 2e-6  # of float32 sums of unit vectors


def vectors(rows: int = ROWS, seed: int = 0) -> NDArray[np.float32]:
    random, centres = np.random.default_rng(seed), np.random.default_rng(99)
    points = centres.normal(size=(30, DIMENSION))[random.integers(0, 30, rows)]
    return unit_vectors((points + 0.7 * random.normal(size=points.shape) + 2).astype(np.float32), None)


class Stored:
    """Vectors by row, and which rows were asked for."""

    def __init__(self, documents: NDArray[np.float32]) -> None:
        self.documents, self.asked = documents, list[NDArray[np.int64]]()

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        self.asked.append(rows)
        return self.documents[rows]


def filled(zeros: bool = False) -> tuple[RescoredIndex, Stored]:
    documents = vectors()
    documents[::7] *= not zeros
    stored = Stored(documents)
    index = RescoredIndex(VectorIndex(DIMENSION, KIND, zeros, rows=ROWS), stored)
    index.train(vectors())
    index.add(documents)
    return index, stored


@pytest.mark.parametrize("zeros", [False, True])
def test_scores_are_exact_and_only_candidates_are_read_each_once_in_order(zeros: bool) -> None:
    index, stored = filled(zeros)
    asked = vectors(5, seed=1)
    scores, rows = index.search(asked, 10, setting=Setting(nprobe=8, k_factor=6))
    np.testing.assert_allclose(scores, (asked[:, None] * stored.documents[rows]).sum(axis=2), atol=TOLERANCE)
    assert (np.diff(scores, axis=1) <= 0).all()
    (read,) = stored.asked
    assert len(read) <= 5 * 60
    assert (np.diff(read) > 0).all()
    assert set(rows.ravel()) <= set(read)
    assert not zeros or (rows % 7 > 0).all()


@pytest.mark.parametrize("block", [1, 70, 10_000])
def test_a_batch_finds_what_single_queries_find(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.index.rescored._BLOCK_ROWS", block)
    index, _ = filled()
    asked = vectors(9, seed=2)
    for setting in (Setting(nprobe=8, k_factor=4), EXACT):
        scores, rows = index.search(asked, 7, setting=setting)
        for i in range(9):
            one_scores, one_rows = index.search(asked[i : i + 1], 7, setting=setting)
            assert one_rows[0].tolist() == rows[i].tolist()
            np.testing.assert_allclose(one_scores[0], scores[i], atol=TOLERANCE)


def test_few_allowed_rows_are_looked_for_in_every_list_and_not_all_of_them_are_read() -> None:
    index, stored = filled()
    allowed = np.arange(ROWS) % 4 == 0
    asked = vectors(20, seed=3)
    scores, rows = index.search(asked, 5, allowed=allowed, setting=Setting(nprobe=1, k_factor=12))
    assert allowed[rows].all()
    assert sum(map(len, stored.asked)) <= 20 * 60
    expected = -np.sort(-np.where(allowed, asked @ stored.documents.T, -2), axis=1)[:, :5]
    assert float((np.abs(scores - expected) < TOLERANCE).mean()) > 0.9


def test_of_equal_vectors_the_smaller_rows_come_first() -> None:
    documents = vectors()
    documents[1000:1040] = documents[1000]
    index = RescoredIndex(VectorIndex(DIMENSION, KIND, rows=ROWS), documents.__getitem__)
    index.train(documents)
    index.add(documents)
    found = index.search(documents[1000:1001], 30, setting=Setting(nprobe=8, k_factor=4))[1][0]
    assert found.tolist() == list(range(1000, 1030))


@pytest.mark.parametrize("rows", [1, 5, 512, 513, 3000])
def test_few_rows_and_many_are_transformed_alike(rows: int) -> None:
    moments = Moments(24)
    embeddings = np.random.default_rng(3).normal(2, np.geomspace(1, 0.1, 24), size=(3000, 24)).astype(np.float32)
    moments.update(embeddings)
    whitening = Whitening.fit(moments, 10)[0]
    before = embeddings.copy()
    wanted = np.sort(np.random.default_rng(4).permutation(3000)[:rows])
    found = transformed(embeddings.__getitem__, whitening)(wanted)
    np.testing.assert_allclose(found, unit_vectors(embeddings[wanted], whitening), atol=TOLERANCE)
    np.testing.assert_array_equal(embeddings, before)


def test_codes_alone_are_not_built_without_vectors_to_score_with() -> None:
    with pytest.raises(UsageError, match="ivf-pqfs-disk scores its candidates with stored vectors"):
        build_vectors(lambda: iter([vectors()]), ROWS, DIMENSION, KIND)


def test_its_file_takes_a_quarter_byte_a_dimension_one_more_and_a_position(tmp_path: Path) -> None:
    index, _ = filled()
    index.save(tmp_path / "v.faiss")
    axes = 2 * code_count(DIMENSION)
    lists = index.lists * (4 * axes + 8 + 16 * axes / 4)
    once = 4 * (16 + DIMENSION) * axes + 1000
    assert (tmp_path / "v.faiss").stat().st_size < ROWS * (DIMENSION / 4 + 1 + 8) + lists + once


@given(st.integers(1, 24), st.integers(0, 1000))
def test_balanced_axes_are_a_rotation_that_pairs_the_longest_with_the_shortest(dimension: int, seed: int) -> None:
    lengths = np.random.default_rng(seed).permutation(dimension) + 1.0
    sample = np.diag(lengths).astype(np.float32)
    axes = balanced_axes(sample)
    assert len(axes) == 2 * code_count(dimension)
    np.testing.assert_allclose(axes.T @ axes, np.eye(dimension), atol=1e-5)
    found = np.linalg.norm(axes @ sample, axis=1).round(3).reshape(-1, 2)
    alone, shared = found[found[:, 1] == 0][:, 0], found[found[:, 1] > 0]
    assert alone.max() == dimension
    assert sorted(alone[alone > 0]) == list(range(2 * len(shared) + 1, dimension + 1))
    assert all(shared.sum(axis=1) == 2 * len(shared) + 1)  # the longest of these with the shortest, and so on


def test_balanced_axes_find_more_by_codes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    spread = np.exp(-np.arange(32) / 6)
    documents = unit_vectors((random.normal(size=(6000, 32)) * spread + 0.5).astype(np.float32), None)
    asked, every = documents[:200], np.ones(5800, np.bool_)
    truth = np.argsort(-(asked @ documents[200:].T), axis=1)[:, :10]
    found = []
    for axes in (balanced_axes, lambda _: np.eye(2 * code_count(32), 32, dtype=np.float32)):
        monkeypatch.setattr("retrieval.index.balance.balanced_axes", axes)
        index = VectorIndex(32, KIND, rows=5800)
        index.train(documents[200:])
        index.add(documents[200:])
        rows = index.candidates(asked, 20, every, EXACT)
        found.append(float((rows[:, :, None] == truth[:, None]).any(axis=1).mean()))
    assert found[0] > found[1] + 0.03, found


def built(tmp_path: Path, encoder: MadeUpEncoder, every: int = 50, count: int = 3000, **options: Any) -> Index:
    """So many documents, ids 0, 1, ..., of which every fiftieth has no vector."""
    texts = [UNKNOWN + text if i % every == every - 1 else text for i, text in enumerate(TEXTS[:count])]
    records = [{"id": str(i), "text": text, "year": 2000 + i % 20} for i, text in enumerate(texts)]
    options = {"index": KIND, "transform": "rotate-12", **options}
    corpus = CorpusOptions(id_column="id", keep=("year",))
    source = write_jsonl(tmp_path / "c.jsonl", records)
    return Index.build(source, tmp_path / "i", encoder=encoder, corpus=corpus, **options)


def hits(index: Index, k: int = 5, **options: Any) -> list[list[tuple[str, float]]]:
    found = index.search(QUERIES, k, **options)
    return [[(hit.doc_id, pytest.approx(hit.score, abs=TOLERANCE)) for hit in each] for each in found]


@pytest.fixture
def encoder() -> MadeUpEncoder:
    return MadeUpEncoder()


@pytest.mark.parametrize("transform", ["none", "whiten-12", "flow"])
def test_exact_search_of_it_is_that_of_flat(tmp_path: Path, encoder: MadeUpEncoder, transform: str) -> None:
    index = built(tmp_path, encoder, transform=transform)
    flat = index.reindex(tmp_path / "flat", index="flat")
    assert hits(index, recall=1) == hits(flat)
    assert hits(index, recall=1, where="year < 2003") == hits(flat, where="year < 2003")
    ids = [[{hit.doc_id for hit in found} for found in each.search(QUERIES, 5)] for each in (index, flat)]
    assert np.mean([len(one & other) for one, other in zip(*ids, strict=True)]) >= 0.95 * 5  # .99 is wanted


def test_documents_added_replaced_and_deleted_are_scored_from_their_own_parts(
    tmp_path: Path, encoder: MadeUpEncoder
) -> None:
    index = built(tmp_path, encoder)
    for first in (3000, 3100, 3101):  # parts of 100 and 1 rows, the second joined by the third
        more = [
            {"id": str(i), "text": TEXTS[i], "year": 2030} for i in range(first, first + (100 if first == 3000 else 1))
        ]
        index.add(write_jsonl(tmp_path / "more.jsonl", [*more, {"id": "7", "text": TEXTS[first + 1], "year": 2031}]))
    index.delete(["8", "3050"])
    assert len(index.manifest.documents["added"]) == 2
    flat = index.reindex(tmp_path / "flat", index="flat")
    assert hits(index, recall=1) == hits(flat)
    for row in (3001, 3060, 3100):
        (hit,) = index.search(TEXTS[row], 1)[0]
        assert (hit.doc_id, hit.score) == (str(row), pytest.approx(1, abs=1e-5))
    assert {hit.doc_id for hit in index.search(TEXTS[3102], 2)[0]} >= {"7"}
    assert hits(index, k=4000, recall=1) == hits(flat, k=4000)
    before = hits(index, recall=1)
    index.reindex()
    assert index.manifest.index["spec"] == KIND
    assert hits(index, recall=1) == before


def test_a_reader_answers_from_the_embeddings_that_it_opened(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    writer = built(tmp_path, encoder)
    reader = Index.open(tmp_path / "i", encoder=encoder)
    _ = reader.transform
    before = hits(writer)
    writer.delete([str(i) for i in range(1, 3000, 2)])
    writer.reindex()
    assert hits(reader) == before
    reader.reopen()
    assert hits(reader, recall=1) == hits(writer, recall=1)
    assert all(int(id) % 2 == 0 for found in reader.search(QUERIES) for id in [hit.doc_id for hit in found])


def test_how_many_candidates_are_read_is_kept_with_the_index(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    index = built(tmp_path, encoder)
    factor = index.manifest.index["setting"]["k_factor"]
    assert factor == index._opened.vectors.setting.k_factor
    index.add(write_jsonl(tmp_path / "more.jsonl", [{"id": "n", "text": TEXTS[3000], "year": 1}]))
    assert Index.open(tmp_path / "i", encoder=encoder)._opened.vectors.setting.k_factor == factor


@pytest.mark.parametrize(("every", "most"), [(10_000, 62_500), (50, 95_000)])
def test_too_little_memory_for_others_makes_auto_choose_it(
    tmp_path: Path, encoder: MadeUpEncoder, every: int, most: int
) -> None:
    index = built(tmp_path, encoder, every, 4000, index="auto", transform="none", wanted=Wanted(most_bytes=most))
    assert index.manifest.index["spec"] == KIND
    assert index.manifest.files[layout.VECTORS]["bytes"] <= most
    assert choose_spec("auto", 4000, 16, Wanted(most_bytes=most))[0] == (KIND if every > 4000 else "flat-sq8")


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_shards_that_are_not_there_whole_are_named(tmp_path: Path, encoder: MadeUpEncoder, damage: str) -> None:
    built(tmp_path, encoder)
    path = tmp_path / "i" / "embeddings" / "000001.safetensors"
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IndexFolderError, match=r"embeddings/000001.safetensors (is missing|has .* bytes, expected)"):
        Index.open(tmp_path / "i", encoder=encoder)


def test_embeddings_that_a_manifest_does_not_know_to_be_gone_are_named(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    built(tmp_path, encoder)
    path = tmp_path / "i" / layout.MANIFEST
    content = json.loads(path.read_text(encoding="utf-8"))
    gone = [name for name in content["files"] if name.startswith("embeddings/")]
    for some, words in ((gone[1:], "000001.safetensors cannot be read"), (gone, "embeddings holds no embeddings")):
        for name in some:
            content["files"].pop(name, None)
            (tmp_path / "i" / name).unlink(missing_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(IndexFolderError, match=words):
            Index.open(tmp_path / "i", encoder=encoder)


def test_no_faiss_file_is_exported_that_would_answer_otherwise(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    from retrieval.export import export_faiss

    built(tmp_path, encoder)
    with pytest.raises(IndexFolderError, match=r"ivf-pqfs-disk, whose candidates its embeddings score.*retr reindex"):
        export_faiss(tmp_path / "i", tmp_path / "x.faiss")
    assert not (tmp_path / "x.faiss").exists()


def test_the_command_line_builds_asks_and_shows_it_without_torch(retr: Retr, tmp_path: Path, tiny_model: Path) -> None:
    texts = random_texts(1200)
    (tmp_path / "c.txt").write_text("\n".join(texts), encoding="utf-8")
    options = ("--model", str(tiny_model), "--whiten", "16", "--index", KIND, "--recall", "0.95")
    done = retr("index", "c.txt", "-o", "indexes/c", *options)
    assert done.returncode == 0, done.stderr
    assert f"index {KIND}" in done.stdout
    shown = retr("info", "--explain").stdout
    assert f"index {KIND} (nprobe " in shown
    assert "wanted 0.95); candidates are scored out of embeddings" in shown
    assert "spectrum: 32 directions" in shown
    code = (
        "import sys; from retrieval.cli.main import _run\n"
        "sys.argv[1:] = ['query', sys.argv[2], '-k', '1', '-i', sys.argv[1]]\n"
        "_run(); print([name for name in 'torch transformers onnx rich pyarrow.parquet pyarrow.compute pandas filelock'"
        ".split() if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "indexes" / "c"), texts[9]]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[-1] == "[]"
    assert lines[0].split("\t")[3] == "9"
    whole = retr("query", texts[9], "-k", "1", "--no-mmap", "--json")
    assert json.loads(whole.stdout)["id"] == "9"


def test_an_index_may_have_more_shards_than_a_process_may_open_files(tmp_path: Path) -> None:
    key = EmbeddingsKey("t" * 64, 300, "e" * 64, {}, shard_rows=3)
    shards = EmbeddingShards(tmp_path, key)
    embeddings = np.arange(1200, dtype=np.float32).reshape(300, 4)
    for shard in range(shards.count):
        shards.write(shard, embeddings[slice(*shards.bounds(shard))], {})
    code = (
        "import resource, sys; from pathlib import Path; import numpy as np\n"
        "from retrieval.index.embeddings import Embeddings\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)); embeddings = Embeddings([Path(sys.argv[1])])\n"
        "embeddings.hold(); embeddings.check(); rows = np.random.default_rng(0).integers(0, 300, 40)\n"
        "print((embeddings.take(rows)[:, 0] == 4 * rows).all(), len(list(embeddings.chunks())))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "True 100\n"


@given(st.lists(st.integers(0, 24), max_size=40))
def test_rows_are_taken_in_any_order_out_of_any_part(rows: list[int]) -> None:
    import tempfile

    values = np.random.default_rng(0).normal(size=(25, 3)).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        start = 0
        for part, count in enumerate((11, 1, 13)):
            shards = EmbeddingShards(Path(name) / str(part), EmbeddingsKey("", count, "", {}, shard_rows=4))
            for shard in range(shards.count):
                shards.write(shard, values[start:][slice(*shards.bounds(shard))], {})
            start += count
        embeddings = Embeddings([Path(name) / str(part) for part in range(3)])
        np.testing.assert_array_equal(embeddings.take(np.array(rows, np.int64)), values[rows].reshape(len(rows), 3))
