"""Unit vectors in chunks -> a trained and filled VectorIndex."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from retrieval.index.spec import sample_rows
from retrieval.index.vectors import VectorIndex
from retrieval.types import Progress

SEED = 0
Chunks = Callable[[], Iterator[NDArray[np.float32]]]
"""All unit vectors in row order, a chunk at a time, whenever it is called; rows of zeros are texts without a vector."""


def build_vectors(
    chunks: Chunks, rows: int, dimension: int, spec: str, *, numbered: bool, progress: Progress
) -> VectorIndex:
    """Train an index on a seeded sample of the rows, and add them all.

    Parameters
    ----------
    chunks : see Chunks
    rows : of all chunks
    dimension : m
    spec : a kind, or a FAISS factory string
    numbered : whether there may be rows of zeros.
    """
    index = VectorIndex(dimension, spec, numbered, rows=rows)
    if not index.is_trained:
        count = sample_rows(spec, dimension, rows)
        chosen = np.sort(np.random.default_rng(SEED).permutation(rows)[:count])
        with progress.stage("training", "vectors", count):
            index.train(take(chunks, chosen))
    with progress.stage("indexing", "vectors", rows) as advance:
        for chunk in chunks():
            index.add(chunk)
            advance(len(chunk))
    return index


def take(chunks: Chunks, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """The vectors of some rows, which rise; those of zeros left out. float32, shape (at most len(rows), m)."""
    found, start = [], 0
    for chunk in chunks():
        inside = rows[(rows >= start) & (rows < start + len(chunk))] - start
        found.append(chunk[inside])
        start += len(chunk)
    vectors = np.concatenate(found)
    return vectors[vectors.any(axis=1)]
