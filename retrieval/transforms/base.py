"""What every transform is, and what it asks of the vectors that it is fitted on."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import DimensionError, TransformError


class Transform(Protocol):
    """Raw embeddings (n, d) -> (n, m), fitted once and stored with the index; see Whitening and Flow."""

    @property
    def dimension(self) -> int:
        """d, of the vectors that go in."""
        ...

    @property
    def m(self) -> int:
        """Of the vectors that come out."""
        ...

    def transform(self, embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32, shape (n, d), not modified -> float32, shape (n, m), not of unit length."""
        ...

    def save(self, path: Path) -> None:
        """Write a safetensors file, which `apply.load_transform` reads."""
        ...


def check_shape(embeddings: NDArray[np.float32], dimension: int) -> None:
    """Raise DimensionError unless the shape is (n, dimension)."""
    if embeddings.ndim != 2 or embeddings.shape[1] != dimension:
        raise DimensionError(
            f"expected vectors of shape (n, {dimension}), as the transform was fitted, got {embeddings.shape}"
        )


def check_chunk(embeddings: NDArray[np.float32], dimension: int, first_row: int) -> None:
    """Rows that something is to be fitted on, `first_row` the number of the first.

    Raises
    ------
    DimensionError
        The shape is not (n, dimension).
    TransformError
        A value is NaN or infinite; the row is named.
    """
    check_dimension(embeddings, dimension)
    check_finite(embeddings, first_row)


def check_dimension(embeddings: NDArray[np.float32], dimension: int) -> None:
    """Raise DimensionError unless the shape is (n, dimension)."""
    if embeddings.ndim != 2 or embeddings.shape[1] != dimension:
        raise DimensionError(f"expected vectors of shape (n, {dimension}), got {embeddings.shape}")


def check_finite(embeddings: NDArray[np.float32], first_row: int) -> None:
    """Raise TransformError where a value is NaN or infinite; rows are counted from `first_row`."""
    flat = embeddings.reshape(-1)
    with np.errstate(all="ignore"):
        if np.isfinite(np.dot(flat, flat)):  # one pass without memory; large values may overflow, and are looked at
            return
    finite = np.isfinite(embeddings).all(axis=1)
    if not finite.all():
        raise TransformError(f"row {first_row + int(np.argmin(finite))} holds NaN or infinity")
