"""Exact neighbours, and how many of them a search found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.index.spec import EXACT
from retrieval.index.vectors import VectorIndex

_TIES = 32
_EQUAL_SCORES = 1e-6  # what float32 sums of equal vectors differ by
_BLOCK_QUERIES = 256


@dataclass(frozen=True)
class Truth:
    """The nearest rows of each query, and those that are as near as the k-th: any of them is right.

    Parameters
    ----------
    scores : float32, shape (q, k and a few), falling
    rows : int64, the same shape
    k : how many are wanted.
    """

    scores: NDArray[np.float32]
    rows: NDArray[np.int64]
    k: int

    @classmethod
    def find(cls, exact: VectorIndex, queries: NDArray[np.float32], k: int) -> Truth:
        """Compare all; `queries` are unit vectors."""
        scores, rows = exact.search(queries, k + _TIES, setting=EXACT)
        return cls(scores, rows, min(k, rows.shape[1]))

    def recall(self, found: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of each query the share of the k nearest among the rows found, shape (q, any): float64, shape (q,)."""
        last = self.scores[:, self.k - 1 : self.k]
        right = np.where(self.scores >= last - _EQUAL_SCORES, self.rows, -2)
        shares = np.empty(len(found))
        for start in range(0, len(found), _BLOCK_QUERIES):
            block = slice(start, start + _BLOCK_QUERIES)
            hits = (found[block, : self.k, None] == right[block, None, :]).any(axis=2).sum(axis=1)
            shares[block] = hits / self.k
        return shares
