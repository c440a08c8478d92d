"""`retr eval --retrieval`, and `retr eval --qrels FILE --run FILE`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval.cli.output import TerminalProgress, print_json
from retrieval.errors import CorpusError, UsageError

if TYPE_CHECKING:
    from retrieval.evaluation.retrieval import Model, RankingResult
    from retrieval.evaluation.tasks import RetrievalTask
    from retrieval.types import Run


@dataclass(frozen=True)
class RetrievalOptions:
    """The options of `retr eval` that are for retrieval alone."""

    retrieval: bool
    distractors: Path | None
    corpus: Path | None
    queries: Path | None
    qrels: Path | None
    run: list[Path]
    k: str
    depth: int | None
    document_prompt: str | None
    run_out: Path | None
    qrels_out: Path | None
    task_out: Path | None

    @property
    def wanted(self) -> bool:
        """Whether search is measured, and not pairs."""
        return self.retrieval or bool(self.run) or self._own != [None, None, None]

    @property
    def _own(self) -> list[Path | None]:
        return [self.corpus, self.queries, self.qrels]

    def check_unused(self) -> None:
        """Raise UsageError for an option that means nothing without --retrieval."""
        for name in ("distractors", "depth", "document_prompt", "run_out", "qrels_out", "task_out"):
            if getattr(self, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} is for --retrieval: give that too")

    def cutoffs(self) -> tuple[int, ...]:
        """The numbers of --k, rising."""
        parts = [part.strip() for part in self.k.split(",")]
        if not all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
            raise UsageError(f"--k {self.k}: expected whole numbers from 1 on, apart by commas, for example 1,10")
        cutoffs = tuple(sorted({int(part) for part in parts}))
        if self.depth is not None and self.depth < cutoffs[-1]:
            raise UsageError(
                f"--depth {self.depth} is less than the largest --k, {cutoffs[-1]}: nothing is ranked there"
            )
        return cutoffs

    def tasks(self, sources: list[str], folder: Path | None, split: str | None) -> list[RetrievalTask]:
        """What is to be searched: the sets and folders named, or the user's own three files."""
        from retrieval.evaluation.task_files import files_task
        from retrieval.evaluation.task_sets import make_retrieval_task

        corpus, queries, qrels = self._own
        if self._own == [None, None, None]:
            if not sources:
                raise UsageError(
                    "--retrieval: from what? Name a set such as lcqmc, or give --corpus, --queries, --qrels"
                )
            return [
                make_retrieval_task(source, folder=folder, split=split, distractors=self.distractors)
                for source in sources
            ]
        if corpus is None or queries is None or qrels is None:
            raise UsageError("own files are measured with --corpus, --queries and --qrels: give all three")
        if sources or split or self.distractors:
            named = sources[0] if sources else f"--split {split}" if split else f"--distractors {self.distractors}"
            raise UsageError(f"{named} is for sets; --corpus, --queries and --qrels name all that is measured")
        return [files_task(corpus, queries, qrels)]


def measure_search(
    options: RetrievalOptions,
    tasks: list[RetrievalTask],
    models: list[Model],
    *,
    fit: str | None,
    folder: Path | None,
    resamples: int,
    form: str,
    progress: TerminalProgress,
) -> None:
    """Search every task with every model, write the files that are asked for, and print what was measured."""
    from retrieval.evaluation.retrieval import DEPTH, evaluate_retrieval, fitting_of
    from retrieval.evaluation.task_files import save_task
    from retrieval.evaluation.trec import check_ids, write_qrels, write_run

    cutoffs = options.cutoffs()
    rows = sum(len(model.specs) for model in models)
    for name, path, count, what in (
        ("--run-out", options.run_out, rows * len(tasks), "rankings"),
        ("--qrels-out", options.qrels_out, len(tasks), "tasks"),
        ("--task-out", options.task_out, len(tasks), "tasks"),
    ):
        if path is not None and count > 1:
            raise UsageError(f"{name} {path} holds one, and there are {count} {what}: name one")
    fitted = [(task, fitting_of(task, fit, folder)) for task in tasks]
    if options.task_out is not None:
        save_task(tasks[0], options.task_out)
    if options.qrels_out is not None:
        write_qrels(options.qrels_out, tasks[0].qrels)
    if options.run_out is not None:
        check_ids({query: dict.fromkeys(tasks[0].documents, 0) for query in tasks[0].queries})

    def keep(task: RetrievalTask, system: dict[str, Any], run: Run) -> None:
        if options.run_out is not None:
            write_run(options.run_out, run, f"{Path(system['name']).name}-{system['transform']}")

    depth = options.depth or max(DEPTH, cutoffs[-1])
    found = evaluate_retrieval(
        fitted, models, cutoffs=cutoffs, depth=depth, resamples=resamples, progress=progress, on_run=keep
    )
    for number, results in enumerate(found):
        _show(results, form, blank_first=number > 0)


def measure_runs(options: RetrievalOptions, *, resamples: int, form: str) -> None:
    """Score the runs of other programs, and print what was measured."""
    from retrieval.evaluation.retrieval import evaluate_runs
    from retrieval.evaluation.trec import read_qrels, read_run

    if options.qrels is None:
        raise UsageError(f"--run {options.run[0]} is scored against judgements: give --qrels FILE too")
    for name in ("corpus", "queries", "distractors", "document_prompt", "run_out", "qrels_out", "task_out"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for a search of our own, and --run brings its results")
    cutoffs = options.cutoffs()
    if len({str(path) for path in options.run}) < len(options.run):
        raise UsageError("the same --run is given twice: name each once")
    qrels = read_qrels(options.qrels)
    runs = [({"name": str(path), "transform": None}, read_run(path)) for path in options.run]
    results = evaluate_runs(options.qrels, qrels, runs, cutoffs=cutoffs, depth=options.depth, resamples=resamples)
    _show(results, form)


def measure_indexes(
    options: RetrievalOptions,
    paths: list[Path],
    *,
    device: str,
    trust_remote_code: bool,
    resamples: int,
    form: str,
    progress: TerminalProgress,
) -> None:
    """Ask indexes of their own documents, and print how well the answers agree with judgements."""
    from retrieval.evaluation.retrieval import DEPTH, evaluate_runs, search_index
    from retrieval.evaluation.task_files import read_documents
    from retrieval.evaluation.trec import read_qrels, write_run
    from retrieval.search import Index

    if options.queries is None or options.qrels is None:
        raise UsageError("an index is asked of its own documents with --queries and --qrels: give both")
    if options.run_out is not None and len(paths) > 1:
        raise UsageError(f"--run-out {options.run_out} holds one, and there are {len(paths)} rankings: name one")
    for name in ("distractors", "document_prompt", "qrels_out", "task_out"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is not for an index that is asked of its own documents")
    cutoffs = options.cutoffs()
    depth = options.depth or max(DEPTH, cutoffs[-1])
    qrels = read_qrels(options.qrels)
    asked = read_documents(options.queries)
    queries = {query: text for query, text in asked.items() if query in qrels}
    if not queries:
        raise CorpusError(
            f"{options.qrels} judges none of the queries of {options.queries}: the ids differ, for example "
            f"{next(iter(qrels))!r} there and {next(iter(asked))!r} here"
        )
    runs = []
    for path in paths:
        index = Index.open(path.expanduser(), device=device, trust_remote_code=trust_remote_code, progress=progress)
        progress.note(f"{path}: {len(queries):,} judged queries, {len(index):,} documents")
        run = search_index(index, queries, depth)
        if options.run_out is not None:
            write_run(options.run_out, run, path.name)
        system = {"name": str(path), "transform": index.manifest.transform["name"], "documents": len(index)}
        runs.append((system, run))
    results = evaluate_runs(options.qrels, qrels, runs, cutoffs=cutoffs, depth=depth, resamples=resamples)
    _show(results, form)


def _show(results: Sequence[RankingResult], form: str, blank_first: bool = False) -> None:
    from retrieval.evaluation import ranking_report, tables

    if form == "json":
        for result in results:
            print_json(ranking_report.as_json(result))
        return
    write = {"table": tables.as_table, "markdown": tables.as_markdown, "latex": tables.as_latex}[form]
    sys.stdout.write(("\n" if blank_first else "") + ranking_report.as_text(results, write))
