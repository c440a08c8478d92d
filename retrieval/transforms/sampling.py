"""Rows drawn evenly out of a stream of vectors, and the distinct ones among them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import TransformError
from retrieval.transforms.base import check_chunk


def sample_rows(chunks: Iterable[NDArray[np.float32]], most: int, seed: int) -> NDArray[np.float32]:
    """At most `most` rows, each as likely as any other, however the rows are cut into chunks.

    Raises TransformError where a value is NaN or infinite (the row is named) or there is no row, DimensionError where a
    chunk has another d than the first. Source: Vitter 1985, "Random sampling with a
    reservoir", algorithm R.
    """
    random, seen = np.random.default_rng(seed), 0
    reservoir: NDArray[np.float32] | None = None
    for chunk in chunks:
        if reservoir is None:
            reservoir = np.empty((most, chunk.shape[-1]), dtype=np.float32)  # memory is taken as it is filled
        check_chunk(chunk, reservoir.shape[1], seen)
        numbers = np.arange(seen, seen + len(chunk))
        slots = (random.random(len(chunk)) * (numbers + 1)).astype(np.int64)
        slots = np.where(numbers < most, numbers, slots)
        kept = slots < most
        reservoir[slots[kept]] = chunk[kept]  # of two rows for a slot, numpy leaves the last
        seen += len(chunk)
    if reservoir is None or seen == 0:
        raise TransformError("no vector was seen: a transform is fitted on vectors")
    return reservoir[:seen]


def distinct_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The first of each group of equal rows: a repeated one could be fitted and held out at once."""
    first: dict[int, int] = {}
    for number, row in enumerate(rows):
        first.setdefault(hash(row.tobytes()), number)
    return rows[list(first.values())] if len(first) < len(rows) else rows
