"""Judgements and runs as files: TREC's forms, and the TSV of BEIR.

TREC qrels: `query_id iteration doc_id relevance`; TREC run: `query_id Q0 doc_id rank score tag`; apart by white space.
BEIR qrels: `query-id corpus-id score`, apart by tabs, with a header.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from retrieval.corpus.files import STANDARD_INPUT, CorpusFile
from retrieval.corpus.lines import decoded_lines
from retrieval.errors import CorpusError, UsageError
from retrieval.evaluation.ranking import ordered
from retrieval.storage import atomic_file
from retrieval.types import Qrels, Run

_BEIR_HEADER = ["query-id", "corpus-id", "score"]


def read_qrels(path: Path) -> Qrels:
    """TREC qrels, or BEIR's where the first line is its header; `-` is standard input, .gz and .zst are opened.

    Raises
    ------
    CorpusError
        The file is missing, empty or malformed, or judges a document twice for a query; the line is named.
    """
    qrels: Qrels = {}
    beir = False
    for where, line in _lines(path):
        if not qrels and line.split("\t") == _BEIR_HEADER:
            beir = True
            continue
        cells = line.split("\t") if beir else line.split()
        if len(cells) != (3 if beir else 4):
            expected = "query-id, corpus-id and score" if beir else "query_id, 0, doc_id and relevance"
            raise CorpusError(f"{where}: {len(cells)} columns, expected {expected}, or BEIR's header in the first line")
        query, document, relevance = (*cells[:2], cells[2]) if beir else (cells[0], cells[2], cells[3])
        try:
            grade = int(relevance)
        except ValueError:
            raise CorpusError(f"{where}: the relevance is {relevance[:30]!r}, expected a whole number") from None
        if document in qrels.setdefault(query, {}):
            raise CorpusError(f"{where}: document {document!r} is judged twice for query {query!r}")
        qrels[query][document] = grade
    if not qrels:
        raise CorpusError(f"{path} holds no judgement: it is empty")
    return qrels


def read_run(path: Path) -> Run:
    """A TREC run; ranks and tag are not looked at, the scores order it. `-` is standard input.

    Raises
    ------
    CorpusError
        The file is missing, empty or malformed, or lists a document twice for a query; the line is named.
    """
    run: Run = {}
    for where, line in _lines(path):
        cells = line.split()
        if len(cells) != 6:
            raise CorpusError(f"{where}: {len(cells)} columns, expected query_id, Q0, doc_id, rank, score and tag")
        query, _, document, _, number, _ = cells
        try:
            score = float(number)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise CorpusError(f"{where}: the score is {number[:30]!r}, expected a number")
        if document in run.setdefault(query, {}):
            raise CorpusError(f"{where}: document {document!r} is listed twice for query {query!r}")
        run[query][document] = score
    if not run:
        raise CorpusError(f"{path} holds no ranked document: it is empty")
    return run


def write_qrels(path: Path, qrels: Qrels) -> None:
    """TREC qrels. Raises UsageError for an id that holds white space: TREC's files cannot say it."""
    check_ids(qrels)
    lines = (f"{query} 0 {document} {grade}\n" for query, found in qrels.items() for document, grade in found.items())
    _write(path, lines)


def write_run(path: Path, run: Run, tag: str) -> None:
    """A TREC run, ranks from 1, in the order that `ranking.ordered` gives. Raises UsageError as `write_qrels`."""
    check_ids(run)
    tag = "-".join(tag.split()) or "retr"
    lines = (
        f"{query} Q0 {document} {rank} {found[document]!r} {tag}\n"
        for query, found in run.items()
        for rank, document in enumerate(ordered(found), 1)
    )
    _write(path, lines)


def check_ids(content: Qrels | Run) -> None:
    """Raise UsageError for an id that a TREC file cannot hold: one with white space, or an empty one."""
    for query, documents in content.items():
        for name in (query, *documents):
            if len(name.split()) != 1 or name != name.strip():
                raise UsageError(f"the id {name!r} is empty or holds white space, which a TREC file cannot say")


def _write(path: Path, lines: Iterator[str]) -> None:
    try:
        with atomic_file(path) as file:
            for line in lines:
                file.write(line.encode("utf-8"))
    except OSError as error:
        raise CorpusError(f"{path} cannot be written: {error.strerror or error}") from None


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Where a line stands, in words, and the line; blank ones are no lines."""
    if str(path) != STANDARD_INPUT and not path.expanduser().is_file():
        raise CorpusError(f"no such file: '{path}'")
    file = CorpusFile(None if str(path) == STANDARD_INPUT else path.expanduser(), "text")
    with file.open() as stream:
        for number, line in enumerate(decoded_lines(stream, file.name, option=""), 1):
            if line.strip():
                yield f"{file.name} line {number}", line.rstrip("\r\n")
