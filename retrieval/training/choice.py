"""Which weights are kept: what the dev sets say of them, alone and blended with those that training began from.

Weights between the start and the end of training often do better on other data than either: Wortsman et al. 2022,
arXiv:2109.01903.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from retrieval.errors import UsageError
from retrieval.evaluation.correlation import spearman
from retrieval.evaluation.scoring import EncodedTexts
from retrieval.training.checkpoints import Tensors
from retrieval.training.examples import TextPairs
from retrieval.training.model import TrainableEncoder

DEV_PAIRS = 1000
"""Of each dev set, while training: its Spearman is then known to about two points."""
BLENDS = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)


@dataclass(frozen=True)
class Scores:
    """Spearman x 100 of a model."""

    by_set: dict[str, float]
    mean: float
    """What weights are chosen by; 0 where there is no set."""


@dataclass(frozen=True)
class DevSets:
    """Labelled pairs by which weights are chosen; none of them is trained on.

    Parameters
    ----------
    pairs : each set's labels of two values at least; where they have weights, Spearman is under these.
    parts : names of those that are held out of a source that is trained on.
    """

    pairs: Sequence[TextPairs]
    parts: Collection[str] = ()

    def mean(self, values: Mapping[str, float]) -> float:
        """Half of it is of the parts of sources that are trained on, half of the other sets, where there are both.

        A model that has learnt what holds in its sources only does better on parts of them, and worse elsewhere.
        """
        halves = [[value for name, value in values.items() if (name in self.parts) is part] for part in (True, False)]
        means = [sum(half) / len(half) for half in halves if half]
        return sum(means) / len(means) if means else 0.0

    def scores(self, model: TrainableEncoder) -> Scores:
        """Of the model as it is."""
        texts = [text for each in self.pairs for text in (*each.first, *each.second)]
        with model.evaluating(), model.autocast():
            encoded = EncodedTexts(model.encoder, texts)
        found = {
            each.name: 100 * (spearman(encoded.cosines(each.first, each.second), each.labels, each.weights) or 0.0)
            for each in self.pairs
        }
        return Scores(found, self.mean(found))

    def sampled(self, most: int = DEV_PAIRS, seed: int = 0) -> DevSets:
        """At most so many pairs of each set."""
        return replace(self, pairs=[_some(each, most, seed) for each in self.pairs])


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Names of files without their folders, where that leaves them different."""
    short = {name: name.rsplit("/", 1)[-1] for name in names}
    return short if len(set(short.values())) == len(short) else {name: name for name in short}


def weights_of(model: TrainableEncoder) -> Tensors:
    """A copy of all that training changes."""
    return {name: value.detach().clone() for name, value in model.trained().items()}


def set_weights(model: TrainableEncoder, start: Tensors, end: Tensors, blend: float = 1.0) -> None:
    """Give the model start + blend x (end - start)."""
    with torch.no_grad():
        for name, value in model.trained().items():
            value.copy_(torch.lerp(start[name].to(value), end[name].to(value), blend))


def choose_blend(
    model: TrainableEncoder,
    start: Tensors,
    ends: Sequence[Tensors],
    dev: DevSets,
    blends: Sequence[float] = BLENDS,
) -> dict[tuple[int, float], Scores]:
    """The dev scores of each blend with each end, by its place; the model then holds the one with the best mean."""
    found = {}
    for place, end in enumerate(ends):
        for blend in blends:
            set_weights(model, start, end, blend)
            found[place, blend] = dev.scores(model)
    place, blend = best_of(found)
    set_weights(model, start, ends[place], blend)
    return found


def best_of(blends: Mapping[tuple[int, float], Scores]) -> tuple[int, float]:
    """The first with the highest mean."""
    return max(blends, key=lambda each: blends[each].mean)


def check_blend(text: str) -> float | None:
    """`auto` -> None; a number above 0 and up to 1 -> itself. Raises UsageError."""
    if text == "auto":
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value <= 1:
        raise UsageError(f"blend {text!r}: expected auto, or a share of the trained weights above 0 and up to 1")
    return value


def _some(pairs: TextPairs, most: int, seed: int) -> TextPairs:
    if len(pairs.labels) <= most:
        return pairs
    rows = np.sort(np.random.default_rng(seed).permutation(len(pairs.labels))[:most])
    return pairs.take(rows)
