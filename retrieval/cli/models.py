"""`retr models`."""

from __future__ import annotations

import sys
from dataclasses import asdict

from retrieval.cli.options import DebugOption, JsonOption
from retrieval.cli.output import print_json, print_line
from retrieval.encoders.catalog import entries
from retrieval.encoders.ready import readiness


def models(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the catalog of models, and which can load here and now.

    Any Hugging Face or sentence-transformers folder, hub id, ELMo folder, file of word vectors, or fusion such as
    a+0.3*b works as --model too.

    Example: retr models
    """
    rows = [{**asdict(entry), "transform": entry.transform, "here": readiness(entry)} for entry in entries()]
    if as_json:
        for row in rows:
            print_json(row)
        return
    columns = ("name", "source", "family", "pooling", "transform", "here")
    if not sys.stdout.isatty():
        for row in rows:
            print_line(*(str(row[column]) for column in columns))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns)
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    Console(highlight=False).print(table, markup=False)
