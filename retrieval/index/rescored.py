"""Codes in memory, vectors on disk: FAISS finds candidates by their codes, and their own vectors score them.

Those are the raw embeddings that an index folder keeps anyway, transformed when they are read: a document takes some
dozens of bytes of memory, scores are exact to float32, and a query reads some hundred rows of the embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.errors import UsageError
from retrieval.index.knobs import parameters, read_setting, write_setting
from retrieval.index.spec import EXACT, Setting
from retrieval.index.vectors import VectorIndex
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform
from retrieval.transforms.whitening import Whitening

Take = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""The unit vectors of some rows, which rise, int64, shape (n,): float32, shape (n, m)."""

Raw = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""The raw embeddings of such rows: float32, shape (n, d)."""

_FEW_ROWS = 512
_K_FACTOR = 8.0  # until it is tuned
_BLOCK_ROWS = 16_384
"""So many vectors are held at once."""
_SHARE_CANDIDATES = 0.25
"""Of the rows: where so many are candidates, scoring all is no slower."""


def transformed(raw: Raw, transform: Transform | None) -> Take:
    """The unit vectors of embeddings."""
    quick = _RowByRow(**vars(transform)) if isinstance(transform, Whitening) else transform
    return lambda rows: unit_vectors(raw(rows), quick)


class _RowByRow(Whitening):
    """A whitening that multiplies few rows one by one.

    For a hundred rows at once BLAS sets all cores to work, and has them wait for each other: 0.1 ms where they are
    free, and 20 ms where another process holds one. Rows one by one take 0.2 ms either way.
    """

    @cached_property
    def kernel(self) -> NDArray[np.float32]:
        """Made once, not for every query."""
        return super().kernel

    def transform(self, embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
        """As of a whitening."""
        if len(embeddings) > _FEW_ROWS:
            return super().transform(embeddings)
        return np.asarray(((embeddings - self.mean)[:, None] @ self.kernel)[:, 0], dtype=np.float32)


class RescoredIndex(VectorIndex):
    """An index of codes that scores its candidates with vectors read from elsewhere.

    Parameters
    ----------
    index : holds the codes, and goes on as this one; saved, it holds no more than them.
    take : gives the vectors, when they are wanted.

    `setting.k_factor` is not kept by FAISS's file: whoever opens it has to set it again.
    """

    def __init__(self, index: VectorIndex, take: Take) -> None:
        self._own(index._index, index._mapped)
        self._take, self._k_factor = take, _K_FACTOR

    @property
    def setting(self) -> Setting:
        """How hard a search looks unless it is told otherwise."""
        return replace(read_setting(self._inner), k_factor=self._k_factor)

    @setting.setter
    def setting(self, setting: Setting) -> None:
        write_setting(self._inner, setting)
        self._k_factor = setting.k_factor or self._k_factor

    def search_on(self, device: str) -> None:
        """Refuse, as a GPU would give the scores of codes."""
        raise UsageError("this kind of index scores its candidates on the CPU")

    def _exhaustive(self, setting: Setting, k: int, allowed: int | None) -> bool:
        least = _SHARE_CANDIDATES * (len(self) if allowed is None else allowed)
        return setting.exact or k * (setting.k_factor or self._k_factor) >= least

    def _look(
        self, queries: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None, setting: Setting
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Candidates by their codes, then scored; where few rows may be hits, they are looked for in every list."""
        count = int(k * (setting.k_factor or self._k_factor))
        if mask is not None and self._few(int(mask.sum())):
            setting = EXACT
        _, positions = self._inner.search(queries, count, params=parameters(self._inner, setting, mask))
        if (short := positions[:, k - 1] < 0).any():
            every = parameters(self._inner, EXACT, mask)
            positions[short] = self._inner.search(queries[short], count, params=every)[1]
        scores = np.empty((len(queries), k), np.float32)
        nearest = np.empty((len(queries), k), np.int64)
        step = max(1, _BLOCK_ROWS // count)
        for start in range(0, len(queries), step):
            block = slice(start, start + step)
            scores[block], nearest[block] = self._score(queries[block], positions[block], k)
        return scores, nearest

    def _score(
        self, queries: NDArray[np.float32], positions: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The k best of candidates, shape (q, count); each vector is read once, in the order of the file."""
        distinct, places = np.unique(positions, return_inverse=True)
        vectors = np.zeros((len(distinct), self.dimension), np.float32)
        vectors[distinct >= 0] = self._vectors(distinct[distinct >= 0])
        scores = np.einsum("qcm,qm->qc", vectors[places.reshape(positions.shape)], queries)
        scores[positions < 0] = -np.inf
        best = np.lexsort((positions, -scores), axis=1)[:, :k]
        return np.take_along_axis(scores, best, axis=1), np.take_along_axis(positions, best, axis=1)

    def _compare_all(
        self, queries: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Every vector that is allowed, read and compared."""
        positions = np.arange(len(self)) if mask is None else np.flatnonzero(mask)
        heap = faiss.ResultHeap(len(queries), k, keep_max=True)
        for start in range(0, len(positions), _BLOCK_ROWS):
            block = positions[start : start + _BLOCK_ROWS]
            scores, places = faiss.knn(queries, self._vectors(block), min(k, len(block)), faiss.METRIC_INNER_PRODUCT)
            heap.add_result(scores, block[places])
        heap.finalize()
        return heap.D, heap.I

    def _vectors(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._take(positions if self._ids is None else self._ids[positions])
