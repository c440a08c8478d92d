"""`retr reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retrieval.cli.options import BackendOption, DebugOption, DeviceOption, JsonOption, QuietOption, TrustOption
from retrieval.cli.output import TerminalProgress, print_json
from retrieval.errors import RetrError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retrieval.evaluation.charts import Chart
    from retrieval.evaluation.reproduce_report import Report

MARKDOWN, PAGE = "reproduce.md", "reproduce.html"


def reproduce(
    data: Annotated[
        Path | None, typer.Option(envvar="RETR_DATA", help="Folder of the data sets.", metavar="DIR")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the results; the same folder goes on.", metavar="FOLDER")
    ] = Path("reproduce"),
    table: Annotated[
        list[str] | None,
        typer.Option(help="lcqmc or stsb-en; repeat for both. Default: both.", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Rows by id, or all of a model (bert), apart by commas; repeatable.", metavar="ROW,..."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Weights: word2vec=FILE, elmo=FOLDER, bert=FOLDER, roberta, sbert, simbert, bert-en; or of one row, "
            "bert-cls=FOLDER. FOLDER may be a hub id or a name of retr models. Repeatable.",
            metavar="ROW=FOLDER",
        ),
    ] = None,
    fit: Annotated[
        str,
        typer.Option(
            help="What whitening and flow are fitted on: target (all sentences of the set that are there, as "
            "published), dev, train, or a file of texts or pairs. Labels are never read for it.",
            metavar="WHAT",
        ),
    ] = "target",
    nli: Annotated[
        str | None,
        typer.Option(
            help="The sentences of MNLI and SNLI (texts or pairs), for the rows fitted on them.", metavar="FILE"
        ),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Get weights from the hub that are not in its local cache.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure finished rows again.")] = False,
    bootstrap: Annotated[int, typer.Option(help="Resamples for the intervals; 0 for none.", min=0)] = 1000,
    device: DeviceOption = "auto",
    backend: BackendOption = "auto",
    precision: Annotated[
        str, typer.Option("--precision", help="float32, as published; auto, bf16 or int8.")
    ] = "float32",
    trust_remote_code: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure published tables again, row by row, the published figures beside ours.

    A row whose weights are not here says what it waits for, and the others go on. Finished rows are kept in the output
    folder: after a break the same command goes on. It holds results.json, reproduce.md and reproduce.html.

    Example: retr reproduce --data DIR --model word2vec=vectors.txt
    """
    from retrieval.evaluation import reproduce_report as report
    from retrieval.evaluation.published import TABLES
    from retrieval.evaluation.reproduce import reproduce as run
    from retrieval.evaluation.reproduce_rows import ReproduceOptions
    from retrieval.evaluation.results import RESULTS, finished

    if data is None:
        raise UsageError("the sets are looked for in a folder of data sets: give --data DIR, or set RETR_DATA")
    progress = TerminalProgress(quiet)
    tables = tuple(dict.fromkeys(table or TABLES))
    options = ReproduceOptions(
        data,
        output.expanduser(),
        tables,
        tuple(name for part in only or [] for name in part.split(",") if name),
        _models(model or []),
        fit,
        nli,
        download,
        fresh,
        bootstrap,
        device,
        backend,
        precision,
        trust_remote_code,
    )
    try:
        found = run(options, progress)
    except KeyboardInterrupt:
        progress.note(f"what is finished is kept in {output}: the same command goes on from there")
        raise
    reports = report.reports_of(found.records, tables)
    (options.output / MARKDOWN).write_text(report.as_markdown(reports), encoding="utf-8")
    (options.output / PAGE).write_text(report.as_html(reports, _charts(reports, progress)), encoding="utf-8")
    if as_json:
        for _, row in found.rows:
            print_json(found.records[row.id])
    else:
        sys.stdout.write(report.as_text(reports))
    progress.note(f"written to {output}: {RESULTS}, {MARKDOWN}, {PAGE}")
    if found.failed:
        raise RetrError(f"failed: {', '.join(found.failed)}; the reason stands above, and the other rows are kept")
    if not any(finished(found.records.get(row.id)) for _, row in found.rows):
        raise RetrError("no row was measured: what each waits for stands in the table's last lines")


def _models(given: Sequence[str]) -> dict[str, str]:
    models: dict[str, str] = {}
    for text in given:
        name, equals, source = text.partition("=")
        if not equals or not name or not source:
            raise UsageError(f"--model {text}: expected ROW=FOLDER, for example bert=FOLDER or bert-cls=FOLDER")
        if name in models:
            raise UsageError(f"--model {name}= is given twice: give it once")
        models[name] = source
    return models


def _charts(reports: Sequence[Report], progress: TerminalProgress) -> list[Chart]:
    try:
        return [report.chart() for report in reports]
    except RetrError as error:
        progress.note(f"the page is without its charts: {error}")
        return []
