"""What a stage of training minimises: examples of one or more sources, and the loss of a batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from retrieval.evaluation.correlation import is_binary
from retrieval.training import losses
from retrieval.training.examples import NliPairs, TextPairs, Texts, Triplets, scaled
from retrieval.training.model import TrainableEncoder
from retrieval.training.shortcuts import deal_ends, end_of

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

    def example(self, source: int, row: int) -> tuple[str, ...]:
        """Its texts."""
        ...

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        """A scalar with a gradient."""
        ...


class _Examples:
    """Texts of one or more sources, in columns of the names given.

    Parameters
    ----------
    deals : whether the final punctuation of a batch's texts is dealt out anew, so that no label is learnt from it.
    """

    head: torch.nn.Module | None = None

    def __init__(self, read: Sequence[Any], *sides: str, deals: bool = False) -> None:
        self.sources = [each.name for each in read]
        self._columns = [[getattr(each, side) for side in sides] for each in read]
        self._deals = deals
        self.lengths = [_lengths(columns, deals) for columns in self._columns]

    def example(self, source: int, row: int) -> tuple[str, ...]:
        return tuple(column[row] for column in self._columns[source])

    def _texts(self, source: int, rows: NDArray[np.int64]) -> list[str]:
        """A column after the other."""
        texts = [column[row] for column in self._columns[source] for row in rows]
        return deal_ends(texts) if self._deals else texts


class CosentObjective(_Examples):
    """The order of pairs by cosine that of their labels.

    Parameters
    ----------
    in_batch : weight of a second loss, on sources of labels 0 and 1: sentences of pairs that belong together pick their
        partners out of the batch, by which texts that no pair of the sources tells apart stay apart.
    """

    name = "cosent"

    def __init__(
        self, pairs: Sequence[TextPairs], scale: float = 20.0, *, in_batch: float = 0.0, deals: bool = False
    ) -> None:
        super().__init__(pairs, "first", "second", deals=deals)
        self._labels, self._scale = [each.labels for each in pairs], scale
        self._in_batch = [in_batch if is_binary(each.labels) else 0.0 for each in pairs]

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        first, second = _sides(model, self._texts(source, rows))
        cosines = losses.cosines(first, second)
        labels = _like(cosines, self._labels[source][rows])
        loss = losses.cosent(cosines, labels, self._scale)
        if weight := self._in_batch[source]:
            texts, partners = self._columns[source]
            shared = torch.as_tensor(related(texts, partners, rows), device=cosines.device)
            loss = loss + weight * losses.in_batch_ranking(first, second, labels == 1, shared)
        return loss


class StsObjective(_Examples):
    """Cosines that are the labels, brought to 0 to 1: SBERT's regression."""

    name = "sts"

    def __init__(self, pairs: Sequence[TextPairs], *, deals: bool = False) -> None:
        super().__init__(pairs, "first", "second", deals=deals)
        self._labels = [scaled(each) for each in pairs]

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        cosines = losses.cosines(*_sides(model, self._texts(source, rows)))
        return losses.cosine_regression(cosines, _like(cosines, self._labels[source][rows]))


class InBatchObjective(_Examples):
    """SimBERT's softmax over the other texts of the batch, on pairs that say the same."""

    name = "in-batch softmax"

    def __init__(self, pairs: Sequence[TextPairs], scale: float = 30.0) -> None:
        super().__init__(pairs, "first", "second")
        self._scale = scale

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        first, second = self._columns[source]
        kept = distinct(first, second, rows)
        vectors = torch.stack(_sides(model, self._texts(source, kept)), dim=1).flatten(0, 1)  # rows 2i and 2i + 1
        if len(kept) < 2:  # nothing to be told from
            return vectors.sum() * 0.0
        return losses.in_batch_softmax(vectors, self._scale)


class SimcseObjective(_Examples):
    """The same text twice, under two dropouts, among the other texts of the batch."""

    name = "simcse"

    def __init__(self, texts: Sequence[Texts], scale: float = 20.0) -> None:
        super().__init__(texts, "texts")
        self._scale = scale

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        return losses.simcse(*_sides(model, 2 * self._texts(source, rows)), self._scale)


class TripletObjective(_Examples):
    """The anchor nearer to the positive than to the negative, by a margin."""

    name = "triplets"

    def __init__(self, triplets: Triplets, margin: float = 1.0) -> None:
        super().__init__([triplets], "anchor", "positive", "negative")
        self._margin = margin

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        anchor, positive, negative = model.vectors(self._texts(source, rows)).chunk(3)
        return losses.triplet(anchor, positive, negative, self._margin)


class NliObjective(_Examples):
    """SBERT's softmax over (u, v, |u - v|) with a weight of its own."""

    name = "nli"

    def __init__(self, pairs: NliPairs, dimension: int, *, deals: bool = False) -> None:
        super().__init__([pairs], "first", "second", deals=deals)
        self._labels = pairs.labels
        self.head: losses.NliHead = losses.NliHead(dimension, len(pairs.classes))

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        logits = self.head(*_sides(model, self._texts(source, rows)))
        return losses.nli(logits, torch.as_tensor(self._labels[rows], device=logits.device))


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


def related(first: Sequence[str], second: Sequence[str], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the pairs share a sentence, shape (B, B)."""
    pairs = [{first[row], second[row]} for row in rows.tolist()]
    return np.array([[not one.isdisjoint(other) for other in pairs] for one in pairs])


def _sides(model: TrainableEncoder, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """The vectors of the first half and of the second, (B, d) each, from one pass."""
    one, other = model.vectors(texts).chunk(2)
    return one, other


def _like(cosines: torch.Tensor, labels: NDArray[np.float64]) -> torch.Tensor:
    return torch.as_tensor(labels, dtype=cosines.dtype, device=cosines.device)


def _lengths(columns: Sequence[Sequence[str]], without_ends: bool) -> Lengths:
    counted = [[len(text) - (len(end_of(text)) if without_ends else 0) for text in column] for column in columns]
    lengths: Lengths = np.array(counted, dtype=np.int64).sum(axis=0)
    return lengths
