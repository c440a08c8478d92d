"""What a stage of training minimises: examples of one or more sources, and the loss of a batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from retrieval.training import losses
from retrieval.training.examples import NliPairs, TextPairs, Texts, Triplets, scaled
from retrieval.training.model import TrainableEncoder

Lengths = NDArray[np.int64]


class Objective(Protocol):
    """The loss of batches; a batch is of one source, since labels of two sources need not mean the same."""

    @property
    def name(self) -> str: ...

    @property
    def sources(self) -> Sequence[str]:
        """Their names, to say where a batch comes from."""
        ...

    @property
    def lengths(self) -> list[Lengths]:
        """Of each source, about how long its examples are, shape (n,)."""
        ...

    @property
    def head(self) -> torch.nn.Module | None:
        """Parameters beside the encoder's, which are dropped once training is over."""
        ...

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        """A scalar with a gradient."""
        ...


class PairObjective:
    """Cosines of pairs against their labels: `cosent` ranks them, `regression` reproduces them."""

    head = None

    def __init__(self, name: str, pairs: Sequence[TextPairs], scale: float = 20.0) -> None:
        self.name, self.sources, self._pairs, self._scale = name, [each.name for each in pairs], pairs, scale
        self.lengths = [_lengths(each.first, each.second) for each in pairs]
        self._labels = [scaled(each) if name == "regression" else each.labels for each in pairs]

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        pairs = self._pairs[source]
        first, second = _sides(model, pairs.first, pairs.second, rows)
        cosines = losses.cosines(first, second)
        labels = torch.as_tensor(self._labels[source][rows], dtype=cosines.dtype, device=cosines.device)
        if self.name == "regression":
            return losses.cosine_regression(cosines, labels)
        return losses.cosent(cosines, labels, self._scale)


class InBatchObjective:
    """SimBERT's softmax over the other texts of the batch, on pairs that say the same."""

    name, head = "in-batch softmax", None

    def __init__(self, pairs: Sequence[TextPairs], scale: float = 30.0) -> None:
        self.sources, self._pairs, self._scale = [each.name for each in pairs], pairs, scale
        self.lengths = [_lengths(each.first, each.second) for each in pairs]

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        pairs = self._pairs[source]
        kept = distinct(pairs.first, pairs.second, rows)
        vectors = torch.stack(_sides(model, pairs.first, pairs.second, kept), dim=1).flatten(0, 1)  # rows 2i and 2i + 1
        if len(kept) < 2:  # nothing to be told from
            return vectors.sum() * 0.0
        return losses.in_batch_softmax(vectors, self._scale)


class SimcseObjective:
    """The same text twice, under two dropouts, among the other texts of the batch."""

    name, head = "simcse", None

    def __init__(self, texts: Sequence[Texts], scale: float = 20.0) -> None:
        self.sources, self._texts, self._scale = [each.name for each in texts], texts, scale
        self.lengths = [_lengths(each.texts) for each in texts]

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        texts = self._texts[source].texts
        first, second = _sides(model, texts, texts, rows)
        return losses.simcse(first, second, self._scale)


class TripletObjective:
    """The anchor nearer to the positive than to the negative, by a margin."""

    name, head = "triplets", None

    def __init__(self, triplets: Triplets, margin: float = 1.0) -> None:
        self.sources, self._triplets, self._margin = [triplets.name], triplets, margin
        self.lengths = [_lengths(triplets.anchor, triplets.positive, triplets.negative)]

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        sides = (self._triplets.anchor, self._triplets.positive, self._triplets.negative)
        anchor, positive, negative = model.vectors([side[row] for side in sides for row in rows]).chunk(3)
        return losses.triplet(anchor, positive, negative, self._margin)


class NliObjective:
    """SBERT's softmax over (u, v, |u - v|) with a weight of its own."""

    name = "nli"

    def __init__(self, pairs: NliPairs, dimension: int) -> None:
        self.sources, self._pairs = [pairs.name], pairs
        self.lengths = [_lengths(pairs.first, pairs.second)]
        self.head = losses.NliHead(dimension, len(pairs.classes))

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        logits = self.head(*_sides(model, self._pairs.first, self._pairs.second, rows))
        return losses.nli(logits, torch.as_tensor(self._pairs.labels[rows], device=logits.device))


def distinct(first: Sequence[str], second: Sequence[str], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows without those that repeat a text of an earlier one, which would count as its own wrong answer."""
    seen: set[str] = set()
    kept = []
    for row in rows.tolist():
        texts = {first[row], second[row]}
        if not texts & seen:
            kept.append(row)
        seen |= texts
    return np.array(kept, dtype=np.int64)


def _sides(
    model: TrainableEncoder, first: Sequence[str], second: Sequence[str], rows: NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The vectors of both sides, (B, d) each, from one pass."""
    one, other = model.vectors([side[row] for side in (first, second) for row in rows]).chunk(2)
    return one, other


def _lengths(*sides: Sequence[str]) -> Lengths:
    lengths: Lengths = np.array([[len(text) for text in side] for side in sides], dtype=np.int64).sum(axis=0)
    return lengths
