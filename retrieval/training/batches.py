"""Which examples each step sees: known before the first one, so that a run that was broken off goes on exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import UsageError

_WINDOW = 64  # batches sorted together: pairs of a batch have one length, and no label is learnt from it
_OF_ONE_PROPENSITY = 8  # batches of a window that are sorted by length among themselves

MIXES = {"sqrt": 0.5, "size": 1.0, "even": 0.0}
"""How often a source has its turn, by the power of its size that it is in proportion to."""


@dataclass(frozen=True)
class Alike:
    """Of a source, what the examples of a batch are to have in common, so that nothing is learnt from it."""

    lengths: NDArray[np.int64]
    """Shape (n,), n >= 1."""
    propensities: NDArray[np.float64] | None = None
    """Shape (n,): see propensity.py; None: they matter little."""

    def sort(self, rows: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """Rows of which each `size` in a row are a batch."""
        if self.propensities is None:
            return rows[np.argsort(self.lengths[rows], kind="stable")]
        rows = rows[np.argsort(self.propensities[rows], kind="stable")]
        part = size * _OF_ONE_PROPENSITY
        parts = [rows[start : start + part] for start in range(0, len(rows), part)]
        return np.concatenate([part[np.argsort(self.lengths[part], kind="stable")] for part in parts])


@dataclass(frozen=True)
class Batch:
    """Examples of one source."""

    source: int
    rows: NDArray[np.int64]
    """Shape (B,)."""


def plan(sources: Sequence[Alike], size: int, count: int, seed: int, mix: str = "sqrt") -> list[Batch]:
    """So many batches, each of one source and of texts that are alike, in an order that the seed decides.

    Every example of a source has its turn before one has a second; the last few of an epoch, too few for a batch, begin
    the next.

    Parameters
    ----------
    sources : what their examples are sorted by.
    size : examples a batch; fewer where a source has fewer.
    mix : one of MIXES, or weights of the sources in their order, such as "4,1,1".

    Raises
    ------
    UsageError
        Unknown mix, or not as many weights as sources.
    """
    random = np.random.default_rng([seed, 0])
    weights = np.array(_weights(mix, [len(each.lengths) for each in sources]), dtype=np.float64)
    turns = random.choice(len(sources), size=count, p=weights / weights.sum())
    streams = [_stream(each, size, np.random.default_rng([seed, 1, place])) for place, each in enumerate(sources)]
    return [Batch(int(source), next(streams[source])) for source in turns]


def check_mix(mix: str, sources: int | None = None) -> list[float] | None:
    """The weights that a mix names; None for one of MIXES. Raises UsageError where it fits neither."""
    if mix in MIXES:
        return None
    try:
        weights = [float(weight) for weight in mix.split(",")]
    except ValueError:
        weights = []
    if not weights or not all(0 < weight < math.inf for weight in weights):
        raise UsageError(
            f"unknown mix {mix!r}: expected one of {', '.join(MIXES)}, or a weight above 0 of each source, such as "
            "4,1,1"
        )
    if sources is not None and len(weights) != sources:
        raise UsageError(f"the mix {mix!r} has {len(weights)} weights, expected one of each of {sources} sources")
    return weights


def _weights(mix: str, sizes: Sequence[int]) -> list[float]:
    weights = check_mix(mix, len(sizes))
    return [float(size ** MIXES[mix]) for size in sizes] if weights is None else weights


def _stream(source: Alike, size: int, random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    count = len(source.lengths)
    size = min(size, count)
    waiting = np.empty(0, np.int64)
    while True:
        waiting = np.concatenate([waiting, random.permutation(count)])
        whole = len(waiting) // size * size
        for start in range(0, whole, size * _WINDOW):
            window = waiting[start : min(start + size * _WINDOW, whole)]
            window = source.sort(window, size).reshape(-1, size)
            yield from window[random.permutation(len(window))]
        waiting = waiting[whole:]
