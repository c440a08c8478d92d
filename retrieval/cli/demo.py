"""`retr demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retrieval.cli.build import index as build
from retrieval.cli.hits import write_table
from retrieval.cli.options import INDEXES, DebugOption, DeviceOption, QuietOption
from retrieval.cli.output import TerminalProgress
from retrieval.sample import corpus_file

QUESTIONS = ("快递一直没收到怎么办", "手机丢了怎么把号码保住", "出国以后还能上网吗")


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Index folder.")] = INDEXES / "demo",
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Index the sample corpus (help-desk questions of a shop and a phone carrier) and ask three questions.

    Example: retr demo
    """
    with corpus_file() as corpus:
        build([str(corpus)], output=output, id_column="id", keep="category", device=device, quiet=quiet)
    from retrieval.search import Index

    opened = Index.open(output, device=device, progress=TerminalProgress(quiet))
    for question, hits in zip(QUESTIONS, opened.search(QUESTIONS, k=5), strict=True):
        write_table(question, hits)
