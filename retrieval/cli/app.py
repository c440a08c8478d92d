"""The commands of `retr`."""

from __future__ import annotations

from typing import Annotated

import typer

from retrieval import __version__
from retrieval.cli.bench import bench
from retrieval.cli.build import index
from retrieval.cli.change import add, delete, reindex
from retrieval.cli.demo import demo
from retrieval.cli.evaluate import evaluate
from retrieval.cli.export import export
from retrieval.cli.info import info
from retrieval.cli.models import models
from retrieval.cli.paraphrase import paraphrase
from retrieval.cli.query import query
from retrieval.cli.reproduce import reproduce
from retrieval.cli.sweep import sweep
from retrieval.cli.train import train
from retrieval.cli.transform import transform

app = typer.Typer(
    name="retr",
    help="Semantic search over your own texts: encode, whiten, index, query.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"retr {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Semantic search over your own texts: encode, whiten, index, query.

    Example: retr index corpus.parquet, then: retr query "文本"
    """


for command in (index, query, add, delete, reindex, info, sweep, reproduce, models, demo, bench, paraphrase):
    app.command()(command)
app.command("eval")(evaluate)
app.add_typer(transform, name="transform")
app.add_typer(export, name="export")
app.add_typer(train, name="train")
