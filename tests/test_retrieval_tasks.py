"""Retrieval tasks out of pairs, SQuAD's form, QBQTC's form and own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import write_jsonl

from retrieval.errors import CorpusError, UsageError
from retrieval.evaluation.retrieval import fitting_of
from retrieval.evaluation.task_files import beir_task, files_task, read_documents, save_task
from retrieval.evaluation.task_sets import make_retrieval_task


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of data sets with a few records each."""
    folder = tmp_path / "data"
    for name in ("lcqmc", "cmrc2018", "qbqtc"):
        (folder / name).mkdir(parents=True)
    lcqmc = "甲一\t甲二\t1\n甲三\t甲一\t1\n甲一\t乙一\t0\n丙\t丙\t1\n甲二\t丁\t1\n乙一\t乙二\t0\n"
    (folder / "lcqmc" / "test.txt").write_text(lcqmc, encoding="utf-8")
    (folder / "lcqmc" / "dev.txt").write_text("戊\t己\t1\n戊\t庚\t0\n", encoding="utf-8")
    passages = [
        {"id": "P1", "context": "第一段", "qas": [{"id": "Q1", "question": "问一"}, {"id": "Q2", "question": "问二"}]},
        {"id": "P2", "context": "第二段", "qas": [{"id": "Q3", "question": "问一"}]},
        {"id": "P3", "context": "第一段", "qas": [{"id": "Q4", "question": "问四"}]},
    ]
    (folder / "cmrc2018" / "cmrc2018_dev.json").write_text(
        json.dumps({"data": [{"paragraphs": passages}]}), encoding="utf-8"
    )
    titles = [("查一", "题一", "2"), ("查一", "题二", "0"), ("查二", "题一", "1"), ("查三", "题三", "0")]
    records = [
        {"id": number, "query": query, "title": title, "label": label}
        for number, (query, title, label) in enumerate(titles)
    ]
    write_jsonl(folder / "qbqtc" / "test_public.json", records)
    return folder


def by_text(task: object, qrels: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    queries, documents = task.queries, task.documents  # type: ignore[attr-defined]
    return {queries[q]: {documents[d]: grade for d, grade in found.items()} for q, found in qrels.items()}


def test_known_items_are_the_positives_over_the_distinct_sentences(data: Path) -> None:
    task = make_retrieval_task("lcqmc", folder=data)
    assert set(task.documents.values()) == {"甲一", "甲二", "甲三", "乙一", "乙二", "丙", "丁"}
    # 乙一 has no positive pair, and 丙 none with another sentence: neither is asked.
    assert list(task.queries.values()) == ["甲一", "甲三", "甲二"]
    assert by_text(task, task.qrels) == {
        "甲一": {"甲二": 1, "甲三": 1, "乙一": 0},
        "甲三": {"甲一": 1},
        "甲二": {"甲一": 1, "丁": 1},
    }
    assert {query: task.documents[own] for query, own in task.own.items()} == task.queries
    assert task.duplicates == {"pairs of a sentence with itself, which ask for nothing": ["丙"]}
    assert any("judging gap" in note and "lower bounds" in note for note in task.notes)
    assert task.symmetric


def test_distractors_join_the_sentences_and_duplicates_are_named(data: Path, tmp_path: Path) -> None:
    (tmp_path / "titles.txt").write_text("新一\n甲二\n\n新二\n新一\n", encoding="utf-8")
    task = make_retrieval_task("lcqmc", folder=data, distractors=tmp_path / "titles.txt")
    assert len(task.documents) == 7 + 2
    assert list(task.documents.items())[-2:] == [("x0", "新一"), ("x3", "新二")]
    assert task.duplicates["distractors that are sentences of the set, and count as those"] == ["甲二"]
    assert task.duplicates["distractors that are there twice, and count once"] == ["新一"]
    assert task.qrels == make_retrieval_task("lcqmc", folder=data).qrels
    assert [Path(source.path).name for source in task.sources] == ["test.txt", "titles.txt"]
    with pytest.raises(UsageError, match="--distractors is for sets of pairs"):
        make_retrieval_task("cmrc2018", folder=data, distractors=tmp_path / "titles.txt")


def test_questions_are_asked_of_passages(data: Path) -> None:
    task = make_retrieval_task("cmrc2018", folder=data)
    assert task.title == "cmrc2018 dev"
    assert task.documents == {"P1": "第一段", "P2": "第二段"}
    # 问一 is asked twice, and P3 is P1: whatever was judged of either counts.
    assert task.qrels == {"Q1": {"P1": 1, "P2": 1}, "Q2": {"P1": 1}, "Q4": {"P1": 1}}
    assert task.duplicates == {
        "documents that are there twice, and count once": ["第一段"],
        "queries that are there twice, and are asked once for all that is judged": ["问一"],
    }
    assert not task.symmetric
    assert not task.own


def test_search_queries_are_asked_of_titles_with_grades(data: Path) -> None:
    task = make_retrieval_task("qbqtc", folder=data)
    assert by_text(task, task.qrels) == {"查一": {"题一": 2, "题二": 0}, "查二": {"题一": 1}}
    assert list(task.documents.values()) == ["题一", "题二", "题三"]
    assert "queries without a relevant document, left out: 1" in task.notes


def test_a_task_is_saved_as_beir_has_it_and_comes_back(data: Path, tmp_path: Path) -> None:
    task = make_retrieval_task("qbqtc", folder=data)
    save_task(task, tmp_path / "beir")
    back = beir_task(tmp_path / "beir", None)
    assert (back.documents, back.queries, back.qrels) == (task.documents, task.queries, task.qrels)
    with pytest.raises(UsageError, match="is there already, and is not an empty folder"):
        save_task(task, tmp_path / "beir")


def test_documents_have_ids_of_their_own_or_row_numbers_and_titles_before_them(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "a.jsonl", [{"_id": "x", "title": "题", "text": "文"}, {"_id": "y", "title": "", "text": "字"}]
    )
    assert read_documents(tmp_path / "a.jsonl") == {"x": "题 文", "y": "字"}
    (tmp_path / "b.tsv").write_text("id\ttext\n7\t文\n8\t \n", encoding="utf-8")
    assert read_documents(tmp_path / "b.tsv") == {"7": "文"}
    (tmp_path / "c.txt").write_text("文\n字\n", encoding="utf-8")
    assert read_documents(tmp_path / "c.txt") == {"0": "文", "1": "字"}
    (tmp_path / "d.tsv").write_text("id\ttext\n7\t文\n7\t字\n", encoding="utf-8")
    with pytest.raises(CorpusError, match="the id '7' is there twice"):
        read_documents(tmp_path / "d.tsv")


def test_own_files_say_what_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "corpus.tsv").write_text("id\ttext\nd1\t文\nd2\t字\n", encoding="utf-8")
    (tmp_path / "queries.tsv").write_text("id\ttext\nq1\t问\nq2\t答\nq3\t说\n", encoding="utf-8")
    (tmp_path / "qrels").write_text("q1 0 d1 1\nq1 0 d9 1\nq2 0 d2 0\nq8 0 d1 1\n", encoding="utf-8")
    files = tmp_path / "corpus.tsv", tmp_path / "queries.tsv", tmp_path / "qrels"
    task = files_task(*files)
    assert task.queries == {"q1": "问"}
    # d9 is relevant, and cannot be found: recall says so.
    assert task.qrels == {"q1": {"d1": 1, "d9": 1}}
    told = " ".join(task.notes)
    for note in (
        "judged documents that the corpus does not hold, and that cannot be found: 1",
        "judged queries that are not among the queries, left out: 1",
        "queries that nobody judged, left out: 1",
        "queries without a relevant document, left out: 1",
    ):
        assert note in told
    (tmp_path / "qrels").write_text("one 0 d1 1\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"judges none of the queries of .* for example 'one' there and 'q1' here"):
        files_task(*files)
    (tmp_path / "qrels").write_text("q1 0 7 1\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"judges none of the documents of .* for example '7' there and 'd1' here"):
        files_task(*files)


def test_transforms_are_fitted_on_the_documents_or_on_what_is_named(data: Path, tmp_path: Path) -> None:
    task = make_retrieval_task("lcqmc", folder=data)
    assert fitting_of(task, None, data).name == "the corpus (7 documents)"
    assert fitting_of(task, "dev", data).texts == ["戊", "己", "庚"]
    (tmp_path / "other.txt").write_text("一\n二\n", encoding="utf-8")
    assert fitting_of(task, str(tmp_path / "other.txt"), data).texts == ["一", "二"]
    with pytest.raises(UsageError, match="nothing is learnt from a test split"):
        fitting_of(task, "test", data)
    copy = tmp_path / "copy.tsv"
    copy.write_bytes((data / "lcqmc" / "test.txt").read_bytes())
    with pytest.raises(UsageError, match="is lcqmc test: nothing is learnt from a test split"):
        fitting_of(task, str(copy), data)


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("cmrc2018", "cmrc2018/cmrc2018_dev.json", "{", "is not JSON in UTF-8"),
        ("cmrc2018", "cmrc2018/cmrc2018_dev.json", '{"data": [{}]}', "has not the form of SQuAD"),
        (
            "qbqtc",
            "qbqtc/test_public.json",
            '{"id": 1, "query": "a", "title": "b"}',
            "line 1: expected id, query, title",
        ),
        ("lcqmc", "lcqmc/test.txt", "a\tb\t0\n", "has no positive pair of two sentences"),
        ("lcqmc", "lcqmc/test.txt", "a\tb\t3\n", "has graded labels"),
    ],
)
def test_malformed_sets_are_named(name: str, file: str, content: str, message: str, data: Path) -> None:
    (data / file).write_text(content, encoding="utf-8")
    with pytest.raises((CorpusError, UsageError), match=message):
        make_retrieval_task(name, folder=data)


@pytest.mark.data
def test_the_public_sets_have_the_sizes_that_are_known(data_folder: Path) -> None:
    task = make_retrieval_task("lcqmc", folder=data_folder)
    assert (len(task.documents), len(task.queries)) == (23557, 6147)
    assert len(task.duplicates["pairs of a sentence with itself, which ask for nothing"]) == 3
    task = make_retrieval_task("cmrc2018", folder=data_folder)
    assert (len(task.documents), len(task.queries)) == (848, 3218)
    task = make_retrieval_task("qbqtc", folder=data_folder)
    assert (len(task.documents), len(task.queries)) == (4889, 3749)
    grades = [grade for found in task.qrels.values() for grade in found.values()]
    assert set(grades) == {0, 1, 2}
