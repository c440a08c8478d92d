"""`retr eval`."""

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
from retrieval.cli.output import TerminalProgress, print_json
from retrieval.encoders.catalog import DEFAULT_MODEL
from retrieval.errors import UsageError
from retrieval.transforms.spec import AUTO, NONE, parse_transform

if TYPE_CHECKING:
    from retrieval.encoders.base import Encoder
    from retrieval.evaluation.evaluate import System
    from retrieval.transforms.base import Transform


def evaluate(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SET|FILE...",
            help="lcqmc, atec, bq, pawsx, sts-b, afqmc, stsb-en or sick; or a file (TSV, CSV, JSON Lines, Parquet) "
            "with columns sentence1, sentence2 and label (0 and 1, or grades).",
        ),
    ],
    data: Annotated[
        Path | None, typer.Option(envvar="RETR_DATA", help="Folder of the data sets.", metavar="DIR")
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Take sets that the folder has not from the Hugging Face hub, once.")
    ] = False,
    split: Annotated[
        str | None, typer.Option(help="Split that is measured: test, dev or train. Default: test; dev for afqmc.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="As for retr index; repeated, each is a row, compared with the first.", show_default=False),
    ] = None,
    index: Annotated[
        list[Path] | None,
        typer.Option("--index", "-i", help="Measure an index's own encoder and transform.", metavar="FOLDER"),
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Pooling of the models.")] = None,
    transform: Annotated[
        str | None,
        typer.Option(
            help="none, whiten-M, rotate-M, soft-M (M a number, or auto: chosen on what it is fitted on) or flow, of "
            "the models. Default: none."
        ),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            help="What the transform is fitted on: dev, train, or a file of texts or pairs. Default: dev.",
            metavar="SPLIT|FILE",
        ),
    ] = None,
    threshold_from: Annotated[
        str | None,
        typer.Option(
            help="Where the threshold of accuracy and F1 comes from: dev, train, a file of pairs, or none. "
            "Default: dev.",
            metavar="SPLIT|FILE",
        ),
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Resamples for the intervals; 0 for none.", min=0)] = 1000,
    device: DeviceOption = "auto",
    backend: BackendOption = "auto",
    precision: PrecisionOption = "auto",
    trust_remote_code: TrustOption = False,
    as_json: JsonOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table a set.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="A LaTeX tabular a set.")] = False,
    mteb: Annotated[
        Path | None,
        typer.Option(help="Write each set's result as the package mteb does: DIR/LCQMC.json.", metavar="DIR"),
    ] = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure how well cosines match labelled pairs: Pearson, Spearman, AUC, accuracy, F1, with 95 % intervals.

    The threshold of accuracy and F1 never comes from the pairs that are measured, and nothing is fitted on them.
    Nothing is downloaded unless --download asks for it; where a set can be had is said when it is missing.

    Example: retr eval lcqmc --data DIR --transform whiten-256
    """
    from retrieval.evaluation import report
    from retrieval.evaluation.datasets import DATASETS, SPLITS, fetch_dataset
    from retrieval.evaluation.evaluate import evaluate as run
    from retrieval.evaluation.evaluate import make_task
    from retrieval.evaluation.mteb import check_folder, check_tasks, write_mteb_results

    if as_json + as_markdown + as_latex > 1:
        raise UsageError("--json, --markdown and --latex exclude each other: give one")
    if split is not None and not any(source.lower() in DATASETS for source in sources):
        raise UsageError(f"--split {split} is for the sets {', '.join(DATASETS)}; a file is measured whole")
    progress = TerminalProgress(quiet)
    systems, needs_fit = [], False
    if model or not index:
        options = _Models(pool, transform, device, backend, precision, trust_remote_code, progress)
        systems += [options.system(name) for name in model or [DEFAULT_MODEL]]
        needs_fit = options.needs_fit
    elif pool is not None or transform is not None:
        option = f"--pool {pool}" if pool is not None else f"--transform {transform}"
        raise UsageError(f"{option} is for --model; an index has its own")
    if fit is not None and not needs_fit:
        raise UsageError(f"--fit {fit}: there is nothing to fit; give --transform whiten-M, rotate-M or soft-M")
    systems += [_index_system(path, device, trust_remote_code, progress) for path in index or []]
    if download:
        for dataset in (DATASETS[source.lower()] for source in sources if source.lower() in DATASETS):
            asked = (split or dataset.measured, "dev", fit, threshold_from)
            fetch_dataset(dataset.name, [name for name in SPLITS if name in asked], data, progress.note)
    tasks = [
        make_task(source, folder=data, split=split, threshold_from=threshold_from, fit=fit, needs_fit=needs_fit)
        for source in sources
    ]
    if mteb is not None:
        mteb = mteb.expanduser()
        check_folder(mteb)
        check_tasks([task.pairs for task in tasks])
    found = run(tasks, systems, resamples=bootstrap, distances=mteb is not None, progress=progress)
    if mteb is not None:
        for path in write_mteb_results([result for results in found for result in results], mteb):
            progress.note(f"written: {path}")
    for number, results in enumerate(found):
        if as_json:
            for result in results:
                print_json(report.as_json(result))
            continue
        write = report.as_markdown if as_markdown else report.as_latex if as_latex else report.as_table
        sys.stdout.write(("\n" if number else "") + write(results))


class _Models:
    """What the options say of every model."""

    def __init__(
        self,
        pool: str | None,
        transform: str | None,
        device: str,
        backend: str,
        precision: str,
        trust_remote_code: bool,
        progress: TerminalProgress,
    ) -> None:
        from retrieval.encoders.load import check_backend

        if transform == AUTO:
            raise UsageError(
                "--transform auto sees a corpus; to be measured, name one: none, whiten-M, rotate-M, soft-M"
            )
        check_backend(backend, precision, device)
        self._pool, self._spec = pool, parse_transform(transform or NONE)
        self._device, self._backend, self._precision = device, backend, precision
        self._trust, self._progress = trust_remote_code, progress
        self.needs_fit = self._spec is not None

    def system(self, name: str) -> System:
        """A model to be measured."""
        from retrieval.encoders.fusion import parse_fusion
        from retrieval.encoders.load import load_to_build, resolve_settings
        from retrieval.evaluation.evaluate import System

        settings = resolve_settings(name, pooling=self._pool)
        self.needs_fit |= any(term.centred for term in parse_fusion(name) or ())

        def load() -> tuple[Encoder, Transform | None, str]:
            encoder = load_to_build(
                settings,
                self._device,
                self._backend,
                self._precision,
                self._progress.note,
                trust_remote_code=self._trust,
            )
            return encoder, None, ""

        return System(name, load, self._spec)


def _index_system(path: Path, device: str, trust_remote_code: bool, progress: TerminalProgress) -> System:
    from retrieval.evaluation.evaluate import System
    from retrieval.index.folder import read_manifest
    from retrieval.search import Index

    folder = path.expanduser()
    read_manifest(folder)

    def load() -> tuple[Encoder, Transform | None, str]:
        opened = Index.open(folder, device=device, trust_remote_code=trust_remote_code, progress=progress)
        return opened.encoder, opened.transform, str(opened.manifest.transform["name"])

    return System(str(path), load)
