"""Systems on sets of pairs: what is measured, where the threshold comes from and what a transform is fitted on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from retrieval.corpus.files import find_files
from retrieval.corpus.reader import Corpus, CorpusOptions
from retrieval.encoders.base import Encoder
from retrieval.encoders.fusion import FusionEncoder
from retrieval.errors import CorpusError, EncoderError, UsageError
from retrieval.evaluation.correlation import attainable_spearman, best_thresholds, is_binary, pearson, spearman
from retrieval.evaluation.datasets import DATASETS, SPLITS, is_test_file, load_dataset
from retrieval.evaluation.measures import Measures, Thresholds, Value, difference, measure
from retrieval.evaluation.pairs import Pairs, md5_of, read_pairs
from retrieval.evaluation.scoring import EncodedTexts
from retrieval.transforms.base import Transform
from retrieval.transforms.spec import NONE, AutoSpec, Spec
from retrieval.types import NoProgress, Progress

SEED = 0


@dataclass(frozen=True)
class Task:
    """Pairs to be measured, with what is learnt from other sentences than theirs."""

    pairs: Pairs
    tuning: Pairs | None
    """The pairs that the threshold comes from."""
    why_no_threshold: str
    fit_texts: list[str] | None
    """Distinct sentences to fit a transform, or the means of a fusion, on."""
    fit_name: str


@dataclass(frozen=True)
class System:
    """What scores the pairs.

    `load` gives the encoder with a transform that is fitted already and its name, or None and "" to fit `spec`.
    """

    name: str
    load: Callable[[], tuple[Encoder, Transform | None, str]]
    spec: Spec | None = None


@dataclass(frozen=True)
class Result:
    """One system on one set of pairs."""

    task: Task
    system: dict[str, Any]
    """name, source, pooling, dimension, backend, precision, fingerprint, transform, fitted_on."""
    measures: Measures
    thresholds: Thresholds | None
    resamples: int
    baseline: str | None = None
    """The name of the first system, where this is a later one."""
    differences: dict[str, Value] | None = None
    """This minus the first, on the same resamples."""
    seconds: float = 0
    """From texts to measures."""
    distance_correlations: dict[str, float | None] = field(default_factory=dict)
    """Pearson and Spearman of the vectors' negated Euclidean and Manhattan distances, where they were asked for."""

    @property
    def attainable(self) -> float | None:
        """The Spearman of a perfect scorer without ties."""
        return attainable_spearman(self.task.pairs.labels)


def make_task(
    source: str,
    *,
    folder: Path | None = None,
    split: str | None = None,
    threshold_from: str | None = None,
    fit: str | None = None,
    needs_fit: bool = False,
) -> Task:
    """Read the pairs that a name or path means, and those for its threshold and its transform.

    Parameters
    ----------
    source : a name of DATASETS or a file of pairs.
    folder : where the data sets lie.
    split : of a set; None: the one that is usually measured.
    threshold_from : a split of the set, a file of pairs, or `none`; None: dev, where it is there and not measured.
    fit : a split of the set or a corpus file; None: dev.
    needs_fit : whether something is to be fitted; nothing is read for it otherwise.

    Raises
    ------
    UsageError
        No such set or split, or what is measured would be learnt from.
    CorpusError
        A file is missing or malformed.
    """
    pairs, is_set = measured_pairs(source, folder, split)
    tuning, why = _tuning(pairs, is_set, threshold_from, folder)
    texts, name = sentences_to_fit(pairs, is_set, fit, folder) if needs_fit else (None, "")
    return Task(pairs, tuning, why, texts, name)


def measured_pairs(source: str, folder: Path | None, split: str | None = None) -> tuple[Pairs, bool]:
    """The pairs that a name or path means, and whether it is a name. Raises UsageError and CorpusError."""
    if (dataset := DATASETS.get(source.lower())) is not None:
        return load_dataset(dataset.name, split or dataset.measured, folder), True
    if Path(source).expanduser().exists():
        return read_pairs(source), False
    raise UsageError(
        f"no set and no file {source!r}: expected one of {', '.join(DATASETS)}, or a file of pairs "
        "(.tsv, .csv, .jsonl, .parquet)"
    )


def evaluate(
    tasks: Sequence[Task],
    systems: Sequence[System],
    *,
    resamples: int = 1000,
    distances: bool = False,
    progress: Progress | None = None,
) -> list[list[Result]]:
    """Measure every system on every task: a list of results a task, in the order of the systems.

    With `distances`, the results have `distance_correlations` too.

    Raises
    ------
    RetrError
        An encoder cannot be loaded, or a transform cannot be fitted.
    """
    progress = progress or NoProgress()
    found: list[list[Result]] = [[] for _ in tasks]
    for system in systems:
        encoder, transform, name = system.load()
        for task, results in zip(tasks, found, strict=True):
            progress.note(f"{system.name} on {task.pairs.title}: {len(task.pairs):,} pairs")
            result = _run(task, system, encoder, transform, name, resamples, distances, progress)
            if results:
                differences = difference(results[0].measures, result.measures)
                result = replace(result, baseline=results[0].system["name"], differences=differences)
            results.append(result)
        del encoder  # its memory, before the next is loaded
    return found


def _run(
    task: Task,
    system: System,
    encoder: Encoder,
    transform: Transform | None,
    transform_name: str,
    resamples: int,
    distances: bool,
    progress: Progress,
) -> Result:
    pairs, fitted_on, started = task.pairs, None, time.perf_counter()
    if isinstance(encoder, FusionEncoder) and any(part.centred for part in encoder.parts) and not transform_name:
        encoder.fit_means(task.fit_texts or [])
        fitted_on = task.fit_name
    fit_texts = task.fit_texts or [] if system.spec else []
    tuning = task.tuning if is_binary(pairs.labels) else None
    tuning_texts = tuning.texts if tuning else []
    encoded = EncodedTexts(encoder, [*pairs.texts, *tuning_texts, *fit_texts], progress)
    if encoded.without_vector == len(encoded):
        raise EncoderError(f"{system.name} knows nothing of the sentences of {pairs.title}: choose another model")
    if encoded.without_vector:
        progress.note(f"{encoded.without_vector:,} sentences of which {system.name} knows nothing: their cosine is 0")
    spec, name = system.spec, transform_name or str(system.spec or NONE)
    if isinstance(spec, AutoSpec):
        spec = encoded.choose(spec, fit_texts, progress)
        name = f"{spec} ({system.spec})"
    if spec is not None:
        transform, fitted_on = encoded.fit(spec, fit_texts), task.fit_name
    thresholds = None
    if tuning is not None:
        scores = encoded.cosines(tuning.first, tuning.second, transform)
        thresholds = Thresholds(*best_thresholds(scores, tuning.labels))
    measures = measure(
        encoded.cosines(pairs.first, pairs.second, transform),
        pairs.labels,
        thresholds,
        task.why_no_threshold,
        resamples=resamples,
        seed=SEED,
    )
    settings = encoder.settings
    described = {
        "name": system.name,
        "source": settings.source,
        "pooling": settings.pooling,
        "dimension": encoder.dimension if transform is None else transform.m,
        "backend": encoder.backend,
        "precision": encoder.precision,
        "fingerprint": encoder.fingerprint,
        "transform": name,
        "fitted_on": fitted_on,
    }
    found: dict[str, float | None] = {}
    for kind, values in (encoded.distances(pairs.first, pairs.second, transform) if distances else {}).items():
        found |= {
            f"{kind}_pearson": pearson(-values, pairs.labels),
            f"{kind}_spearman": spearman(-values, pairs.labels),
        }
    seconds = round(time.perf_counter() - started, 3)
    return Result(task, described, measures, thresholds, resamples, seconds=seconds, distance_correlations=found)


def _tuning(pairs: Pairs, is_set: bool, wanted: str | None, folder: Path | None) -> tuple[Pairs | None, str]:
    """The pairs for the threshold, or None and why there are none."""
    if not is_binary(pairs.labels) and wanted is None:
        return None, "labels are graded, not 0 and 1"
    if wanted == NONE:
        return None, "no threshold was asked for"
    found, why = other_pairs(pairs, is_set, wanted, "the threshold", "--threshold-from", folder)
    if found is not None and not is_binary(found.labels):
        raise UsageError(f"--threshold-from {wanted or 'dev'}: its labels are graded, expected 0 and 1")
    return found, why


def other_pairs(
    pairs: Pairs, is_set: bool, wanted: str | None, what: str, option: str, folder: Path | None
) -> tuple[Pairs | None, str]:
    """Labelled pairs from which `what` comes, never those that are measured; or None and why there are none.

    Parameters
    ----------
    wanted : a split or a file; None: dev, where it is there and not measured.
    option : by which the user names them.
    """
    if wanted is None and not is_set:
        return None, f"{what} comes from other pairs than these: name them with {option} FILE"
    if wanted is None and pairs.split == "dev":
        return None, f"{what} comes from dev, which is measured: name others with {option}"
    if wanted is None:
        try:
            found = load_dataset(pairs.name, "dev", folder)
        except CorpusError as error:
            return None, str(error)
    elif wanted in SPLITS:
        _check_split(pairs, is_set, wanted, option)
        found = load_dataset(pairs.name, wanted, folder)
    else:
        found = read_pairs(wanted)
    _check_other(pairs, is_set, found.md5, f"{option} {wanted or 'dev'}", folder)
    return found, ""


def sentences_to_fit(pairs: Pairs, is_set: bool, wanted: str | None, folder: Path | None) -> tuple[list[str], str]:
    """Distinct sentences to fit on, and what they are called.

    Parameters
    ----------
    wanted : a split, or a file of texts or pairs; None: dev.
    """
    if wanted is None and not is_set:
        raise UsageError(f"what is fitted, for {pairs.title}, on which texts? Give --fit FILE: others than these")
    if wanted is None or wanted in SPLITS:
        _check_split(pairs, is_set, wanted or "dev", "--fit")
        fitting = load_dataset(pairs.name, wanted or "dev", folder)
        texts, name = fitting.texts, fitting.title
        _check_other(pairs, is_set, fitting.md5, f"--fit {wanted or 'dev'}", folder)
    else:
        for file in find_files([wanted]):
            _check_other(pairs, is_set, md5_of(file.path) if file.path else "", f"--fit {wanted}", folder)
        texts, name = read_texts(wanted), wanted
    return texts, f"{name} ({len(texts):,} sentences)"


def _check_other(pairs: Pairs, is_set: bool, md5: str, option: str, folder: Path | None) -> None:
    if md5 == pairs.md5:
        raise UsageError(f"{option} is {pairs.title} itself, which is measured: name others")
    if is_set and is_test_file(pairs.name, md5, folder):
        raise UsageError(f"{option} is {pairs.name} test: nothing is learnt from a test split; use dev or train")


def _check_split(pairs: Pairs, is_set: bool, split: str, option: str) -> None:
    if split == "test":
        raise UsageError(f"{option} test: nothing is learnt from a test split; use dev or train")
    if not is_set:
        raise UsageError(f"{option} {split}: {pairs.name} is a file and has no splits; name a file")
    if split == pairs.split:
        raise UsageError(f"{option} {split}: that split is measured; use another split, or a file")


def read_texts(source: str) -> list[str]:
    """The texts of a corpus as `retr index` reads it, or both sentences of a file of pairs."""
    try:
        batches = list(Corpus([source], CorpusOptions()).batches())
    except UsageError:  # no column is the text
        batches = list(Corpus([source], CorpusOptions(text_column="sentence1", keep=("sentence2",))).batches())
    columns = [batch.column(name).to_pylist() for batch in batches for name in batch.schema.names if name != "id"]
    return list(dict.fromkeys(str(text) for column in columns for text in column if text))
