"""`retr query`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from retrieval.cli.bounds import ThreadsOption, parse_recall
from retrieval.cli.hits import write_json, write_lines, write_table
from retrieval.cli.options import (
    DebugOption,
    DeviceOption,
    IndexOption,
    JsonOption,
    QuietOption,
    TrustOption,
    open_index,
)
from retrieval.cli.output import TerminalProgress
from retrieval.corpus.lines import decoded_lines, is_blank
from retrieval.errors import UsageError

_BATCH_QUERIES = 1024


def query(
    texts: Annotated[list[str], typer.Argument(help="Texts to look for; - reads stdin, a query a line.")],
    index: IndexOption = None,
    k: Annotated[int, typer.Option("-k", help="Hits a query.")] = 10,
    min_score: Annotated[float | None, typer.Option(help="Leave out hits below this cosine.")] = None,
    where: Annotated[
        str | None,
        typer.Option(
            help="Only documents that meet a condition on id, text and kept columns: =, !=, <, <=, >, >=, in (...), "
            "between, like, is null, and, or, not.",
            metavar="CONDITION",
        ),
    ] = None,
    dedup: Annotated[bool, typer.Option("--dedup", help="Of documents with equal texts only the first.")] = False,
    recall: Annotated[
        str | None,
        typer.Option(
            "--recall",
            help="Another point of the index's curve than it was built for: a share of the true neighbours, or exact.",
            metavar="R",
        ),
    ] = None,
    mmap: Annotated[
        bool, typer.Option("--mmap/--no-mmap", help="Map the vectors where FAISS can, or read them whole.")
    ] = True,
    threads: ThreadsOption = None,
    device: DeviceOption = "auto",
    trust_remote_code: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Find the documents nearest to a text.

    On a terminal: a table. In a pipe: lines of query, rank, score, id, text and kept columns, apart by tabs.
    With --json: lines of {"query", "rank", "id", "score", "text", kept columns}.

    --where holds before the search: k hits come back where so many documents meet it. Texts stand in single quotes,
    names with other characters than letters in `backquotes`.

    Example: retr query "怎么退货" "快递到哪了" -k 3 --where "category = '退款' and not text like '%微信%'"
    """
    progress = TerminalProgress(quiet)
    if k < 1:
        raise UsageError(f"-k is {k}, expected at least 1")
    if min_score is not None and not -1 <= min_score <= 1:
        raise UsageError(f"--min-score is {min_score}, expected a cosine from -1 to 1")
    check_texts(texts)
    wanted = None if recall is None else parse_recall(recall)
    opened = open_index(index, device, progress, trust_remote_code, mmap)
    write = write_json if as_json else write_table if sys.stdout.isatty() else write_lines
    queries = given_texts(texts, progress)
    asked = False
    while batch := list(itertools.islice(queries, _BATCH_QUERIES)):
        asked = True
        for text, hits in zip(
            batch, opened.search(batch, k, min_score=min_score, where=where, dedup=dedup, recall=wanted), strict=True
        ):
            write(text, hits)
        sys.stdout.flush()
    if not asked:
        raise UsageError("no query: standard input holds no text")


def check_texts(texts: Sequence[str], what: str = "query") -> None:
    """Refuse before an index or a model is opened what is no query."""
    for text in texts:
        if is_blank(text):
            raise UsageError(f"the {what} {text!r} is blank: expected a text")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError(
                f"the {what} {text!r} is not UTF-8: give it through stdin or fix the terminal's locale"
            ) from None
    if texts.count("-") > 1:
        raise UsageError("standard input (-) can be read once, and is named twice")


def given_texts(texts: Sequence[str], progress: TerminalProgress) -> Iterator[str]:
    """The texts themselves, and for - those of standard input."""
    for text in texts:
        if text != "-":
            yield text
            continue
        blank = 0
        for line in decoded_lines(sys.stdin.buffer, "standard input", option=""):
            stripped = line.rstrip("\r\n")
            if is_blank(stripped):
                blank += 1
            else:
                yield stripped
        if blank:
            progress.note(f"skipped {blank:,} blank lines of standard input")
