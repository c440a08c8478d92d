"""What a search is measured on: documents, queries and judgements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from retrieval.errors import CorpusError
from retrieval.evaluation.pairs import md5_of
from retrieval.evaluation.ranking import without_relevant
from retrieval.types import Qrels

Judgement = tuple[str, str, str, int]
"""query_id, query, doc_id, relevance."""


@dataclass(frozen=True)
class Source:
    """A file that a task was made from."""

    path: str
    md5: str


@dataclass(frozen=True)
class RetrievalTask:
    """Queries to be asked of documents, with judgements. Ids are unique, and so are the texts of a set's documents."""

    name: str
    split: str
    """Empty for files of the user's."""
    kind: str
    """What is asked of what, in words."""
    documents: dict[str, str]
    """doc_id -> text."""
    queries: dict[str, str]
    """query_id -> text; each has a relevant document."""
    qrels: Qrels
    """Of these queries, about these documents."""
    sources: tuple[Source, ...]
    symmetric: bool = False
    """Whether queries and documents are of one kind: encoders that have a prompt for passages leave it out then."""
    own: dict[str, str] = field(default_factory=dict)
    """query_id -> the document that is the query itself, which is left out of its ranking."""
    duplicates: dict[str, list[str]] = field(default_factory=dict)
    """Exact duplicates: what they are, in words -> their texts."""
    notes: tuple[str, ...] = ()
    """What the reader of a figure has to know."""

    @property
    def title(self) -> str:
        """`lcqmc test`, or the paths of the user's files."""
        return f"{self.name} {self.split}".strip()


def judged_task(
    name: str,
    split: str,
    path: Path,
    kind: str,
    documents: dict[str, str],
    rows: Iterable[Judgement],
    notes: tuple[str, ...],
) -> RetrievalTask:
    """Equal texts are one document or one query, by the first id; of two judgements of one pair the larger counts."""
    for key, text in documents.items():
        if not isinstance(text, str):
            raise CorpusError(f"{path}: document {key!r} is {str(text)[:30]!r}, expected a text")
    first_document: dict[str, str] = {}
    first_query: dict[str, str] = {}
    twice = [text for key, text in documents.items() if first_document.setdefault(text, key) != key]
    asked_twice, qrels, queries = [], dict[str, dict[str, int]](), dict[str, str]()
    for key, query, document, grade in rows:
        if not isinstance(query, str):
            raise CorpusError(f"{path}: query {key!r} is {str(query)[:30]!r}, expected a text")
        known = first_query.setdefault(query, key)
        if known != key:
            asked_twice.append(query)
        queries[known] = query
        judged = qrels.setdefault(known, {})
        document = first_document[documents[document]]
        judged[document] = max(grade, judged.get(document, 0))
    task = RetrievalTask(
        name,
        split,
        kind,
        {key: text for text, key in first_document.items()},
        queries,
        qrels,
        (source_of(path),),
        duplicates=named_duplicates(
            {
                "documents that are there twice, and count once": list(dict.fromkeys(twice)),
                "queries that are there twice, and are asked once for all that is judged": list(
                    dict.fromkeys(asked_twice)
                ),
            }
        ),
        notes=notes,
    )
    return answerable(task)


def answerable(task: RetrievalTask) -> RetrievalTask:
    """Without the queries that have no relevant document."""
    lost = set(without_relevant(task.qrels))
    if not lost:
        return task
    if len(lost) == len(task.qrels):
        raise CorpusError(f"{task.title} judges no document relevant for any query: there is nothing to measure")
    return replace(
        task,
        queries={query: text for query, text in task.queries.items() if query not in lost},
        qrels={query: found for query, found in task.qrels.items() if query not in lost},
        notes=(*task.notes, f"queries without a relevant document, left out: {len(lost):,}"),
    )


def source_of(path: Path) -> Source:
    """A file with its md5; a folder or a glob has none."""
    return Source(str(path), md5_of(path) if path.is_file() else "")


def named_duplicates(duplicates: dict[str, list[str]]) -> dict[str, list[str]]:
    """Those kinds of duplicates of which there are any."""
    return {what: texts for what, texts in duplicates.items() if texts}
