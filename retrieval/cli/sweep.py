"""`retr sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retrieval.cli.options import (
    BackendOption,
    DebugOption,
    DeviceOption,
    JsonOption,
    PrecisionOption,
    QuietOption,
    TrustOption,
)
from retrieval.cli.output import TerminalProgress, counted, print_json
from retrieval.encoders.catalog import DEFAULT_MODEL
from retrieval.errors import UsageError

if TYPE_CHECKING:
    from retrieval.encoders.base import Encoder, EncoderSettings


def sweep(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SET|FILE", help="A set that retr eval knows, or a file of pairs: sentence1, sentence2, label."
        ),
    ],
    data: Annotated[
        Path | None, typer.Option(envvar="RETR_DATA", help="Folder of the data sets.", metavar="DIR")
    ] = None,
    model: Annotated[str, typer.Option(help="As for retr index.")] = DEFAULT_MODEL,
    pool: Annotated[
        str | None,
        typer.Option(
            help="Poolings, apart by commas. Default, of a transformer: last-avg, last2-avg, first-last-avg, cls, "
            "layers-0, all from one pass, and the model's own.",
            metavar="P,...",
        ),
    ] = None,
    transform: Annotated[
        str | None,
        typer.Option(
            help="none, flow, whiten-M, soft-M, rotate-M, whiten-M:beta=..,gamma=..,eps=..; whiten, soft and rotate "
            "without a number take each of --dims. Default: none, whiten, soft, rotate.",
            metavar="T,...",
        ),
    ] = None,
    dims: Annotated[
        str | None, typer.Option(help="Dimensions that are kept. Default: all, 256, 128, 64.", metavar="M,...")
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            help="What transforms are fitted on: dev, train, or a file of texts or pairs. Default: dev.",
            metavar="SPLIT|FILE",
        ),
    ] = None,
    choose_on: Annotated[
        str | None,
        typer.Option(
            help="Labelled pairs on which the best is marked: dev, train, a file of pairs, or none. Default: dev.",
            metavar="SPLIT|FILE",
        ),
    ] = None,
    chart: Annotated[
        Path | None,
        typer.Option(
            help="Write a heat map, or curves where there is one pooling, as PNG or SVG.", metavar="FILE.png|svg"
        ),
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Resamples for the best's interval; 0 for none.", min=0)] = 1000,
    device: DeviceOption = "auto",
    backend: BackendOption = "auto",
    precision: PrecisionOption = "float32",  # what is compared lies apart by less than bfloat16 rounds
    trust_remote_code: TrustOption = False,
    as_json: JsonOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="A LaTeX tabular.")] = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure poolings x transforms x dimensions on labelled pairs, from embeddings computed once.

    The best is marked by its Spearman on the dev split, never on the pairs that are measured, whose figure stands
    beside it. Embeddings stay in the user's cache: a sweep that was broken off goes on, another one needs no encoding.

    Example: retr sweep lcqmc --data DIR --chart sweep.svg
    """
    from retrieval.encoders.fusion import parse_fusion
    from retrieval.encoders.load import check_backend, load_to_build, resolve_settings
    from retrieval.evaluation import sweep_report
    from retrieval.evaluation.charts import check_chart_file
    from retrieval.evaluation.grid import parse_poolings, parse_transforms
    from retrieval.evaluation.stored import folder_bytes, sweeps_folder
    from retrieval.evaluation.sweep import make_passes, make_sweep_task
    from retrieval.evaluation.sweep import sweep as run

    if as_json + as_markdown + as_latex > 1:
        raise UsageError("--json, --markdown and --latex exclude each other: give one")
    check_backend(backend, precision, device)
    transforms = parse_transforms(transform, dims)
    poolings = parse_poolings(pool) if pool is not None else None
    settings = resolve_settings(model, pooling=poolings[0] if poolings else None)
    if chart is not None:
        check_chart_file(chart)
    centred = any(term.centred for term in parse_fusion(model) or ())
    if fit is not None and not (transforms.need_fit or centred):
        raise UsageError(f"--fit {fit}: there is nothing to fit; leave it out, or give another --transform than none")
    task = make_sweep_task(source, folder=data, choose_on=choose_on, fit=fit, needs_fit=transforms.need_fit or centred)
    progress = TerminalProgress(quiet)

    def load(wanted: EncoderSettings) -> Encoder:
        return load_to_build(wanted, device, backend, precision, progress.note, trust_remote_code=trust_remote_code)

    passes = make_passes(settings, poolings, progress.note)
    found = run(task, model, passes, load, transforms, resamples=bootstrap, progress=progress)
    progress.note(f"{counted(len(found.cells), 'cell')} measured in {found.seconds:.1f} s, encoding apart")
    if as_json:
        for record in sweep_report.as_json(found):
            print_json(record)
    else:
        write = (
            sweep_report.as_markdown if as_markdown else sweep_report.as_latex if as_latex else sweep_report.as_table
        )
        sys.stdout.write(write(found))
    if chart is not None and (missing := sweep_report.as_chart(found).save(chart)):
        progress.note(f"{chart}: no font here has {missing[:20]}; a chart as .svg shows them")
    kept = sweeps_folder()
    progress.note(f"embeddings are kept for other sweeps in {kept} ({folder_bytes(kept) / 1e6:,.0f} MB in all)")
