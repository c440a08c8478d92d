"""Poolings x transforms x dimensions on labelled pairs, from embeddings that are computed once.

Transforms are fitted on sentences without their labels. Which cell is best is read off other labelled pairs than those
that are measured (dev): a choice made on the test pairs would be measured on what it was made from.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from retrieval.encoders.base import Encoder, EncoderSettings
from retrieval.encoders.fusion import FusionEncoder
from retrieval.encoders.load import transformer_folder
from retrieval.encoders.modules import MODULES
from retrieval.encoders.pooling import OWN_MODULES
from retrieval.errors import TransformError
from retrieval.evaluation.correlation import Floats, auc, is_binary, pearson, spearman
from retrieval.evaluation.evaluate import SEED, measured_pairs, other_pairs, sentences_to_fit
from retrieval.evaluation.grid import USUAL_POOLINGS, Spec, Transforms, is_flow, keeps_all
from retrieval.evaluation.measures import measure
from retrieval.evaluation.pairs import Pairs
from retrieval.evaluation.scoring import EncodedTexts
from retrieval.evaluation.stored import Stored, read, stored_embeddings
from retrieval.transforms.moments import Moments
from retrieval.transforms.spec import NONE, TransformSpec
from retrieval.transforms.whitening import DEFAULT_EPS, rank_of
from retrieval.types import Progress


@dataclass(frozen=True)
class SweepTask:
    """What is measured, what the choice is made on, and what transforms are fitted on."""

    pairs: Pairs
    choosing: Pairs | None
    why_no_choice: str
    fit_texts: list[str]
    fit_name: str
    weights: Floats | None = None
    """Of the measured pairs, shape (n,): what each counts in the cells' Spearman; None: all alike."""


@dataclass(frozen=True)
class Pass:
    """One model as it is loaded: it gives `computed` side by side, of which `wanted` are swept."""

    settings: EncoderSettings
    computed: tuple[str, ...]
    wanted: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One pooling with one transform."""

    pooling: str
    transform: str
    dimension: int | None
    spearman: float | None
    pearson: float | None
    auc: float | None
    choosing: float | None
    """Spearman on the pairs of the choice."""
    fitted: str = ""
    """The transform with the number of dimensions that it came to: `whiten-383` for `whiten-all`."""
    refused: str = ""
    """Why there is no value, in a word or two: `rank 383`."""
    why: str = ""
    """The same as a sentence."""


@dataclass(frozen=True)
class Sweep:
    """All cells, and the best of them by the pairs of the choice."""

    task: SweepTask
    model: str
    systems: dict[str, dict[str, str]]
    """Of each pooling: backend, precision and fingerprint."""
    cells: list[Cell]
    best: Cell | None
    interval: tuple[float, float] | None
    """Of the best cell's Spearman on the measured pairs."""
    resamples: int
    seconds: float
    """All but encoding."""

    @property
    def poolings(self) -> list[str]:
        return list(dict.fromkeys(cell.pooling for cell in self.cells))

    @property
    def transforms(self) -> list[str]:
        return list(dict.fromkeys(cell.transform for cell in self.cells))

    def cell(self, pooling: str, transform: str) -> Cell | None:
        """None where the grid has no such cell: transforms may differ with an encoder's dimension."""
        found = (cell for cell in self.cells if (cell.pooling, cell.transform) == (pooling, transform))
        return next(found, None)


def make_sweep_task(
    source: str, *, folder: Path | None = None, choose_on: str | None = None, fit: str | None = None, needs_fit: bool
) -> SweepTask:
    """Read the pairs and sentences of a sweep.

    Parameters
    ----------
    source : a name of DATASETS or a file of pairs.
    choose_on : a split of the set or a file of pairs; None: dev, where it is there and not measured.
    fit : a split of the set, or a file of texts or pairs; None: dev, or train where dev is measured.

    Raises
    ------
    UsageError
        No such set or split, or what is measured would be learnt from.
    CorpusError
        A file is missing or malformed.
    """
    pairs, is_set = measured_pairs(source, folder)
    choosing, why = (
        (None, "no choice was asked for")
        if choose_on == NONE
        else other_pairs(pairs, is_set, choose_on, "the choice", "--choose-on", folder)
    )
    if is_set and pairs.split == "dev" and fit is None:
        fit = "train"
    texts, name = sentences_to_fit(pairs, is_set, fit, folder) if needs_fit else ([], "")
    return SweepTask(pairs, choosing, why, texts, name)


def make_passes(settings: EncoderSettings, poolings: Sequence[str] | None, note: Callable[[str], None]) -> list[Pass]:
    """How often the model has to read the sentences: once for the usual poolings of a transformer together.

    Parameters
    ----------
    settings : of the model, with the pooling that it has without a choice, or none.
    poolings : None: the usual ones, after the model's own where that is another; encoders without a choice have one.
    """
    folder = transformer_folder(settings, note)
    if folder is None:
        wanted = poolings or (settings.pooling,)
        return [Pass(replace(settings, pooling=pooling), (pooling,), (pooling,)) for pooling in wanted]
    if poolings is None:
        own = settings.pooling or (OWN_MODULES if (folder / MODULES).exists() else "")
        poolings = tuple(dict.fromkeys((*((own,) if own and own not in USUAL_POOLINGS else ()), *USUAL_POOLINGS)))
    usual = tuple(pooling for pooling in poolings if pooling in USUAL_POOLINGS)
    others = tuple(pooling for pooling in poolings if pooling not in (*USUAL_POOLINGS, OWN_MODULES))
    passes = [Pass(settings, (OWN_MODULES,), (OWN_MODULES,))] if OWN_MODULES in poolings else []
    # All usual ones, whichever are asked for: their graph, and what it gave, serve the next sweep too.
    passes += [Pass(settings, USUAL_POOLINGS, usual)] if usual else []
    passes += [Pass(settings, (pooling,), (pooling,)) for pooling in others]
    return [replace(each, settings=replace(settings, pooling="+".join(each.computed))) for each in passes]


def sweep(
    task: SweepTask,
    model: str,
    passes: Sequence[Pass],
    load: Callable[[EncoderSettings], Encoder],
    transforms: Transforms,
    *,
    resamples: int,
    progress: Progress,
) -> Sweep:
    """Encode what is not in the cache, then measure every cell.

    Raises
    ------
    RetrError
        An encoder cannot be loaded. What one cell refuses stands in the cell, and ends nothing.
    """
    groups = _groups(task)
    systems: dict[str, dict[str, str]] = {}
    stored: dict[str, Stored] = {}
    specs: dict[str, dict[str, Spec]] = {}
    for each in passes:
        encoder = load(each.settings)
        if isinstance(encoder, FusionEncoder) and any(part.centred for part in encoder.parts):
            encoder.fit_means(task.fit_texts)
        if len(each.computed) == 1:  # which may have been left to the encoder
            each = replace(each, computed=(encoder.settings.pooling,), wanted=(encoder.settings.pooling,))
        stored |= stored_embeddings(encoder, each.computed, each.wanted, groups, progress)
        system = {"backend": encoder.backend, "precision": encoder.precision, "fingerprint": encoder.fingerprint}
        systems |= dict.fromkeys(each.wanted, system)
        specs |= dict.fromkeys(each.wanted, transforms.specs(encoder.dimension // len(each.computed)))
        del encoder  # its memory, before the next is loaded
    started = time.perf_counter()
    texts = [text for group in groups for text in group]
    measured = _Measured(task, resamples)
    with progress.stage("measuring", "cells", sum(map(len, specs.values()))) as advance:
        for name, shards in stored.items():
            encoded = EncodedTexts.of_embeddings(texts, read(shards))
            if encoded.without_vector:
                progress.note(f"{name}: {encoded.without_vector:,} sentences have no vector: their cosine is 0")
            measured.take(name, encoded, specs[name], advance)
    seconds = time.perf_counter() - started
    return Sweep(task, model, systems, measured.cells, measured.best, measured.interval(), resamples, seconds)


def _groups(task: SweepTask) -> list[list[str]]:
    """The sentences of the measured pairs, of the choice, and of the fit, each text once."""
    groups: list[list[str]] = []
    seen: set[str] = set()
    for texts in (task.pairs.texts, task.choosing.texts if task.choosing else [], task.fit_texts):
        groups.append([text for text in dict.fromkeys(texts) if text not in seen])
        seen.update(groups[-1])
    return [group for group in groups if group]


@dataclass
class _Measured:
    """Cells as they are measured, and the scores of the best."""

    task: SweepTask
    resamples: int
    cells: list[Cell] = field(default_factory=list)
    best: Cell | None = None
    _scores: Floats | None = None
    _highest: float = -math.inf

    def take(self, pooling: str, encoded: EncodedTexts, specs: dict[str, Spec], advance: Callable[[int], None]) -> None:
        """Measure one pooling with all its transforms; its moments are found once."""
        exact = any(isinstance(spec, TransformSpec) and spec.eps < DEFAULT_EPS for spec in specs.values())
        fitted = [spec for spec in specs.values() if spec is not None and not is_flow(spec)]
        moments = encoded.moments(self.task.fit_texts, exact) if fitted else None
        for name, spec in specs.items():
            try:
                self._measure(pooling, name, spec, encoded, moments)
            except TransformError as error:
                refused = _refusal(spec, moments, encoded.dimension)
                self.cells.append(Cell(pooling, name, None, None, None, None, None, refused=refused, why=str(error)))
            advance(1)

    def _measure(self, pooling: str, name: str, spec: Spec, encoded: EncodedTexts, moments: Moments | None) -> None:
        if isinstance(spec, TransformSpec) and moments is not None and keeps_all(name):
            spec = replace(spec, m=max(1, rank_of(moments, beta=spec.beta, eps=spec.eps)))
        transform = encoded.fit(spec, self.task.fit_texts, moments) if spec is not None else None
        pairs, choosing = self.task.pairs, self.task.choosing
        scores = encoded.cosines(pairs.first, pairs.second, transform)
        chosen = None
        if choosing is not None:
            chosen = spearman(encoded.cosines(choosing.first, choosing.second, transform), choosing.labels)
        cell = Cell(
            pooling,
            name,
            transform.m if transform is not None else encoded.dimension,
            spearman(scores, pairs.labels, self.task.weights),
            pearson(scores, pairs.labels),
            auc(scores, pairs.labels) if is_binary(pairs.labels) else None,
            chosen,
            str(spec) if spec else NONE,
        )
        self.cells.append(cell)
        if chosen is not None and chosen > self._highest:
            self.best, self._scores, self._highest = cell, scores, chosen

    def interval(self) -> tuple[float, float] | None:
        """Of the best cell's Spearman."""
        if self._scores is None or not self.resamples:
            return None
        measures = measure(self._scores, self.task.pairs.labels, resamples=self.resamples, seed=SEED)
        return measures.values["spearman"].interval


def _refusal(spec: Spec, moments: Moments | None, dimension: int) -> str:
    """A cell's word for it: what was there, instead of what was asked for."""
    if not isinstance(spec, TransformSpec) or moments is None or not moments.rows:
        return "not fitted"
    if spec.m > dimension:
        return f"{dimension} dims"
    return f"rank {rank_of(moments, beta=spec.beta, eps=spec.eps)}"
