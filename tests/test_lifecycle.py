"""add, delete, reindex: against a model of the same history, one by one, and with bad input."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_texts, write_jsonl
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from made_up_encoder import UNKNOWN, MadeUpEncoder

from retrieval import CorpusOptions, Index
from retrieval.errors import BuildError, CorpusError, EncoderError, IndexFolderError, TransformError, UsageError
from retrieval.index import folder as layout
from retrieval.index.spec import KINDS
from retrieval.pipeline.add import add_documents
from retrieval.transforms.apply import unit_vectors

OPTIONS = CorpusOptions(id_column="id", keep=("year",))
EXACT, EXACT_SCORES = ("flat",), ("flat", "ivf-pqfs-disk")
TOLERANCE = 1e-5
"""Of scores: float32 inner products, summed in another order."""
TEXTS = random_texts(3000, seed=11, longest=9)
QUERIES = random_texts(5, seed=12)


class Model:
    """What an index should hold: id -> (text, year), the oldest row first."""

    def __init__(self) -> None:
        self.documents: dict[str, tuple[str, int]] = {}

    def upsert(self, records: Sequence[dict[str, Any]]) -> None:
        for record in records:
            document = (record["text"], record["year"])
            if self.documents.get(record["id"]) != document:
                self.documents.pop(record["id"], None)
                self.documents[record["id"]] = document

    def hits(self, index: Index, query: str, k: int, least_year: int) -> list[tuple[str, float]]:
        """By brute force, through the index's own transform."""
        encoder = MadeUpEncoder()
        known = [id for id, (text, year) in self.documents.items() if text[0] != UNKNOWN and year >= least_year]
        if not known:
            return []
        vectors = unit_vectors(encoder.encode([self.documents[id][0] for id in known]), index.transform)
        asked = unit_vectors(encoder.encode([query], "query"), index.transform)
        scores = (asked @ vectors.T)[0]
        order = np.argsort(-scores, kind="stable")[:k]
        return [(known[i], float(scores[i])) for i in order]


def records(draw: Callable[[Any], Any], most: int, ids: st.SearchStrategy[str]) -> list[dict[str, Any]]:
    chosen = draw(st.lists(ids, min_size=1, max_size=most, unique=True))
    texts = st.one_of(st.sampled_from(TEXTS), st.sampled_from(TEXTS[:30]), st.just(UNKNOWN + "甲"))
    return [{"id": id, "text": draw(texts), "year": draw(st.integers(2015, 2026))} for id in chosen]


def check(index: Index, model: Model, kind: str) -> None:
    assert len(index) == len(model.documents)
    assert index.manifest.documents["distinct_texts"] == len({text for text, _ in model.documents.values()})
    index.verify()
    findable = {id for id, (text, _) in model.documents.items() if text[0] != UNKNOWN}
    for least_year in (2015, 2023):
        where = None if least_year == 2015 else f"year >= {least_year}"
        wanted = {id for id in findable if model.documents[id][1] >= least_year}
        for query, hits in zip(QUERIES, index.search(QUERIES, len(model.documents) + 5, where=where), strict=True):
            assert len(hits) == len(wanted)
            assert {hit.doc_id for hit in hits} == wanted
            assert all((hit.text, hit.fields["year"]) == model.documents[hit.doc_id] for hit in hits)
            if kind in EXACT_SCORES:
                scores = dict(model.hits(index, query, len(hits), least_year))
                for hit in hits:
                    assert hit.score == pytest.approx(scores[hit.doc_id], abs=TOLERANCE)
        few = index.search(QUERIES, 7, where=where)
        assert all(len(hits) == min(7, len(wanted)) for hits in few)
        if kind in EXACT:
            for query, hits in zip(QUERIES, few, strict=True):
                expected = [score for _, score in model.hits(index, query, 7, least_year)]
                assert [hit.score for hit in hits] == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_history_equals_the_model_of_it(kind: str, data: st.DataObject) -> None:
    first = max(100, KINDS[kind].least_rows)
    ids = st.integers(0, first + 20).map(str)
    model, encoder = Model(), MadeUpEncoder()
    built = [{"id": str(i), "text": TEXTS[i % 1400], "year": 2015 + i % 12} for i in range(first)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_jsonl(folder / "c.jsonl", built)
        model.upsert(built)
        transform = data.draw(st.sampled_from(["none", "rotate-8", "whiten-12"]), "transform")
        index = Index.build(
            folder / "c.jsonl", folder / "i", encoder=encoder, corpus=OPTIONS, index=kind, transform=transform
        )
        for step in data.draw(st.lists(st.sampled_from(["add", "upsert", "delete", "reindex", "reopen"]), max_size=7)):
            if step in ("add", "upsert"):
                some = records(data.draw, 8, ids if step == "upsert" else st.uuids().map(str))
                index.add(write_jsonl(folder / "more.jsonl", some), corpus=OPTIONS_OF_AN_ADDITION)
                model.upsert(some)
            elif step == "delete" and model.documents:
                gone = data.draw(
                    st.lists(st.sampled_from(sorted(model.documents)), min_size=1, max_size=9, unique=True)
                )
                index.delete(gone)
                for id in gone:
                    del model.documents[id]
            elif step == "reindex" and len(model.documents) >= max(50, KINDS[kind].least_rows):
                another = data.draw(st.sampled_from([None, "none", "rotate-4", "whiten-8"]))
                index.reindex(transform=another, refit=another is None and data.draw(st.booleans()))
            else:
                index = Index.open(folder / "i", encoder=encoder)
            check(index, model, kind)
        check(Index.open(folder / "i", encoder=encoder), model, kind)
        assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


OPTIONS_OF_AN_ADDITION = CorpusOptions()


@pytest.fixture
def encoder() -> MadeUpEncoder:
    return MadeUpEncoder()


def built(tmp_path: Path, encoder: MadeUpEncoder, count: int = 40, **options: Any) -> Index:
    """An index of `count` documents of ids d0, d1, ... and years 2015 to 2026."""
    some = [{"id": f"d{i}", "text": TEXTS[i], "year": 2015 + i % 12} for i in range(count)]
    options = {"transform": "none", "corpus": OPTIONS, **options}
    return Index.build(write_jsonl(tmp_path / "c.jsonl", some), tmp_path / "i", encoder=encoder, **options)


def ids_of(index: Index, query: str, k: int = 3, **options: Any) -> list[str]:
    return [hit.doc_id for hit in index.search(query, k, **options)[0]]


def more(tmp_path: Path, *some: dict[str, Any]) -> Path:
    return write_jsonl(tmp_path / "more.jsonl", some)


def test_only_texts_new_to_the_index_are_encoded(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    index = built(tmp_path, encoder)
    index.delete(["d3"])
    encoder.texts.clear()
    new = {"id": "new", "text": TEXTS[100], "year": 1}
    known = {"id": "other", "text": TEXTS[0], "year": 1}
    deleted = {"id": "d3", "text": TEXTS[3], "year": 1}
    twice = {"id": "twice", "text": TEXTS[100], "year": 2}
    addition = index.add(more(tmp_path, new, known, deleted, twice))
    assert encoder.texts == [TEXTS[100]]
    assert (addition.added, addition.replaced, addition.unchanged, addition.encoded) == (4, 0, 0, 1)
    assert ids_of(index, TEXTS[100], 2) == ["new", "twice"]
    assert ids_of(index, TEXTS[3], 1) == ["d3"]


def test_adding_the_same_file_again_changes_nothing(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    index = built(tmp_path, encoder)
    path = more(tmp_path, {"id": "d1", "text": "甲乙", "year": 1}, {"id": "n", "text": "丙丁", "year": 2})
    first = index.add(path)
    assert (first.added, first.replaced, first.manifest.documents["deleted"]) == (1, 1, 1)
    again = index.add(path)
    assert (again.added, again.replaced, again.unchanged) == (0, 0, 2)
    assert again.manifest == first.manifest


def test_a_replaced_document_is_found_by_its_new_text_and_not_by_its_old(
    tmp_path: Path, encoder: MadeUpEncoder
) -> None:
    index = built(tmp_path, encoder)
    index.add(more(tmp_path, {"id": "d1", "text": TEXTS[200], "year": 1999}))
    hit = index.search(TEXTS[200], 1)[0][0]
    assert (hit.doc_id, hit.text, hit.fields["year"]) == ("d1", TEXTS[200], 1999)
    assert all(hit.text != TEXTS[1] for hit in index.search(TEXTS[1], 100)[0])
    assert len(index) == 40


def test_parts_that_are_no_larger_than_what_comes_join_it(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    index = built(tmp_path, encoder)
    parts = []
    for i in range(8):
        index.add(more(tmp_path, {"id": f"n{i}", "text": TEXTS[100 + i], "year": i}))
        parts.append(len(index.manifest.documents["added"]))
    assert parts == [1, 1, 2, 1, 2, 2, 3, 1]  # the ones in the binary number of additions
    assert [ids_of(index, TEXTS[100 + i], 1) for i in range(8)] == [[f"n{i}"] for i in range(8)]
    assert index.manifest.documents["tokens"] == sum(map(len, TEXTS[:40])) + sum(map(len, TEXTS[100:108]))
    index.verify()


def test_an_addition_rewrites_neither_the_documents_nor_the_embeddings_that_were_there(
    tmp_path: Path, encoder: MadeUpEncoder
) -> None:
    index = built(tmp_path, encoder)
    kept = ("documents.arrow", "embeddings/000000.safetensors")
    before = [(tmp_path / "i" / name).stat().st_ino for name in kept]
    index.add(more(tmp_path, {"id": "n", "text": "甲乙", "year": 1}))
    index.delete(["n", "d1"])
    assert [(tmp_path / "i" / name).stat().st_ino for name in kept] == before


def test_ids_that_are_row_numbers_go_on_and_never_come_twice(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join([TEXTS[0], "", TEXTS[1]]), encoding="utf-8")
    index = Index.build(lines, tmp_path / "i", encoder=encoder, transform="none")
    assert [ids_of(index, text, 1) for text in TEXTS[:2]] == [["0"], ["2"]]
    (tmp_path / "a.txt").write_text("\n".join([TEXTS[2], TEXTS[3]]), encoding="utf-8")
    index.add(tmp_path / "a.txt")
    assert [ids_of(index, text, 1) for text in TEXTS[2:4]] == [["3"], ["4"]]
    index.delete(["4"])
    index.reindex()
    index.add(
        write_jsonl(tmp_path / "named.jsonl", [{"text": TEXTS[5], "key": 9}]), corpus=CorpusOptions(id_column="key")
    )
    (tmp_path / "b.txt").write_text(TEXTS[4], encoding="utf-8")
    index.add(tmp_path / "b.txt")
    assert [ids_of(index, text, 1) for text in TEXTS[4:6]] == [["10"], ["9"]]  # 4 was one, and 9 is


def test_k_hits_come_back_under_a_filter_however_far_they_are(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    index = built(tmp_path, encoder, 600)
    nearest = index.search(TEXTS[0], 600)[0]
    farthest = nearest[-3:]
    condition = " or ".join(f"id = '{hit.doc_id}'" for hit in farthest)
    assert ids_of(index, TEXTS[0], 3, where=condition) == [hit.doc_id for hit in farthest]
    assert ids_of(index, TEXTS[0], 50, where="year = 1900") == []
    assert len(ids_of(index, TEXTS[0], 50, where="year = 2020")) == 50


def test_equal_texts_are_one_hit_with_dedup(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    same = [{"id": f"s{i}", "text": "甲乙丙丁", "year": 2000} for i in range(300)]
    index = built(tmp_path, encoder)
    index.add(more(tmp_path, *same))
    assert {hit.text for hit in index.search("甲乙丙丁", 20)[0]} == {"甲乙丙丁"}
    hits = index.search("甲乙丙丁", 20, dedup=True)[0]
    assert hits[0].doc_id == "s0"
    assert len({hit.text for hit in hits}) == len(hits) == 20
    assert len(index.search("甲乙丙丁", 100, dedup=True)[0]) == 41


def test_of_nothing_left_nothing_is_found_and_more_can_be_added(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    index = built(tmp_path, encoder)
    index.delete([f"d{i}" for i in range(40)])
    assert len(index) == index.manifest.documents["distinct_texts"] == 0
    assert index.search(QUERIES, 5) == [[]] * 5
    assert index.search(QUERIES, 5, where="year > 1", dedup=True) == [[]] * 5
    with pytest.raises(BuildError, match="all documents of this index are deleted"):
        index.reindex()
    index.add(more(tmp_path, {"id": "d1", "text": TEXTS[1], "year": 1}))
    assert ids_of(index, TEXTS[1], 5) == ["d1"]
    index.reindex()
    assert (len(index), index.manifest.documents["deleted"], ids_of(index, TEXTS[1], 5)) == (1, 0, ["d1"])


def test_k_above_what_is_left_gives_all(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    index = built(tmp_path, encoder)
    index.delete(["d0", "d1"])
    assert len(ids_of(index, TEXTS[0], 1000)) == 38


def test_rows_of_texts_without_a_vector_are_no_hits_wherever_they_come(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    index = built(tmp_path, encoder)  # none of its texts lacks a vector: rows are not numbered
    index.add(more(tmp_path, {"id": "u", "text": UNKNOWN + "a", "year": 1}, {"id": "n", "text": TEXTS[50], "year": 1}))
    assert (len(index), len(ids_of(index, TEXTS[50], 100))) == (42, 41)
    index.reindex()  # numbers its rows now, and the last one is of zeros
    index.add(more(tmp_path, {"id": "v", "text": UNKNOWN + "b", "year": 1}))
    index.add(more(tmp_path, {"id": "m", "text": TEXTS[60], "year": 1}))
    assert ids_of(index, TEXTS[60], 1) == ["m"]
    assert "u" not in ids_of(index, TEXTS[50], 100)
    assert len(ids_of(index, TEXTS[50], 100)) == 42
    index.delete(["u", "v"])
    assert (len(index), index.manifest.documents["deleted"]) == (42, 2)
    index.verify()


@pytest.mark.parametrize("transform", ["whiten-8", "none", "rotate-4:eps=0"])
def test_reindex_gives_what_a_build_of_the_same_documents_gives(
    tmp_path: Path, encoder: MadeUpEncoder, transform: str
) -> None:
    index = built(tmp_path, encoder, 60, transform="whiten-12")
    new = [{"id": f"n{i}", "text": TEXTS[100 + i], "year": i} for i in range(20)]
    index.add(more(tmp_path, *new))
    index.delete([f"d{i}" for i in range(0, 60, 3)])
    encoder.texts.clear()
    other = index.reindex(tmp_path / "other", transform=transform)
    assert encoder.texts == []
    left = [{"id": f"d{i}", "text": TEXTS[i], "year": 2015 + i % 12} for i in range(60) if i % 3]
    rebuilt = Index.build(
        write_jsonl(tmp_path / "left.jsonl", [*left, *new]),
        tmp_path / "rebuilt",
        encoder=encoder,
        corpus=OPTIONS,
        transform=transform,
    )
    assert other.search(QUERIES, 9) == rebuilt.search(QUERIES, 9)
    assert (tmp_path / "other" / "documents.arrow").stat().st_size > 0
    assert other.manifest.transform == rebuilt.manifest.transform
    assert len(index) == len(other) == 60
    assert index.manifest.transform["name"] == "whiten-12"


def test_reindex_keeps_the_transform_unless_it_is_told_otherwise(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    index = built(tmp_path, encoder, 60, transform="whiten-8")
    mean = index.transform.mean.copy()  # type: ignore[union-attr]
    index.add(more(tmp_path, *({"id": f"n{i}", "text": TEXTS[100 + i], "year": i} for i in range(60))))
    before = index.search(QUERIES, 9)
    index.reindex()
    assert index.search(QUERIES, 9) == before
    np.testing.assert_array_equal(index.transform.mean, mean)  # type: ignore[union-attr]
    assert index.manifest.transform["added"]["rows"] == 60
    index.reindex(refit=True)
    assert np.abs(index.transform.mean - mean).max() > 1e-3  # type: ignore[union-attr]
    assert index.manifest.transform["name"] == "whiten-8"
    assert index.manifest.transform["rows"] == 120
    assert "added" not in index.manifest.transform


def test_reindex_to_another_kind(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    index = built(tmp_path, encoder, 200)
    before = index.search(QUERIES, 5)
    index.reindex(index="hnsw")
    assert index.manifest.index["spec"] == "hnsw"
    found = index.search(QUERIES, 200)
    assert all(len(hits) == 200 for hits in found)
    index.reindex(index="flat")
    assert index.search(QUERIES, 5) == before


def test_drift_is_that_of_the_rows_added_since_the_fit(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    from retrieval.transforms.held_out import Fitness
    from retrieval.transforms.moments import Moments

    index = built(tmp_path, encoder, 200, transform="whiten-8")
    of_a_kind = [{"id": f"n{i}", "text": TEXTS[300 + i], "year": i} for i in range(50)]
    notes = Notes()
    figures = index.add(more(tmp_path, *of_a_kind), progress=notes).manifest.transform["added"]
    assert notes.notes == []
    others = [{"id": f"o{i}", "text": "甲" * 40 + TEXTS[400 + i], "year": i} for i in range(50)]
    index.add(more(tmp_path, *others), progress=notes)
    assert len(notes.notes) == 2
    assert all("retr reindex --refit" in note and "100 vectors added since the fit" in note for note in notes.notes)
    fitted, added = Moments(16), Moments(16)
    fitted.update(encoder.encode(TEXTS[:200]))
    added.update(encoder.encode([each["text"] for each in of_a_kind]))
    expected = Fitness.of(index.transform, fitted, added)  # type: ignore[arg-type]
    assert figures["rows"] == 50
    assert figures["norm_ratio"] == pytest.approx(expected.norm_ratio, rel=1e-3)
    assert figures["mean_shift"] == pytest.approx(expected.mean_shift, abs=1e-3)


def test_drift_under_a_flow_is_a_loss_of_likelihood(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    index = built(tmp_path, encoder, 300, transform="flow")
    notes = Notes()
    index.add(
        more(tmp_path, *({"id": f"o{i}", "text": "甲" * 40 + TEXTS[400 + i], "year": i} for i in range(30))),
        progress=notes,
    )
    assert index.manifest.transform["added"]["rows"] == 30
    assert index.manifest.transform["added"]["nats"] < index.manifest.transform["held_out_nats"] - 0.1
    assert "less likely" in notes.notes[0]
    assert ids_of(index, "甲" * 40 + TEXTS[400], 1) == ["o0"]


class Notes:
    """A progress that remembers what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def stage(self, name: str, unit: str, total: int | None, done: int = 0) -> Any:
        from retrieval.types import NoProgress

        return NoProgress().stage(name, unit, total, done)


def test_a_reader_keeps_answering_as_it_was_opened(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    writer = built(tmp_path, encoder, 60, transform="whiten-8")
    lazy, warm = Index.open(tmp_path / "i", encoder=encoder), Index.open(tmp_path / "i", encoder=encoder)
    before = warm.search(TEXTS[:5], 60)
    writer.add(more(tmp_path, {"id": "n", "text": TEXTS[0], "year": 1}))
    writer.delete(["d0", "d1"])
    assert warm.search(TEXTS[:5], 60) == before
    assert lazy.search(TEXTS[:5], 60) == before  # and loads its transform only now
    writer.reindex(transform="whiten-4")
    assert warm.search(TEXTS[:5], 60) == before
    late = Index.open(tmp_path / "i", encoder=encoder)
    writer.reindex(transform="whiten-5")
    with pytest.raises(IndexFolderError, match="was built again since it was opened: open it again"):
        late.search("甲")
    warm.reopen()
    assert warm.search(TEXTS[:5], 60) == writer.search(TEXTS[:5], 60)


def test_readers_never_fail_while_an_index_changes(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    import threading

    index = built(tmp_path, encoder, 60, transform="whiten-8")
    failures: list[BaseException] = []
    sizes: set[int] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                opened = Index.open(tmp_path / "i", encoder=MadeUpEncoder())
                sizes.add(len(opened))
                assert len(opened.search(TEXTS[0], 100, where="year >= 2015")[0]) == len(opened)
            except BaseException as error:
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(6):
        index.add(more(tmp_path, {"id": f"n{turn}", "text": TEXTS[100 + turn], "year": 2020}))
        index.delete([f"n{turn}"])
        index.reindex(transform="none" if turn % 2 else "whiten-8")
    done.set()
    reader.join()
    assert [str(failure) for failure in failures if "was built again" not in str(failure)] == []
    assert sizes <= {60, 61}


def test_two_writers_are_kept_apart(tmp_path: Path) -> None:
    class Meddling(MadeUpEncoder):
        tries = 0

        def encode(self, texts: Sequence[str], *args: Any, **options: Any) -> Any:
            if self.tries:
                for change in (
                    lambda: index.delete(["d0"]),
                    index.reindex,
                    lambda: index.reindex(tmp_path / "other"),
                    lambda: index.add(tmp_path / "c.jsonl"),
                    lambda: Index.build(tmp_path / "c.jsonl", tmp_path / "i", encoder=self, corpus=OPTIONS),
                ):
                    with pytest.raises(BuildError, match=r"another command is writing .*add, delete or reindex"):
                        change()
            self.tries += 1
            return super().encode(texts, *args, **options)

    index = built(tmp_path, Meddling())
    index.add(more(tmp_path, {"id": "n", "text": "甲乙", "year": 1}))
    assert len(index) == 41


def test_a_broken_off_addition_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(MadeUpEncoder):
        left = 10**9

        def encode(self, texts: Sequence[str], *args: Any, **options: Any) -> Any:
            if self.left <= 0:
                raise KeyboardInterrupt
            self.left -= 1
            return super().encode(texts, *args, **options)

    monkeypatch.setattr("retrieval.pipeline.build.SHARD_ROWS", 20)
    encoder = Failing()
    index = built(tmp_path, encoder)
    path = more(tmp_path, *({"id": f"n{i}", "text": TEXTS[100 + i], "year": i} for i in range(100)))
    encoder.left, notes = 3, Notes()
    with pytest.raises(KeyboardInterrupt):
        index.add(path, progress=notes)
    assert notes.notes[-1] == "what is encoded so far is kept: the same command goes on from there"
    index.delete(["d3"])  # another change between does not throw it away
    encoder.left = 10**9
    encoder.texts.clear()
    assert index.add(path).added == 100
    assert sorted(encoder.texts) == sorted(TEXTS[160:200])
    assert len(index) == 139
    assert not (tmp_path / ".i.building").exists()


def test_an_unfinished_build_survives_an_addition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(MadeUpEncoder):
        def encode(self, texts: Sequence[str], *args: Any, **options: Any) -> Any:
            if len(self.texts) >= 60:
                raise KeyboardInterrupt
            return super().encode(texts, *args, **options)

    monkeypatch.setattr("retrieval.pipeline.build.SHARD_ROWS", 20)
    index = built(tmp_path, MadeUpEncoder())
    large = write_jsonl(tmp_path / "l.jsonl", [{"id": f"l{i}", "text": TEXTS[500 + i], "year": 1} for i in range(100)])
    with pytest.raises(KeyboardInterrupt):
        Index.build(large, tmp_path / "i", encoder=Failing(), corpus=OPTIONS)
    index.add(more(tmp_path, {"id": "n", "text": "甲乙", "year": 1}))
    index.reindex()
    encoder = MadeUpEncoder()
    assert len(Index.build(large, tmp_path / "i", encoder=encoder, corpus=OPTIONS)) == 100
    assert sorted(encoder.texts) == sorted(TEXTS[560:600])


def test_bad_additions_and_deletions_are_told_and_change_nothing(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    class Strange(MadeUpEncoder):
        def encode(self, texts: Sequence[str], *args: Any, **options: Any) -> Any:
            vectors = super().encode(texts, *args, **options)
            vectors[:] = np.where(np.array(["坏" in text for text in texts])[:, None], np.nan, vectors)
            return vectors

    index = built(tmp_path, Strange())
    before, new = index.manifest, {"id": "n", "text": "新", "year": 1}
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: index.delete(["d1", "x", "y"]), UsageError, r"never had a document of id 'x', 'y' \(2 of 3 ids\)"),
        (lambda: index.delete([]), UsageError, "no id to delete"),
        (lambda: index.delete("d1"), UsageError, "expected a sequence of ids"),
        (lambda: index.delete([3]), UsageError, "id 3 is int"),  # type: ignore[list-item]
        (lambda: index.add(more(tmp_path, {"id": "n", "text": "a"})), UsageError, "no column 'year'"),
        (
            lambda: index.add(more(tmp_path, {"id": "n", "text": "a", "year": "soon"})),
            CorpusError,
            "'year' .* does not fit the index",
        ),
        (
            lambda: index.add(more(tmp_path, *[{"id": "n", "text": t, "year": 1} for t in "ab"])),
            CorpusError,
            "id 'n' is repeated",
        ),
        (lambda: index.add(more(tmp_path, {"id": "n", "text": " ", "year": 1})), CorpusError, "all 1 texts are blank"),
        (lambda: index.add(tmp_path / "none.jsonl"), CorpusError, "none.jsonl"),
        (lambda: index.add(more(tmp_path, {"id": "n", "text": "坏", "year": 1})), TransformError, "holds NaN"),
        (
            lambda: add_documents(tmp_path / "i", [more(tmp_path, new)], CorpusOptions(), lambda: MadeUpEncoder(8)),
            EncoderError,
            "was built by another encoder",
        ),
        (lambda: Index.open(tmp_path / "i", encoder=MadeUpEncoder(8)), EncoderError, "was built by another encoder"),
        (lambda: index.search("a", where=b"year"), UsageError, "where is bytes"),  # type: ignore[arg-type]
        (lambda: index.search("a", 0, where="year > 1"), UsageError, "k is 0"),
        (lambda: index.search("坏"), EncoderError, "NaN or infinity for the query '坏'"),
        (lambda: index.add(tmp_path / "c.jsonl", corpus=OPTIONS), UsageError, "keeps the columns"),
        (lambda: index.reindex(transform="whiten-17"), TransformError, "m = 17"),
        (lambda: index.reindex(transform="whiten"), UsageError, "unknown transform"),
        (lambda: index.reindex(transform="whiten-3", refit=True), UsageError, "leave out --refit"),
        (lambda: index.reindex(index="tree"), UsageError, "unknown index 'tree'"),
        (lambda: index.search("a", where="year = 'x'"), UsageError, "'year' holds int64, and 'x' is a text"),
        (lambda: index.search("a", where="price = 1"), UsageError, "no column 'price' is kept; there are id"),
    ]
    for change, kind, message in cases:
        with pytest.raises(kind, match=message):
            change()
        assert layout.read_manifest(tmp_path / "i") == before
        assert not (tmp_path / ".i.building").exists(), message
    assert index.delete(["d1", "x"], ignore_unknown=True).unknown == ["x"]
    assert index.delete(["d1"]).gone_before == 1


def test_an_index_of_format_version_1_is_read_and_changed(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    built(tmp_path, encoder)
    path = tmp_path / "i" / layout.MANIFEST
    content = json.loads(path.read_text(encoding="utf-8"))
    content["format_version"] = 1
    for name in ("deleted", "added", "next_id"):
        del content["documents"][name]
    del content["build"]["by"]
    del content["encoder"]["family"]
    path.write_text(json.dumps(content), encoding="utf-8")
    index = Index.open(tmp_path / "i", encoder=encoder)
    index.delete(["d1"])
    assert len(index) == 39
    assert json.loads(path.read_text(encoding="utf-8"))["format_version"] == layout.FORMAT_VERSION
    with pytest.raises(UsageError, match="name one instead of auto"):
        index.reindex(transform="auto")


def test_damaged_parts_are_named(tmp_path: Path, encoder: MadeUpEncoder) -> None:
    index = built(tmp_path, encoder)
    index.add(more(tmp_path, {"id": "n", "text": "甲乙", "year": 1}))
    index.delete(["n"])
    for name in ("withheld.arrow", "added/000001/documents.arrow"):
        path = tmp_path / "i" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + b"x")
        with pytest.raises(IndexFolderError, match=f"{name} is not the file that was written"):
            Index.open(tmp_path / "i")
        path.write_bytes(whole)
    shard = tmp_path / "i" / "embeddings" / "000000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4] + b"abcd")
    with pytest.raises(IndexFolderError, match="embeddings is damaged at shard 000000"):
        index.reindex()
