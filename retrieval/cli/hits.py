"""Hits as JSON lines, as plain lines, or as a table."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.cli.output import print_json, print_line, shortened, visible
from retrieval.types import Hit

_TEXT_LIMIT, _KEPT_LIMIT = 300, 60  # characters
_WIDTH, _KEPT_WIDTH = 50, 12  # columns of a terminal


def write_json(query: str, hits: Sequence[Hit]) -> None:
    """A JSON object a hit."""
    for rank, hit in enumerate(hits, 1):
        record = {"query": query, "rank": rank, "id": hit.doc_id, "score": round(hit.score, 6), "text": hit.text}
        print_json({**record, **hit.fields})


def write_lines(query: str, hits: Sequence[Hit]) -> None:
    """A line a hit: query, rank, score, id, text, kept columns, apart by tabs."""
    for rank, hit in enumerate(hits, 1):
        kept = ("" if value is None else str(value) for value in hit.fields.values())
        print_line(query, str(rank), f"{hit.score:.4f}", hit.doc_id, hit.text, *kept)


def write_table(query: str, hits: Sequence[Hit]) -> None:
    """A table a query, for people; kept columns only where the terminal is wide enough for them."""
    from rich.console import Console
    from rich.table import Table

    output = Console(highlight=False, markup=False)
    if not hits:
        output.print(f"{shortened(query, _TEXT_LIMIT)}: no hit")
        return
    kept = list(hits[0].fields)
    if output.width < _WIDTH + _KEPT_WIDTH * len(kept):
        kept = []
    table = Table(title=shortened(query, _TEXT_LIMIT), title_justify="left", title_style="bold")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True, min_width=6)
    table.add_column("id", overflow="fold", min_width=4)
    table.add_column("text", ratio=1, overflow="fold", min_width=12)
    for name in kept:
        table.add_column(visible(name), overflow="fold", min_width=4)
    for rank, hit in enumerate(hits, 1):
        values = ("" if hit.fields[name] is None else hit.fields[name] for name in kept)
        table.add_row(
            str(rank),
            f"{hit.score:.4f}",
            shortened(hit.doc_id, _KEPT_LIMIT),
            shortened(hit.text, _TEXT_LIMIT),
            *(shortened(value, _KEPT_LIMIT) for value in values),
        )
    output.print(table)
