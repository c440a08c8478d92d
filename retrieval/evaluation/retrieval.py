"""Systems on retrieval tasks: encode once, search exactly for each transform, measure the rankings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import Encoder
from retrieval.encoders.fusion import FusionEncoder
from retrieval.errors import CorpusError, EncoderError, UsageError
from retrieval.evaluation.bootstrap import interval, resampled_means
from retrieval.evaluation.correlation import Floats
from retrieval.evaluation.datasets import DATASETS, SPLITS, is_test_file
from retrieval.evaluation.evaluate import SEED, read_texts
from retrieval.evaluation.measures import Value
from retrieval.evaluation.pairs import md5_of
from retrieval.evaluation.ranking import measure_names, measure_queries, without_relevant
from retrieval.evaluation.scoring import EncodedTexts
from retrieval.evaluation.task_sets import make_retrieval_task
from retrieval.evaluation.tasks import RetrievalTask, Source, source_of
from retrieval.index.vectors import VectorIndex
from retrieval.search import Index
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform
from retrieval.transforms.spec import AUTO_ROWS_A_DIMENSION, NONE, AutoSpec, Spec, TransformSpec
from retrieval.types import NoProgress, Progress, Qrels, Run

CUTOFFS, DEPTH = (1, 10), 100
_DOCUMENT_ROWS, _QUERY_ROWS = 8192, 1024
"""FAISS multiplies a block of queries at once: a quarter of this costs several times as much a query."""


@dataclass(frozen=True)
class Model:
    """An encoder with the transforms to be measured.

    `load` is told whether queries and documents are of one kind, and gives the encoder with a transform that is fitted
    already and its name, or None and "" to fit each of `specs` (None: no transform).
    """

    name: str
    load: Callable[[bool], tuple[Encoder, Transform | None, str]]
    specs: Sequence[Spec | None] = (None,)


@dataclass(frozen=True)
class Fitting:
    """Texts that a transform, or the means of a fusion, are fitted on."""

    texts: list[str]
    name: str


@dataclass(frozen=True)
class Judged:
    """What was measured of every system: the task, or the judgements alone where runs were made elsewhere."""

    title: str
    about: tuple[str, ...]
    sources: tuple[Source, ...]
    documents: int | None
    qrels: Qrels
    duplicates: Mapping[str, list[str]]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RankingResult:
    """One system on one task."""

    judged: Judged
    system: dict[str, Any]
    """name and transform; of an encoder also source, pooling, prompts, dimension, backend, precision, fitted_on."""
    values: dict[str, Value]
    """Means over the queries, by the names of `ranking.measure_names`."""
    per_query: Floats
    """Shape (queries, measures)."""
    resamples: int
    cutoffs: tuple[int, ...]
    baseline: str | None = None
    """The name of the first system, where this is a later one."""
    differences: dict[str, Value] | None = None
    """This minus the first, on the same resamples."""


def fitting_of(task: RetrievalTask, fit: str | None, folder: Path | None) -> Fitting:
    """What is fitted on what: the task's own documents, as `retr index` does, unless a split or a file is named.

    The documents are what is indexed; no query and no judgement is looked at.

    Raises
    ------
    UsageError
        `fit` names a test split, or a split where there is none.
    """
    if fit is None:
        return Fitting(list(task.documents.values()), f"the corpus ({len(task.documents):,} documents)")
    if fit in SPLITS:
        if fit == "test":
            raise UsageError("--fit test: nothing is learnt from a test split; use dev or train, or leave --fit out")
        if not task.split:
            raise UsageError(f"--fit {fit}: {task.name} has no splits; name a file, or leave --fit out")
        other = make_retrieval_task(task.name, folder=folder, split=fit)
        texts = list(other.documents.values())
        return Fitting(texts, f"{other.title} ({len(texts):,} texts)")
    path = Path(fit).expanduser()
    if task.name in DATASETS and path.is_file() and is_test_file(task.name, md5_of(path), folder):
        raise UsageError(f"--fit {fit} is {task.name} test: nothing is learnt from a test split; use dev or train")
    texts = read_texts(fit)
    return Fitting(texts, f"{fit} ({len(texts):,} texts)")


def evaluate_retrieval(
    tasks: Sequence[tuple[RetrievalTask, Fitting]],
    models: Sequence[Model],
    *,
    cutoffs: Sequence[int] = CUTOFFS,
    depth: int = DEPTH,
    resamples: int = 1000,
    progress: Progress | None = None,
    on_run: Callable[[RetrievalTask, dict[str, Any], Run], None] = lambda task, system, run: None,
) -> list[list[RankingResult]]:
    """Measure every model with each of its transforms: a list of results a task, in the order of the models.

    Parameters
    ----------
    depth : how many documents are retrieved a query, at least the largest cut-off.
    on_run : given each ranking before it is measured.

    Raises
    ------
    RetrError
        An encoder cannot be loaded, or a transform cannot be fitted.
    """
    progress = progress or NoProgress()
    found: list[list[RankingResult]] = [[] for _ in tasks]
    for model in models:
        loaded: dict[bool, tuple[Encoder, Transform | None, str]] = {}
        for (task, fitting), results in zip(tasks, found, strict=True):
            if task.symmetric not in loaded:
                loaded.clear()  # its memory, before the next is loaded
                loaded[task.symmetric] = model.load(task.symmetric)
            documents, queries = f"{len(task.documents):,} documents", f"{len(task.queries):,} queries"
            progress.note(f"{model.name} on {task.title}: {queries}, {documents}")
            judged = _judged(task)
            for system, run in _runs(task, fitting, model, *loaded[task.symmetric], depth, progress):
                on_run(task, system, run)
                results.append(_result(judged, system, run, cutoffs, depth, resamples, results))
    return found


def search_index(index: Index, queries: Mapping[str, str], depth: int = DEPTH) -> Run:
    """Ask an index of its own documents, as `retr query` does.

    Parameters
    ----------
    queries : query_id -> text.
    depth : documents a query.
    """
    hits = index.search(list(queries.values()), k=depth)
    return {query: {hit.doc_id: hit.score for hit in found} for query, found in zip(queries, hits, strict=True)}


def evaluate_runs(
    path: Path,
    qrels: Qrels,
    runs: Sequence[tuple[dict[str, Any], Run]],
    *,
    cutoffs: Sequence[int] = CUTOFFS,
    depth: int | None = None,
    resamples: int = 1000,
) -> list[RankingResult]:
    """Measure runs that were made already.

    Parameters
    ----------
    path : of the qrels.
    runs : systems, each described by `name` and `transform` at least, with what they found.
    depth : documents beyond it do not count for MAP; None: all that a run holds.

    Raises
    ------
    CorpusError
        No document is relevant, or a run answers none of the judged queries.
    """
    lost = set(without_relevant(qrels))
    kept = {query: found for query, found in qrels.items() if query not in lost}
    if not kept:
        raise CorpusError(f"{path} judges no document relevant for any query: there is nothing to measure")
    notes = ["judging gap: documents that nobody judged count as wrong: values are lower bounds"]
    if lost:
        notes.append(f"queries without a relevant document, left out: {len(lost):,}")
    for system, run in runs:
        name, answered = system["name"], len(kept.keys() & run.keys())
        if not answered:
            raise CorpusError(
                f"{name} answers none of the queries that {path} judges: the ids differ, for example "
                f"{next(iter(run), None)!r} there and {next(iter(kept))!r} here"
            )
        if answered < len(kept):
            notes.append(f"queries that {name} does not answer, and that count as 0: {len(kept) - answered:,}")
        if more := len(run.keys() - qrels.keys()):
            notes.append(f"queries of {name} that nobody judged, left out: {more:,}")
    judged = Judged(str(path), (), (source_of(path),), None, kept, {}, tuple(notes))
    results: list[RankingResult] = []
    for system, run in runs:
        results.append(_result(judged, system, run, cutoffs, depth, resamples, results))
    return results


def _judged(task: RetrievalTask) -> Judged:
    return Judged(task.title, (task.kind,), task.sources, len(task.documents), task.qrels, task.duplicates, task.notes)


def _result(
    judged: Judged,
    system: dict[str, Any],
    run: Run,
    cutoffs: Sequence[int],
    depth: int | None,
    resamples: int,
    before: Sequence[RankingResult],
) -> RankingResult:
    names = measure_names(cutoffs, depth)
    per_query = measure_queries(judged.qrels, run, names)
    values = _values(names, per_query, resamples)
    result = RankingResult(judged, system, values, per_query, resamples, tuple(cutoffs))
    if before:
        first = before[0]
        differences = _values(names, per_query - first.per_query, resamples)
        result = replace(result, baseline=first.system["name"], differences=differences)
    return result


def _values(names: Sequence[str], per_query: Floats, resamples: int) -> dict[str, Value]:
    """Means with their intervals. Equal numbers of queries draw the same ones, so differences are paired."""
    means = per_query.mean(axis=0)
    samples = resampled_means(per_query, resamples, SEED) if resamples else None
    return {
        name: Value(float(mean), interval(samples[:, place]) if samples is not None else None)
        for place, (name, mean) in enumerate(zip(names, means, strict=True))
    }


def _runs(
    task: RetrievalTask,
    fitting: Fitting,
    model: Model,
    encoder: Encoder,
    transform: Transform | None,
    transform_name: str,
    depth: int,
    progress: Progress,
) -> Any:
    """(system, run) of each transform, from embeddings that are computed once."""
    fitted_on = None
    if isinstance(encoder, FusionEncoder) and any(part.centred for part in encoder.parts) and not transform_name:
        encoder.fit_means(fitting.texts)
        fitted_on = fitting.name
    settings = encoder.settings
    fit_texts = fitting.texts if any(spec is not None for spec in model.specs) else []
    texts = [*task.documents.values(), *fit_texts]
    asked = list(task.queries.values())
    if settings.query_prompt == settings.document_prompt:
        encoded = queries = EncodedTexts(encoder, [*texts, *asked], progress)
    else:
        encoded = EncodedTexts(encoder, texts, progress)
        queries = EncodedTexts(encoder, asked, progress, kind="query")
    if encoded.without_vector == len(encoded):
        raise EncoderError(f"{model.name} knows nothing of the texts of {task.title}: choose another model")
    if encoded.without_vector:
        progress.note(f"{encoded.without_vector:,} texts of which {model.name} knows nothing: they are never found")
    for wanted in model.specs:
        spec = encoded.choose(wanted, fit_texts, progress) if isinstance(wanted, AutoSpec) else wanted
        if isinstance(spec, TransformSpec) and len(set(fit_texts)) < AUTO_ROWS_A_DIMENSION * spec.m:
            progress.note(f"{spec} is fitted on {len(set(fit_texts)):,} texts: few for so many dimensions")
        fitted = encoded.fit(spec, fit_texts) if spec is not None else transform
        system = {
            "name": model.name,
            "transform": transform_name or (str(spec) if spec else NONE),
            "source": settings.source,
            "pooling": settings.pooling,
            "query_prompt": settings.query_prompt,
            "document_prompt": settings.document_prompt,
            "dimension": encoder.dimension if fitted is None else fitted.m,
            "backend": encoder.backend,
            "precision": encoder.precision,
            "fingerprint": encoder.fingerprint,
            "fitted_on": fitting.name if spec is not None else fitted_on,
        }
        vectors = unit_vectors(queries.of(asked), fitted)
        yield system, _search(task, encoded, vectors, fitted, depth, progress)


def _search(
    task: RetrievalTask,
    encoded: EncodedTexts,
    queries: NDArray[np.float32],
    transform: Transform | None,
    depth: int,
    progress: Progress,
) -> Run:
    """Exact search over all documents; a query's own document is left out, and one without a vector finds nothing."""
    names, texts = list(task.documents), list(task.documents.values())
    index = VectorIndex(queries.shape[1], numbered=True)
    for start in range(0, len(texts), _DOCUMENT_ROWS):
        index.add(unit_vectors(encoded.of(texts[start : start + _DOCUMENT_ROWS]), transform))
    run: Run = {}
    asked = list(task.queries)
    with progress.stage("searching", "queries", len(asked)) as advance:
        for start in range(0, len(asked), _QUERY_ROWS):
            block = queries[start : start + _QUERY_ROWS]
            scores, rows = index.search(block, depth + bool(task.own))
            for place, query in enumerate(asked[start : start + _QUERY_ROWS]):
                if not block[place].any():
                    continue
                hits = zip(rows[place].tolist(), scores[place].tolist(), strict=True)
                found = [(names[row], score) for row, score in hits if names[row] != task.own.get(query)]
                run[query] = dict(found[:depth])
            advance(len(block))
    return run
