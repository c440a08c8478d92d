"""What a run reads: training examples, the parts of them that weights are chosen by, and test sets it must not see."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.errors import UsageError
from retrieval.evaluation.correlation import is_binary, spearman
from retrieval.evaluation.evaluate import measured_pairs
from retrieval.evaluation.pairs import Pairs
from retrieval.training.choice import DevSets
from retrieval.training.data import read_nli, read_texts, read_training_pairs, read_triplets
from retrieval.training.examples import (
    NliPairs,
    TextPairs,
    Triplets,
    check_labels_differ,
    noise,
    positives,
    split_off,
)
from retrieval.training.loop import LoopSettings, Stage
from retrieval.training.model import TrainableEncoder
from retrieval.training.objectives import (
    CosentObjective,
    InBatchObjective,
    NliObjective,
    Objective,
    SimcseObjective,
    StsObjective,
    TripletObjective,
)
from retrieval.training.propensity import balanced, propensities
from retrieval.training.shortcuts import NOTED, shortcuts
from retrieval.training.simbert import SimbertObjective, WritingEncoder

STAGE_KINDS = ("nli", "sts", "triplets")
HOLD_OUT = 0.1
_MOST_HELD = 2000
_LEAST_DEV = 100
_GRADES = np.array([1.0, 0.5, 0.0])  # entailment, neutral, contradiction
Make = Callable[[TrainableEncoder], Objective]


@dataclass(frozen=True)
class Reading:
    """What the user named.

    Parameters
    ----------
    dev, tests : sets or files of labelled pairs; the weights are chosen by the first and measured on the second.
    hold_out : share of each training source by which weights are chosen too, at most 2,000 pairs; 0: none.
    folder : where named sets lie.
    """

    dev: Sequence[str] = ()
    tests: Sequence[str] = ()
    hold_out: float = HOLD_OUT
    folder: Path | None = None
    seed: int = 0


@dataclass(frozen=True)
class Material:
    """What a run works on."""

    stages: Callable[[TrainableEncoder], list[Stage]]
    texts: Sequence[str]
    """Training texts, to fit transforms on."""
    dev: DevSets
    tests: Sequence[Pairs]
    files: Sequence[dict[str, Any]]
    """name, role, rows and sha256 of each; of those to train on, trained and held_out rows too."""
    notes: Sequence[str]
    """What was met in them."""


class Gathering:
    """Files as they are read, and what is met in them.

    Raises
    ------
    UsageError
        A test split is to be learnt from, a set is named twice, or a share is none.
    CorpusError
        A file is missing or malformed.
    """

    def __init__(self, reading: Reading) -> None:
        if not 0 <= reading.hold_out < 1:
            raise UsageError(f"hold-out is {reading.hold_out:g}, expected a share from 0 and below 1")
        self._reading = reading
        self._tests = [measured_pairs(source, reading.folder)[0] for source in reading.tests]
        self._dev = [read_training_pairs(source, reading.folder) for source in reading.dev]
        self._files = [_file(each, "choice of weights") for each in self._dev]
        self._files += [_file_of_test(each) for each in self._tests]
        for each in self._dev:
            check_labels_differ(each)
        self._notes: list[str] = []
        self._texts: dict[str, None] = {}
        self._labelled: set[str] = set()
        self._parts: set[str] = set()
        self._unseen = {
            frozenset(pair): title
            for title, first, second in (
                *((each.title, each.first, each.second) for each in self._tests),
                *((each.name, each.first, each.second) for each in self._dev),
            )
            for pair in zip(first, second, strict=True)
        }

    def pairs(self, sources: Iterable[str], *, positive: bool = False) -> list[TextPairs]:
        """Labelled pairs to train on, without those of the dev and test sets, and without the part held out.

        Parameters
        ----------
        positive : only those that belong together, once a part with all labels is held out.
        """
        return [self._pairs(source, positive) for source in sources]

    def nli(self, source: str) -> NliPairs:
        """Inferences; those held out count as pairs, of grade 1 for entailment, .5 for neutral, 0 for contradiction."""
        read = read_nli(source)
        file = self._take(read, source)
        if read.skipped:
            self._notes.append(f"{read.name}: {read.skipped:,} pairs without a gold label are left out")
        graded = TextPairs(read.name, read.sha256, read.first, read.second, _GRADES[read.labels], grades=(0.0, 1.0))
        rows = _rows(self._held_out(graded))
        file.update(trained=len(rows), held_out=len(graded) - len(rows))
        first, second = [read.first[row] for row in rows], [read.second[row] for row in rows]
        self._add_labelled(first, second)
        return replace(read, first=first, second=second, labels=read.labels[rows])

    def triplets(self, source: str) -> Triplets:
        """Triplets; those held out count as two pairs, of labels 1 and 0."""
        read = read_triplets(source)
        file = self._take(read, source)
        together = TextPairs(read.name, read.sha256, read.anchor, read.positive, np.ones(len(read)), grades=(0.0, 1.0))
        held = self._split(together)
        if held is not None:
            together, aside = held
            rows = _rows(aside)
            anchors = [read.anchor[row] for row in rows]
            others = [side[row] for side in (read.positive, read.negative) for row in rows]
            labels = np.repeat([1.0, 0.0], len(rows))
            self._hold(TextPairs(read.name, read.sha256, anchors * 2, others, labels))
        rows = _rows(together)
        file.update(trained=len(rows), held_out=len(read) - len(rows))
        sides = [[side[row] for row in rows] for side in (read.anchor, read.positive, read.negative)]
        self._add_labelled(*sides)
        return Triplets(read.name, read.sha256, *sides)

    def material(self, stages: Callable[[TrainableEncoder], list[Stage]]) -> Material:
        """All that was gathered."""
        dev = DevSets([self._unseen_in(each) for each in self._dev], self._parts)
        return Material(stages, list(self._texts), dev, self._tests, self._files, self._notes)

    def texts(self, sources: Iterable[str]) -> list[Any]:
        """Texts without labels; none is held out."""
        found = [read_texts(source, self._reading.folder) for source in sources]
        for each, source in zip(found, sources, strict=True):
            self._take(each, source).update(trained=len(each), held_out=0)
            self._add_texts(each.texts)
        return found

    def _pairs(self, source: str, positive: bool) -> TextPairs:
        read = read_training_pairs(source, self._reading.folder)
        file = self._take(read, source)
        if not positive:
            check_labels_differ(read)
        self._notes += [f"{read.name}: {words}" for words in (*noise(read).words, *shortcuts(read))]
        known = [row for row in range(len(read)) if frozenset((read.first[row], read.second[row])) in self._unseen]
        if known:
            titles = {self._unseen[frozenset((read.first[row], read.second[row]))] for row in known}
            self._notes.append(
                f"{read.name}: {len(known):,} of {len(read):,} pairs stand in {' and '.join(sorted(titles))} too, and "
                "are left out"
            )
            if len(known) == len(read):
                raise UsageError(f"{source}: all its pairs stand in {' and '.join(sorted(titles))}: name others")
            left = set(known)
            read = read.take([row for row in range(len(read)) if row not in left])
        kept = self._held_out(read)
        file["held_out"] = len(read) - len(kept)
        read = positives(kept) if positive else kept
        file["trained"] = len(read)
        self._add_labelled(read.first, read.second)
        return read

    def _unseen_in(self, dev: TextPairs) -> TextPairs:
        """A dev set without pairs of which training sees a sentence, with another partner: those deceive the choice."""
        labelled = self._labelled
        pairs = zip(dev.first, dev.second, strict=True)
        kept = [row for row, pair in enumerate(pairs) if labelled.isdisjoint(pair)]
        if (seen := len(dev) - len(kept)) == 0:
            return dev
        words = f"{dev.name}: {seen:,} of {len(dev):,} pairs that weights are chosen by share a sentence with others"
        if len(kept) < min(_LEAST_DEV, len(dev) / 2) or np.ptp(dev.labels[kept]) == 0:
            self._notes.append(f"{words} that are trained on: what it says may be too high")
            return dev
        self._notes.append(f"{words} that are trained on, and are left out")
        return dev.take(kept)

    def _take(self, read: Any, source: str) -> dict[str, Any]:
        """What is told of a file that is trained on."""
        if any(file["sha256"] == read.sha256 for file in self._files):
            raise UsageError(f"{source} is named twice, or is a dev or test set of this run too: name it once")
        file = _file(read, "training")
        self._files.append(file)
        return file

    def _held_out(self, pairs: TextPairs) -> TextPairs:
        """What is left to train on."""
        split = self._split(pairs)
        if split is None:
            return pairs
        kept, held = split
        if np.ptp(held.labels) == 0:
            self._notes.append(f"{pairs.name}: nothing is held out, since all that would be has one label")
            return pairs
        self._hold(self._weighted(kept, held))
        return kept

    def _weighted(self, kept: TextPairs, held: TextPairs) -> TextPairs:
        """Pairs held out, in which what one sentence alone tells of a label of 0 or 1 gains nothing."""
        if not is_binary(held.labels):
            return held
        values = propensities(kept, held)
        if (rho := spearman(values, held.labels) or 0.0) >= NOTED:
            self._notes.append(
                f"{held.name}: one sentence alone tells something of the label, as its topic may (Spearman "
                f"{100 * rho:.0f}); pairs held out are weighted so that this gains nothing"
            )
        return replace(held, weights=balanced(values, held.labels))

    def _hold(self, part: TextPairs) -> None:
        self._dev.append(part)
        self._parts.add(part.name)

    def _split(self, pairs: TextPairs) -> tuple[TextPairs, TextPairs] | None:
        if not self._reading.hold_out:
            return None
        share = min(self._reading.hold_out, _MOST_HELD / len(pairs))
        try:
            return split_off(pairs, share, self._reading.seed)
        except UsageError as error:
            self._notes.append(f"nothing is held out: {error}")
            return None

    def _add_labelled(self, *sides: Sequence[str]) -> None:
        self._add_texts(*sides)
        self._labelled.update(*sides)

    def _add_texts(self, *sides: Sequence[str]) -> None:
        self._texts |= dict.fromkeys(text for side in sides for text in side)


def stages_of(makes: Sequence[tuple[Make, int]], loop: LoopSettings, steps: int | None, epochs: float) -> Any:
    """What `Material.stages` is: each objective with its steps.

    Parameters
    ----------
    makes : of each stage what makes its objective, and how many examples it has.
    steps : of each stage; None: as many as `epochs` times the examples take.
    """
    if steps is not None and steps < 1:
        raise UsageError(f"steps are {steps}, expected at least 1")
    if not 0 < epochs < math.inf:
        raise UsageError(f"epochs are {epochs:g}, expected more than 0")

    def build(model: TrainableEncoder) -> list[Stage]:
        return [
            Stage(make(model), steps or max(1, math.ceil(count * epochs / loop.batch / loop.accumulate)))
            for make, count in makes
        ]

    return build


def cosent(
    gathering: Gathering, sources: Sequence[str], scale: float, batch: int, *, in_batch: float, deals: bool
) -> list[tuple[Make, int]]:
    """CoSENT on labelled pairs of several sources.

    Parameters
    ----------
    in_batch, deals : as of the objective.
    """
    _check_batch(batch)
    if not 0 <= in_batch < math.inf:
        raise UsageError(f"the in-batch loss has the weight {in_batch:g}, expected 0 or more, such as 0.5")
    pairs = gathering.pairs(sources)
    return [(lambda model: CosentObjective(pairs, scale, in_batch=in_batch, deals=deals), sum(map(len, pairs)))]


def simbert(gathering: Gathering, sources: Sequence[str], scale: float, batch: int) -> list[tuple[Make, int]]:
    """In-batch softmax on the pairs that belong together; where the model can write, paraphrases too."""
    _check_batch(batch)
    pairs = gathering.pairs(sources, positive=True)
    for each in pairs:
        if len(each) < 2:
            raise UsageError(f"{each.name} holds 1 pair that belongs together, expected 2: a batch compares them")

    def make(model: TrainableEncoder) -> Objective:
        return (SimbertObjective if isinstance(model, WritingEncoder) else InBatchObjective)(pairs, scale)

    return [(make, sum(map(len, pairs)))]


def simcse(gathering: Gathering, sources: Sequence[str], scale: float, batch: int) -> list[tuple[Make, int]]:
    """The same text under two dropouts."""
    _check_batch(batch)
    texts = gathering.texts(sources)
    return [(lambda model: SimcseObjective(texts, scale), sum(map(len, texts)))]


def sbert(gathering: Gathering, stages: Sequence[str], margin: float, *, deals: bool) -> list[tuple[Make, int]]:
    """SBERT's three objectives, in the order of the stages `nli:FILE`, `sts:FILE`, `triplets:FILE`."""
    return [_sbert_stage(gathering, stage, margin, deals) for stage in stages]


def _sbert_stage(gathering: Gathering, stage: str, margin: float, deals: bool) -> tuple[Make, int]:
    kind, colon, source = stage.partition(":")
    if not colon or not source or kind not in STAGE_KINDS:
        raise UsageError(f"stage {stage!r}: expected one of {', '.join(f'{each}:FILE' for each in STAGE_KINDS)}")
    if kind == "nli":
        inferences = gathering.nli(source)
        return lambda model: NliObjective(inferences, model.dimension, deals=deals), len(inferences)
    if kind == "triplets":
        triplets = gathering.triplets(source)
        return lambda model: TripletObjective(triplets, margin), len(triplets)
    (pairs,) = gathering.pairs([source])
    return lambda model: StsObjective([pairs], deals=deals), len(pairs)


def _check_batch(batch: int) -> None:
    if batch < 2:
        raise UsageError(f"a batch of {batch}: expected 2 at least, since its examples are told from one another")


def _rows(pairs: TextPairs) -> list[int]:
    """Where pairs that were taken out of others stood, from 0."""
    return [pairs.line(row) - 1 for row in range(len(pairs))]


def _file(read: Any, role: str) -> dict[str, Any]:
    return {"name": read.name, "role": role, "rows": len(read), "sha256": read.sha256}


def _file_of_test(pairs: Pairs) -> dict[str, Any]:
    return {"name": pairs.title, "role": "test, scored once", "rows": len(pairs), "sha256": pairs.sha256}
