"""Mean and covariance of a stream of vectors, in one pass and O(d^2) memory.

Data shifted by a first estimate of the mean lose no digits to the mean's size: Chan, Golub, LeVeque 1983,
"Algorithms for computing the sample variance". Products and sums are float64: float32 products leave noise of 1e-7 of
the largest eigenvalue, which hides that repeated rows have no more directions than there are distinct ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import TransformError
from retrieval.transforms.base import check_chunk

BLOCK_ROWS = 4096


class Moments:
    """Mean and covariance of all rows seen, the same to the last bit however the rows are cut into chunks.

    Parameters
    ----------
    dimension : d
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._rows = 0
        self._shift: NDArray[np.float64] | None = None
        self._sum = np.zeros(dimension)  # of x - shift
        self._products = np.zeros((dimension, dimension))  # of (x - shift)(x - shift)^T
        # Rows wait here for a full block: sums are always taken over the same blocks, whatever the chunks were.
        self._waiting = np.empty((BLOCK_ROWS, dimension), dtype=np.float32)
        self._waiting_rows = 0

    @property
    def rows(self) -> int:
        """How many rows were seen."""
        return self._rows + self._waiting_rows

    def update(self, embeddings: NDArray[np.float32]) -> None:
        """Take more rows.

        Parameters
        ----------
        embeddings : float32, shape (n, d)

        Raises
        ------
        DimensionError
            d is not the dimension.
        TransformError
            A value is NaN or infinite; the row is named.
        """
        check_chunk(embeddings, self.dimension, self.rows)
        start = 0
        while start < len(embeddings):
            taken = embeddings[start : start + BLOCK_ROWS - self._waiting_rows]
            self._waiting[self._waiting_rows : self._waiting_rows + len(taken)] = taken
            self._waiting_rows += len(taken)
            start += len(taken)
            if self._waiting_rows == BLOCK_ROWS:
                self._rows, self._sum, self._products, self._shift = self._with_waiting()
                self._waiting_rows = 0

    def mean(self) -> NDArray[np.float64]:
        """float64, shape (d,). Raises TransformError where no row was seen."""
        rows, sums, _, shift = self._with_waiting()
        return sums / rows + shift

    def covariance(self) -> NDArray[np.float64]:
        """float64, shape (d, d): the mean of (x - mean)(x - mean)^T, divided by n (not n - 1)."""
        rows, sums, products, _ = self._with_waiting()
        return products / rows - np.outer(sums / rows, sums / rows)

    def _with_waiting(self) -> tuple[int, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Rows, sum, products and shift with the waiting rows taken in; the object is not changed."""
        waiting = self._waiting[: self._waiting_rows]
        if self._shift is not None:
            shift = self._shift
        elif len(waiting):
            shift = waiting.mean(axis=0, dtype=np.float64)
        else:
            raise TransformError("no vector was seen: a mean needs at least one")
        shifted = waiting - shift
        return (
            self._rows + len(waiting),
            self._sum + shifted.sum(axis=0),
            self._products + shifted.T @ shifted,
            shift,
        )
