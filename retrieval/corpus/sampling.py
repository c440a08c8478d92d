"""A random part of a stream whose length is not known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa


def sampled(batches: Iterator[pa.RecordBatch], count: int, seed: int = 0) -> Iterator[pa.RecordBatch]:
    """`count` rows of the stream, or all where there are fewer, in their order; each set of rows is equally likely.

    Every row draws a number, and the rows with the smallest numbers stay: memory is that of 2 x `count` rows.
    """
    random = np.random.default_rng(seed)
    held: list[pa.RecordBatch] = []
    draws = np.empty(0)
    for batch in batches:
        held.append(batch)
        draws = np.concatenate([draws, random.random(batch.num_rows)])
        if len(draws) > 2 * count:
            held, draws = _smallest(held, draws, count)
    yield from _smallest(held, draws, count)[0] if len(draws) > count else held


def _smallest(
    held: list[pa.RecordBatch], draws: np.ndarray[tuple[int], np.dtype[np.float64]], count: int
) -> tuple[list[pa.RecordBatch], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    rows = np.sort(np.argpartition(draws, count)[:count])
    return pa.Table.from_batches(held).take(rows).combine_chunks().to_batches(), draws[rows]
