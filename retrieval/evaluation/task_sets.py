"""Retrieval tasks out of labelled sets: known items of pairs, questions to passages, queries to titles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from retrieval.corpus.files import CorpusFile
from retrieval.corpus.lines import decoded_lines
from retrieval.corpus.records import json_records
from retrieval.errors import CorpusError, UsageError
from retrieval.evaluation.correlation import is_binary
from retrieval.evaluation.datasets import DATASETS, Dataset, Form, find_split, load_dataset
from retrieval.evaluation.pairs import Pairs, read_pairs
from retrieval.evaluation.task_files import beir_task, read_documents
from retrieval.evaluation.tasks import Judgement, RetrievalTask, Source, judged_task, named_duplicates, source_of
from retrieval.types import Qrels

PASSAGES, TITLES = "cmrc2018", "qbqtc"
_SETS = {
    PASSAGES: Dataset(
        PASSAGES,
        tuple(
            Form(f"cmrc2018/{folder}cmrc2018_{{}}.json", ("train", "dev", "test"))
            for folder in ("", "squad-style-data/")
        ),
        "https://github.com/ymcui/cmrc2018 (squad-style-data)",
        unlabelled=("test",),
    ),
    TITLES: Dataset(
        TITLES,
        tuple(Form(f"{folder}/{{}}.json", ("train", "dev", "test_public")) for folder in ("qbqtc", "QBQTC/dataset")),
        "https://github.com/CLUEbenchmark/QBQTC",
    ),
}
RETRIEVAL_SETS = ("lcqmc", *_SETS)


def make_retrieval_task(
    source: str, *, folder: Path | None = None, split: str | None = None, distractors: Path | None = None
) -> RetrievalTask:
    """Make the task that a set's name, a file of pairs or a folder in BEIR's form means.

    Raises
    ------
    UsageError
        There is no such set, file or folder, or distractors are given where the documents are known.
    CorpusError
        A file is missing or malformed.
    """
    name, path = source.lower(), Path(source).expanduser()
    if name in DATASETS:
        dataset = DATASETS[name]
        return known_item_task(load_dataset(name, split or dataset.measured, folder), distractors)
    if path.is_file():
        return known_item_task(read_pairs(source), distractors)
    if distractors is not None:
        raise UsageError(f"--distractors is for sets of pairs such as lcqmc; {source} has documents of its own")
    if name == PASSAGES:
        return passages_task(split, folder)
    if name == TITLES:
        return titles_task(split, folder)
    if path.is_dir():
        return beir_task(path, split)
    raise UsageError(
        f"nothing to retrieve from is called {source!r}: expected {', '.join(RETRIEVAL_SETS)} or another set of pairs, "
        "a file of pairs, or a folder with corpus.jsonl, queries.jsonl and qrels/test.tsv"
    )


def known_item_task(pairs: Pairs, distractors: Path | None = None) -> RetrievalTask:
    """Pairs as a search: the first sentence of each positive pair is asked of all distinct sentences.

    Every sentence that a positive pair joins with the query is relevant, whichever of the two comes first in the pair;
    those that negative pairs join with it are judged, and not relevant. The query's own row is left out of its ranking.

    Parameters
    ----------
    pairs : with labels 0 and 1.
    distractors : a corpus of texts to hide the sentences among; one that is a sentence of the pairs already is not
        added again.

    Raises
    ------
    UsageError
        The labels are graded.
    CorpusError
        No pair is positive, or the distractors cannot be read.
    """
    if not is_binary(pairs.labels):
        raise UsageError(f"{pairs.title} has graded labels: known items come from pairs with labels 0 and 1")
    documents = {f"s{number}": text for number, text in enumerate(pairs.texts, 1)}
    id_of = {text: name for name, text in documents.items()}
    sources = [Source(pairs.path, pairs.md5)]
    duplicates = {
        "pairs of a sentence with itself, which ask for nothing": [
            one for one, other in zip(pairs.first, pairs.second, strict=True) if one == other
        ]
    }
    qrels: Qrels = {}
    asked: dict[str, str] = {}
    for one, other, label in zip(pairs.first, pairs.second, pairs.labels, strict=True):
        if one == other:
            continue
        for query, document in ((one, other), (other, one)):
            judged = qrels.setdefault(id_of[query], {})
            judged[id_of[document]] = max(int(label), judged.get(id_of[document], 0))
        if label == 1:
            asked[id_of[one]] = one
    if distractors is not None:
        found = read_documents(distractors)
        same = [text for text in found.values() if text in id_of]
        new: dict[str, str] = {}
        twice = [
            text for name, text in found.items() if text not in id_of and new.setdefault(text, f"x{name}") != f"x{name}"
        ]
        documents |= {name: text for text, name in new.items()}
        sources.append(source_of(distractors))
        duplicates |= {
            "distractors that are sentences of the set, and count as those": same,
            "distractors that are there twice, and count once": twice,
        }
    if not asked:
        raise CorpusError(f"{pairs.title} has no positive pair of two sentences: there is nothing to look for")
    return RetrievalTask(
        pairs.name,
        pairs.split,
        "known items: the first sentence of each positive pair, asked of all distinct sentences"
        + (f" and {len(documents) - len(pairs.texts):,} distractors" if distractors else ""),
        documents,
        asked,
        {query: qrels[query] for query in asked},
        tuple(sources),
        symmetric=True,
        own={query: query for query in asked},
        duplicates=named_duplicates(duplicates),
        notes=(
            "the query's own row is left out of its ranking",
            "judging gap: only pairs of the set are judged. Other paraphrases of a query, among the sentences"
            f"{' and distractors' if distractors else ''}, count as wrong: values are lower bounds",
        ),
    )


def passages_task(split: str | None, folder: Path | None) -> RetrievalTask:
    """CMRC 2018 as a search: each question is asked of all passages of the split, its own being relevant."""
    split, path = _found(PASSAGES, split, folder)
    documents: dict[str, str] = {}
    rows: list[Judgement] = []
    try:
        for article in _json(path)["data"]:
            for paragraph in article["paragraphs"]:
                # The official files have the passage's id with it, SQuAD's own form has none.
                name = str(paragraph.get("id") or f"p{len(documents) + 1}")
                if documents.setdefault(name, paragraph["context"]) != paragraph["context"]:
                    raise CorpusError(f"{path}: the id {name!r} stands for two passages")
                rows += [(str(asked["id"]), asked["question"], name, 1) for asked in paragraph["qas"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise CorpusError(f"{path} has not the form of SQuAD: data, paragraphs, context, qas ({error!r})") from None
    notes = (
        "judging gap: a question's own passage alone is judged. Others that answer it count as wrong: "
        "values are lower bounds",
    )
    return judged_task(PASSAGES, split, path, "questions, asked of all passages", documents, rows, notes)


def titles_task(split: str | None, folder: Path | None) -> RetrievalTask:
    """QBQTC as a search: each query is asked of all titles of the split; relevance is 0, 1 or 2."""
    split, path = _found(TITLES, split, folder)
    documents: dict[str, str] = {}
    rows: list[Judgement] = []
    file = CorpusFile(path, "jsonl")
    with file.open() as stream:
        for number, record in json_records(decoded_lines(stream, file.name, option=""), file):
            try:
                name, label = str(record["id"]), int(record["label"])
                if f"t{name}" in documents:
                    raise CorpusError(f"{path} line {number}: the id {name!r} is there twice")
                documents[f"t{name}"] = record["title"]
                rows.append((f"q{name}", record["query"], f"t{name}", label))
            except (KeyError, TypeError, ValueError):
                raise CorpusError(
                    f"{path} line {number}: expected id, query, title and label (a whole number)"
                ) from None
    notes = (
        "labels 1 and 2 are relevant; nDCG gains 1 and 2",
        "judging gap: about one title a query is judged. Titles of other queries that fit count as wrong: "
        "values are lower bounds",
    )
    return judged_task(TITLES, split, path, "search queries, asked of all titles", documents, rows, notes)


def _found(name: str, split: str | None, folder: Path | None) -> tuple[str, Path]:
    wanted = split or _SETS[name].measured
    return wanted, find_split(_SETS[name], wanted, folder)[1]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{path} is not JSON in UTF-8: {error}") from None
