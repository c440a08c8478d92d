"""Retrieval tasks out of the user's own files, and as BEIR has them (Thakur et al. 2021)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrieval.corpus.reader import Corpus, CorpusOptions
from retrieval.errors import CorpusError, UsageError
from retrieval.evaluation.tasks import RetrievalTask, answerable, source_of
from retrieval.evaluation.trec import read_qrels

ID_COLUMNS = ("_id", "id", "doc_id", "query_id")


def files_task(corpus: Path, queries: Path, qrels: Path) -> RetrievalTask:
    """The user's own: documents and queries as `read_documents` takes them, judgements as `read_qrels` does.

    Raises
    ------
    CorpusError
        A file cannot be read, or the judgements are about other queries or documents.
    """
    documents, asked, judged = read_documents(corpus), read_documents(queries), read_qrels(qrels)
    known = {query: found for query, found in judged.items() if query in asked}
    if not known:
        raise CorpusError(
            f"{qrels} judges none of the queries of {queries}: the ids differ, for example "
            f"{next(iter(judged))!r} there and {next(iter(asked))!r} here"
        )
    within = {
        query: {document: grade for document, grade in found.items() if document in documents}
        for query, found in known.items()
    }
    lost = sum(map(len, known.values())) - sum(map(len, within.values()))
    if lost and not any(within.values()):
        document = next(document for found in known.values() for document in found)
        raise CorpusError(
            f"{qrels} judges none of the documents of {corpus}: the ids differ, for example "
            f"{document!r} there and {next(iter(documents))!r} here"
        )
    notes = []
    if lost:
        notes.append(f"judged documents that the corpus does not hold, and that cannot be found: {lost:,}")
    if unknown := len(judged) - len(known):
        notes.append(f"judged queries that are not among the queries, left out: {unknown:,}")
    if unjudged := len(asked) - len(known):
        notes.append(f"queries that nobody judged, left out: {unjudged:,}")
    notes.append("judging gap: documents that nobody judged count as wrong: values are lower bounds")
    task = RetrievalTask(
        str(qrels),
        "",
        f"queries of {queries}, asked of {corpus}",
        documents,
        {query: asked[query] for query in known},
        known,
        (source_of(qrels), source_of(queries), source_of(corpus)),
        notes=tuple(notes),
    )
    return answerable(task)


def beir_task(folder: Path, split: str | None) -> RetrievalTask:
    """A folder as BEIR has it: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv (test unless another is named)."""
    qrels = folder / "qrels" / f"{split or 'test'}.tsv"
    for path in (folder / "corpus.jsonl", folder / "queries.jsonl", qrels):
        if not path.is_file():
            raise CorpusError(f"no such file: '{path}'; a folder is expected to hold what BEIR's do")
    return files_task(folder / "corpus.jsonl", folder / "queries.jsonl", qrels)


def read_documents(path: Path) -> dict[str, str]:
    """id -> text, of a file that `retr index` reads; blank texts are left out.

    The id is the first of ID_COLUMNS that the file has, else the row number from 0. A column `title` beside a column
    `text` is put before it, as BEIR does.

    Raises
    ------
    CorpusError
        The file is missing or malformed, or an id is there twice.
    """
    found: dict[str, str] = {}
    for batch in _identified_batches(path):
        columns = batch.to_pydict()
        titles = columns.get("title", [None] * batch.num_rows)
        for name, title, text in zip(columns["id"], titles, columns["text"], strict=True):
            if name in found:
                raise CorpusError(f"{path}: the id {name!r} is there twice")
            found[name] = f"{title} {text}".strip() if title else text
    return found


def save_task(task: RetrievalTask, folder: Path) -> None:
    """Write a task as BEIR has it, for `beir_task` and other programs; the folder is new, or empty.

    Raises
    ------
    UsageError
        Something is there already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"'{folder}' is there already, and is not an empty folder: name another")
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", task.documents), ("queries", task.queries)):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for key, text in texts.items():
                file.write(json.dumps({"_id": key, "text": text}, ensure_ascii=False) + "\n")
    with (folder / "qrels" / "test.tsv").open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query, found in task.qrels.items():
            file.writelines(f"{query}\t{document}\t{grade}\n" for document, grade in found.items())


def _identified_batches(path: Path) -> Iterator[Any]:
    for column in ID_COLUMNS:
        for keep in (("title",), ()):
            corpus = Corpus([str(path)], CorpusOptions("text" if keep else None, column, keep))
            try:
                first = next(batches := corpus.batches())
            except UsageError:  # there is no such column
                continue
            yield first
            yield from batches
            return
    yield from Corpus([str(path)], CorpusOptions()).batches()
