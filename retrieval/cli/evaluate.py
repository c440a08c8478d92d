"""`retr eval`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from retrieval.cli.evaluate_retrieval import RetrievalOptions, measure_indexes, measure_runs, measure_search
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
from retrieval.cli.systems import Models, index_model, index_system
from retrieval.encoders.catalog import DEFAULT_MODEL
from retrieval.errors import UsageError
from retrieval.transforms.spec import NONE


def evaluate(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SET|FILE...",
            help="lcqmc, atec, bq, pawsx, sts-b, afqmc, stsb-en or sick; or a file (TSV, CSV, JSON Lines, Parquet) "
            "with columns sentence1, sentence2 and label (0 and 1, or grades). With --retrieval also cmrc2018, qbqtc, "
            "or a folder as BEIR has it.",
            show_default=False,
        ),
    ] = None,
    retrieval: Annotated[
        bool, typer.Option("--retrieval", help="Measure search: recall@k, MRR@k, nDCG@k, MAP. Pairs are known items.")
    ] = False,
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
        list[str] | None,
        typer.Option(
            help="none, whiten-M, rotate-M, soft-M (M a number, or auto: chosen on what it is fitted on) or flow, of "
            "the models. Default: none. With --retrieval repeated: a row each, from embeddings computed once.",
            show_default=False,
        ),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            help="What the transform is fitted on: dev, train, or a file of texts or pairs. Default: dev; "
            "with --retrieval the documents that are searched.",
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
    distractors: Annotated[
        Path | None,
        typer.Option(help="Retrieval: texts among which the sentences of pairs are hidden.", metavar="FILE"),
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Retrieval: own documents, with ids (_id, id or doc_id).", metavar="FILE")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="Retrieval: own queries, with ids (_id, id or query_id).", metavar="FILE")
    ] = None,
    qrels: Annotated[
        Path | None, typer.Option(help="Retrieval: judgements, as TREC's or BEIR's qrels.", metavar="FILE")
    ] = None,
    run: Annotated[
        list[Path] | None,
        typer.Option(
            help="Retrieval: a TREC run of any system, scored against --qrels; repeated, each is a row.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    k: Annotated[str, typer.Option("--k", help="Retrieval: cut-offs, apart by commas.", metavar="K,...")] = "1,10",
    depth: Annotated[
        int | None,
        typer.Option(help="Retrieval: documents a query that are ranked. Default: 100; all of a --run.", min=1),
    ] = None,
    document_prompt: Annotated[
        str | None,
        typer.Option(help="Retrieval: put before each document. Default: what the model was made for.", metavar="TEXT"),
    ] = None,
    run_out: Annotated[
        Path | None, typer.Option(help="Retrieval: write the ranking as a TREC run.", metavar="FILE")
    ] = None,
    qrels_out: Annotated[
        Path | None, typer.Option(help="Retrieval: write the judgements as TREC qrels.", metavar="FILE")
    ] = None,
    task_out: Annotated[
        Path | None,
        typer.Option(help="Retrieval: write documents, queries and judgements as BEIR has them.", metavar="FOLDER"),
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

    With --retrieval it measures search instead: recall@k, MRR@k, nDCG@k and MAP over queries. Pairs become known items,
    the first sentence of each positive pair asked of all sentences; --qrels with --run scores what any system found.

    Example: retr eval lcqmc --data DIR --transform whiten-256

    Example: retr eval --retrieval lcqmc --data DIR --distractors titles.txt --transform none --transform rotate-256
    """
    from retrieval.evaluation import report
    from retrieval.evaluation.evaluate import evaluate as measure
    from retrieval.evaluation.evaluate import make_task
    from retrieval.evaluation.mteb import check_folder, check_tasks, write_mteb_results

    if as_json + as_markdown + as_latex > 1:
        raise UsageError("--json, --markdown and --latex exclude each other: give one")
    form = "json" if as_json else "markdown" if as_markdown else "latex" if as_latex else "table"
    progress = TerminalProgress(quiet)
    search = RetrievalOptions(
        retrieval,
        distractors,
        corpus,
        queries,
        qrels,
        run or [],
        k,
        depth,
        document_prompt,
        run_out,
        qrels_out,
        task_out,
    )
    if search.run:
        encoding = {
            "SET": sources,
            "--model": model,
            "-i": index,
            "--transform": transform,
            "--fit": fit,
            "--pool": pool,
        }
        for name, given in encoding.items():
            if given:
                shown = given if isinstance(given, str) else given[0]
                raise UsageError(f"{name} {shown}: --run brings its results; nothing is encoded or searched")
        measure_runs(search, resamples=bootstrap, form=form)
        return
    models = None
    if model or not index:
        models = Models(pool, transform or [NONE], device, backend, precision, trust_remote_code, progress)
    else:
        for name, value in (("--pool", pool), ("--transform", transform), ("--document-prompt", document_prompt)):
            if value:
                shown = value if isinstance(value, str) else value[0]
                raise UsageError(f"{name} {shown} is for --model; an index has its own")
    names, paths = model or [DEFAULT_MODEL], index or []
    if search.wanted:
        if threshold_from is not None:
            raise UsageError(f"--threshold-from {threshold_from} is for pairs, and not for --retrieval")
        measured = [models.model(name, document_prompt) for name in names] if models else []
        _check_fit(fit, models)
        if models is None and search.corpus is None and not sources:
            measure_indexes(
                search,
                paths,
                device=device,
                trust_remote_code=trust_remote_code,
                resamples=bootstrap,
                form=form,
                progress=progress,
            )
            return
        measured += [index_model(path, device, trust_remote_code, progress) for path in paths]
        tasks = search.tasks(sources or [], data, split)
        measure_search(search, tasks, measured, fit=fit, folder=data, resamples=bootstrap, form=form, progress=progress)
        return
    search.check_unused()
    _check_sources(sources or [], split)
    if transform and len(transform) > 1:
        raise UsageError(f"--transform {transform[1]}: pairs are measured with one transform; --retrieval takes more")
    systems = [models.system(name) for name in names] if models else []
    _check_fit(fit, models)
    systems += [index_system(path, device, trust_remote_code, progress) for path in paths]
    needs_fit = models is not None and models.needs_fit
    if download:
        _fetch(sources or [], split, fit, threshold_from, data, progress)
    pairs = [
        make_task(source, folder=data, split=split, threshold_from=threshold_from, fit=fit, needs_fit=needs_fit)
        for source in sources or []
    ]
    if mteb is not None:
        mteb = mteb.expanduser()
        check_folder(mteb)
        check_tasks([task.pairs for task in pairs])
    found = measure(pairs, systems, resamples=bootstrap, distances=mteb is not None, progress=progress)
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


def _check_sources(sources: list[str], split: str | None) -> None:
    from retrieval.evaluation.datasets import DATASETS

    if not sources:
        raise UsageError(f"nothing to measure: name one of {', '.join(DATASETS)}, or a file of pairs")
    if split is not None and not any(source.lower() in DATASETS for source in sources):
        raise UsageError(f"--split {split} is for the sets {', '.join(DATASETS)}; a file is measured whole")


def _fetch(
    sources: list[str],
    split: str | None,
    fit: str | None,
    threshold_from: str | None,
    data: Path | None,
    progress: TerminalProgress,
) -> None:
    """Download the splits that the evaluation reads."""
    from retrieval.evaluation.datasets import DATASETS, SPLITS, fetch_dataset

    for dataset in (DATASETS[source.lower()] for source in sources if source.lower() in DATASETS):
        asked = (split or dataset.measured, "dev", fit, threshold_from)
        fetch_dataset(dataset.name, [name for name in SPLITS if name in asked], data, progress.note)


def _check_fit(fit: str | None, models: Models | None) -> None:
    if fit is not None and not (models and models.needs_fit):
        raise UsageError(f"--fit {fit}: there is nothing to fit; give --transform whiten-M, rotate-M or soft-M")
