"""Hits as JSON lines, as plain lines, or as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from retrieval.cli.output import print_json, print_line, visible
from retrieval.types import Hit


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
    """A table a query, for people."""
    table = Table(title=visible(query), title_justify="left", title_style="bold")
    table.add_column("", justify="right")
    table.add_column("score", justify="right")
    table.add_column("id", overflow="fold")
    table.add_column("text", ratio=1, overflow="fold")
    kept: list[str] = list(hits[0].fields) if hits else []
    for name in kept:
        table.add_column(visible(name), overflow="fold")
    for rank, hit in enumerate(hits, 1):
        cells: list[Any] = [rank, f"{hit.score:.4f}", hit.doc_id, _shortened(hit.text)]
        values = ("" if hit.fields[name] is None else hit.fields[name] for name in kept)
        table.add_row(*(visible(cell) for cell in [*cells, *values]))
    output = Console(highlight=False, markup=False)
    output.print(table if hits else f"{visible(query)}: no hit")


def _shortened(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[:limit] + "..."
