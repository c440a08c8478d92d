"""Vectors in FAISS, documents in Arrow, embeddings in shards, the folder's manifest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import CorpusError, DimensionError, IndexFolderError, UsageError
from retrieval.index import folder as layout
from retrieval.index.documents import Documents, write_documents
from retrieval.index.embeddings import EmbeddingShards, EmbeddingsKey, key_of_folder
from retrieval.index.vectors import VectorIndex, check_factory
from retrieval.storage import atomic_file, new_folder, replace_folder
from retrieval.transforms.apply import unit_vectors

SCORE_TOLERANCE = 2e-6  # float32 inner products of unit vectors, summed in another order


def vectors(rows: int, dimension: int = 8, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return unit_vectors(np.random.default_rng(seed).normal(size=(rows, dimension)).astype(np.float32), None)


def filled(*chunks: np.ndarray[Any, np.dtype[np.float32]], numbered: bool = False) -> VectorIndex:
    index = VectorIndex(chunks[0].shape[1], numbered=numbered)
    for chunk in chunks:
        index.add(chunk)
    return index


@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 30), st.integers(0, 1000))
def test_search_equals_brute_force(n: int, k: int, queries: int, seed: int) -> None:
    documents, asked = vectors(n, seed=seed), vectors(queries, seed=seed + 1)
    scores, rows = filled(documents).search(asked, k)
    expected = asked @ documents.T
    assert scores.shape == rows.shape == (queries, min(k, n))
    assert (rows >= 0).all()
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :k], atol=SCORE_TOLERANCE)
    np.testing.assert_allclose(np.take_along_axis(expected, rows, axis=1), scores, atol=SCORE_TOLERANCE)
    assert all(len(set(found)) == len(found) for found in rows.tolist())


@pytest.mark.parametrize("k", [1, 3, 7, 10, 150])
def test_of_equal_vectors_the_smaller_rows_come_first(k: int) -> None:
    index = filled(np.tile(vectors(1), (200, 1)))
    _, rows = index.search(vectors(1), k)
    assert rows[0].tolist() == list(range(k))


@given(st.integers(1, 40), st.integers(1, 20))
def test_recall_never_falls_as_k_grows(n: int, k: int) -> None:
    index, asked = filled(vectors(n)), vectors(3, seed=9)
    fewer, more = index.search(asked, k)[1], index.search(asked, k + 1)[1]
    assert all(set(a) <= set(b) for a, b in zip(fewer.tolist(), more.tolist(), strict=True))


def test_scores_stay_within_one() -> None:
    documents = vectors(3000, 256)
    scores, rows = filled(documents).search(documents, 1)
    assert rows[:, 0].tolist() == list(range(3000))
    assert scores.max() <= 1
    assert scores.min() > 0.999


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 4))
def test_rows_of_zeros_are_never_found_and_the_others_keep_their_rows(known: list[bool], chunks: int) -> None:
    documents = vectors(len(known)) * np.array(known, dtype=np.float32)[:, None]
    index = filled(*np.array_split(documents, chunks), numbered=True)
    assert len(index) == sum(known)
    scores, rows = index.search(vectors(3, seed=4), 30)
    assert all(sorted(found) == np.flatnonzero(known).tolist() for found in rows.tolist())
    np.testing.assert_allclose(
        scores, np.take_along_axis(vectors(3, seed=4) @ documents.T, rows, axis=1), atol=SCORE_TOLERANCE
    )


def test_rows_beside_zeros_survive_saving(tmp_path: Path) -> None:
    documents = vectors(6)
    documents[[1, 4]] = 0
    index = filled(documents[:3], documents[3:], numbered=True)
    index.save(tmp_path / "v.faiss")
    assert VectorIndex.load(tmp_path / "v.faiss").search(documents[5:], 1)[1].tolist() == [[5]]


def test_vectors_of_another_dimension_are_refused() -> None:
    index = filled(vectors(3, 8))
    for call in (lambda: index.add(vectors(1, 4)), lambda: index.search(vectors(1, 4), 1)):
        with pytest.raises(DimensionError, match=r"\(n, 8\), got \(1, 4\)"):
            call()


def test_k_of_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="k is 0, expected at least 1"):
        filled(vectors(3)).search(vectors(1), 0)


def test_saved_vectors_are_read_back_exactly_and_nonsense_is_an_error(tmp_path: Path) -> None:
    index, asked = filled(vectors(50)), vectors(4, seed=5)
    index.save(tmp_path / "v.faiss")
    for one, other in zip(index.search(asked, 9), VectorIndex.load(tmp_path / "v.faiss").search(asked, 9), strict=True):
        np.testing.assert_array_equal(one, other)
    (tmp_path / "v.faiss").write_bytes((tmp_path / "v.faiss").read_bytes()[:100])
    with pytest.raises(IndexFolderError, match="not a whole FAISS index"):
        VectorIndex.load(tmp_path / "v.faiss")


def test_unknown_index_names_the_choices() -> None:
    with pytest.raises(UsageError, match=r"unknown index .tree.: expected one of auto, flat.* inner products of 8 dim"):
        check_factory("tree", 8)


def test_both_faiss_packages_at_once_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from retrieval.index import vectors as module

    assert module.faiss_conflict() is None
    monkeypatch.setattr(module, "_installed", lambda name: True)
    assert "pip uninstall -y faiss-cpu faiss-gpu" in str(module.faiss_conflict())


def batch(ids: list[str], texts: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"id": ids, "text": pa.array(texts, pa.large_string()), "n": list(range(len(ids)))}
    )


def test_documents_are_read_back_by_row_across_batches(tmp_path: Path) -> None:
    parts = [batch(["a", "b"], ["一", "二"]), batch(["c"], ["三"]), batch(["d", "e"], ["一", "五"])]
    writer = write_documents(parts, tmp_path / "d.arrow")
    documents = Documents(tmp_path / "d.arrow")
    assert len(documents) == 5
    assert list(documents.texts(1, 4)) == [(1, ["二", "三", "一"])]
    assert list(documents.texts(2, 2)) == []
    assert documents.take([4, 0]) == [{"id": "e", "text": "五", "n": 1}, {"id": "a", "text": "一", "n": 0}]
    assert documents.fields == {"n": "int64"}
    assert writer.first_rows().tolist() == [0, 1, 2, 0, 4]


def test_texts_come_in_pieces_that_fit_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.index.documents._PIECE_CHARACTERS", 5)
    write_documents([batch(["a", "b", "c"], ["xxx", "yyy", "z"]), batch(["d"], ["w" * 9])], tmp_path / "d.arrow")
    assert list(Documents(tmp_path / "d.arrow").texts(0, 4)) == [(0, ["xxx", "yyy"]), (2, ["z", "w" * 9])]


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=40))
def test_first_rows_are_those_of_a_plain_dictionary(texts: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        ids = [str(i) for i in range(len(texts))]
        writer = write_documents([batch(ids, texts)], Path(folder) / "d.arrow")
    first: dict[str, int] = {}
    expected = [first.setdefault(text, row) for row, text in enumerate(texts)]
    assert writer.first_rows().tolist() == expected


def test_texts_hash_depends_on_texts_and_order_only(tmp_path: Path) -> None:
    def of(*parts: pa.RecordBatch) -> str:
        return write_documents(parts, tmp_path / "d.arrow").texts_sha256()

    whole = of(batch(["a", "b"], ["一", "二"]))
    assert whole == of(batch(["x"], ["一"]), batch(["y"], ["二"]))
    assert len({whole, of(batch(["a", "b"], ["二", "一"])), of(batch(["a", "b"], ["一二", ""]))}) == 3


def test_a_repeated_id_is_named_with_both_texts(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="id 'a' is repeated: '一' and '三'"):
        write_documents([batch(["a", "b"], ["一", "二"]), batch(["a"], ["三"])], tmp_path / "d.arrow")


KEY = EmbeddingsKey("t" * 64, 5, "e" * 64, {"pooling": "cls", "max_length": 9}, shard_rows=2)


def written(folder: Path, key: EmbeddingsKey = KEY) -> EmbeddingShards:
    shards = EmbeddingShards(folder, key)
    for shard in shards.missing():
        start, stop = shards.bounds(shard)
        shards.write(shard, vectors(5)[start:stop], {"truncated": shard, "tokens": 1})
    return shards


def test_shards_are_read_back_exactly_in_row_order(tmp_path: Path) -> None:
    written(tmp_path / "e")
    again = EmbeddingShards(tmp_path / "e", KEY)
    assert again.missing() == []
    np.testing.assert_array_equal(np.concatenate(list(again.chunks())), vectors(5))
    assert again.counts() == {"truncated": 0 + 1 + 2, "tokens": 3}
    assert key_of_folder(tmp_path / "e") == KEY


def test_shards_are_plain_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    written(tmp_path / "e")
    np.testing.assert_array_equal(load_file(tmp_path / "e" / "000001.safetensors")["embeddings"], vectors(5)[2:4])


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "nonsense", "one bit"])
def test_a_damaged_shard_counts_as_missing(tmp_path: Path, damage: str) -> None:
    written(tmp_path / "e")
    path = tmp_path / "e" / "000001.safetensors"
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        changed = {"cut": content[:-1], "empty": b"", "nonsense": b"\xff" * len(content)}
        changed["one bit"] = content[:-1] + bytes([content[-1] ^ 1])
        path.write_bytes(changed[damage])
    shards = EmbeddingShards(tmp_path / "e", KEY)
    assert shards.missing() == [1]
    assert shards.damaged([1]) == ([] if damage == "gone" else ["000001.safetensors"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"texts_sha256": "x", "rows": 6}, r"the texts changed \(5 before, 6 now\)"),
        (
            {"encoder_fingerprint": "x", "encoder": {"pooling": "last-avg", "max_length": 9}},
            "pooling 'cls' -> 'last-avg'",
        ),
        ({"encoder_fingerprint": "x"}, "its files are others"),
    ],
)
def test_shards_of_another_key_are_missing_and_the_change_is_told(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    import re

    written(tmp_path / "e")
    wanted = EmbeddingsKey(**{**KEY.__dict__, **change})
    assert EmbeddingShards(tmp_path / "e", wanted).missing() == list(range(EmbeddingShards(tmp_path, wanted).count))
    assert re.search(words, " ".join(wanted.changes(KEY)))
    assert KEY.changes(KEY) == []


def test_linked_shards_are_usable(tmp_path: Path) -> None:
    written(tmp_path / "e")
    linked = EmbeddingShards(tmp_path / "other" / "e", KEY)
    linked.link_from(tmp_path / "e")
    assert linked.missing() == []


def manifest(**changes: Any) -> layout.Manifest:
    examples = {int: 3, str: "x", dict: {}, list: [], (str, type(None)): None}
    sections: dict[str, Any] = {
        section: {name: examples[kind] for name, kind in names.items()}  # type: ignore[index]
        for section, names in layout._FIELDS.items()
    }
    sections["files"] = {}
    return layout.Manifest(**{"created": "2026-01-01", "retr_version": "0", **sections, **changes})


def test_manifest_is_read_back(tmp_path: Path) -> None:
    layout.write_manifest(tmp_path, manifest(created="2026-02-02"))
    assert layout.read_manifest(tmp_path) == manifest(created="2026-02-02")


@pytest.mark.parametrize("section", layout._FIELDS)
def test_manifest_field_that_is_missing_or_of_another_type_is_named(section: str, tmp_path: Path) -> None:
    for name in layout._FIELDS[section]:
        for change in ("missing", "other"):
            content = manifest().to_json()
            content[section] = dict(content[section])
            if change == "missing":
                del content[section][name]
            else:
                content[section][name] = 1.5
            (tmp_path / layout.MANIFEST).write_text(json.dumps(content))
            if change == "missing" and name.endswith("_column"):
                continue  # null says the same
            with pytest.raises(IndexFolderError, match=rf"'{section}\.{name}' is not what it should be"):
                layout.read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged"),
        (b"{", "is damaged"),
        (b"[]", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b'{"format": "retr-index"}', "is damaged"),
        (b'{"format": "other", "format_version": 1}', "of format 'other'"),
        (b'{"format": "retr-index", "format_version": 99}', "format version 99.*install a newer retr"),
        (b'{"format": "retr-index", "format_version": 0}', "format version 0.*build it again"),
        (b'{"format": "retr-index", "format_version": 1}', "it lacks 'created'"),
    ],
)
def test_a_manifest_that_is_not_one_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / layout.MANIFEST).write_bytes(content)
    with pytest.raises(IndexFolderError, match=message):
        layout.read_manifest(tmp_path)


def test_manifest_whose_section_has_another_type_is_damaged(tmp_path: Path) -> None:
    content = {**manifest().to_json(), "files": []}
    (tmp_path / layout.MANIFEST).write_text(json.dumps(content))
    with pytest.raises(IndexFolderError, match="'files' is not what it should be"):
        layout.read_manifest(tmp_path)


@pytest.mark.parametrize("standing", [True, False])
@pytest.mark.parametrize("exchange", [True, False])
def test_replace_folder_leaves_the_new_under_the_name_and_the_old_under_the_other(
    tmp_path: Path, standing: bool, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr("retrieval.storage._exchange", lambda one, other: False)
    new, old = tmp_path / "new", tmp_path / "name"
    new.mkdir()
    (new / "x").write_text("new")
    if standing:
        old.mkdir()
        (old / "x").write_text("old")
    replace_folder(new, old)
    assert (old / "x").read_text() == "new"
    assert new.exists() == standing
    assert not standing or (new / "x").read_text() == "old"


def test_atomic_file_leaves_the_old_content_when_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    with pytest.raises(RuntimeError):  # noqa: PT012 (the error must rise inside the context)
        with atomic_file(tmp_path / "f") as file:
            file.write(b"half")
            raise RuntimeError
    assert (tmp_path / "f").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_new_folder_takes_away_what_a_killed_process_left_long_ago(tmp_path: Path) -> None:
    old, recent = tmp_path / ".model.abc", tmp_path / ".model.def"
    old.mkdir()
    recent.mkdir()
    os.utime(old, (0, 0))
    with new_folder(tmp_path / "model") as building:
        (building / "file").write_text("content")
    assert not old.exists()
    assert recent.exists()
    assert (tmp_path / "model" / "file").read_text() == "content"
