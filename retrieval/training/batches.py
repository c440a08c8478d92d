"""Which examples each step sees: known before the first one, so that a run that was broken off goes on exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import UsageError

_WINDOW = 64  # batches sorted by length together: pairs of a batch have one length, and no label is learnt from it

MIXES = {"sqrt": 0.5, "size": 1.0, "even": 0.0}
"""How often a source has its turn, by the power of its size that it is in proportion to."""


@dataclass(frozen=True)
class Batch:
    """Examples of one source."""

    source: int
    rows: NDArray[np.int64]
    """Shape (B,)."""


def plan(lengths: Sequence[NDArray[np.int64]], size: int, count: int, seed: int, mix: str = "sqrt") -> list[Batch]:
    """So many batches, each of one source and of texts of about one length, in an order that the seed decides.

    Every example of a source has its turn before one has a second; the last few of an epoch, too few for a batch, begin
    the next.

    Parameters
    ----------
    lengths : of each source, its examples' lengths, shape (n,), n >= 1.
    size : examples a batch; fewer where a source has fewer.
    mix : one of MIXES, or weights of the sources in their order, such as "4,1,1".

    Raises
    ------
    UsageError
        Unknown mix, or not as many weights as sources.
    """
    random = np.random.default_rng([seed, 0])
    weights = np.array(_weights(mix, [len(each) for each in lengths]), dtype=np.float64)
    turns = random.choice(len(lengths), size=count, p=weights / weights.sum())
    streams = [_stream(each, size, np.random.default_rng([seed, 1, place])) for place, each in enumerate(lengths)]
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


def _stream(lengths: NDArray[np.int64], size: int, random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    size = min(size, len(lengths))
    waiting = np.empty(0, np.int64)
    while True:
        waiting = np.concatenate([waiting, random.permutation(len(lengths))])
        whole = len(waiting) // size * size
        for start in range(0, whole, size * _WINDOW):
            window = waiting[start : min(start + size * _WINDOW, whole)]
            window = window[np.argsort(lengths[window], kind="stable")].reshape(-1, size)
            yield from window[random.permutation(len(window))]
        waiting = waiting[whole:]
