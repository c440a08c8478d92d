"""Unit vectors in FAISS: build, add, search. Rows and FAISS's own conventions end here."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.errors import DimensionError, IndexFolderError, UsageError
from retrieval.index.spec import factory_string


def faiss_conflict() -> str | None:
    """What to do where both packages that hold the module `faiss` are installed; None where one is."""
    both = [name for name in ("faiss-cpu", "faiss-gpu") if _installed(name)]
    if len(both) < 2:
        return None
    return (
        "faiss-cpu and faiss-gpu are both installed and hold the same files: "
        "pip uninstall -y faiss-cpu faiss-gpu, then install the one that is wanted"
    )


class VectorIndex:
    """Nearest neighbours by inner product over unit vectors, that is by cosine.

    Parameters
    ----------
    dimension : m
    spec : a kind that `spec.resolve_spec` gives
    numbered : store row numbers beside the vectors, and leave out rows of zeros, which then are never found.
    """

    def __init__(self, dimension: int, spec: str = "flat", numbered: bool = False) -> None:
        factory = ("IDMap," if numbered else "") + factory_string(spec)
        self._index: Any = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        self._own()

    def _own(self) -> None:
        numbered = isinstance(self._index, faiss.IndexIDMap)
        self._ids: NDArray[np.int64] | None = faiss.vector_to_array(self._index.id_map) if numbered else None
        self._rows = len(self) if self._ids is None else int(self._ids[-1]) + 1 if len(self._ids) else 0

    @property
    def rows(self) -> int:
        """How many rows were added, those of zeros included; zeros at the end are forgotten by saving."""
        return self._rows

    @property
    def numbered(self) -> bool:
        """Whether rows of zeros are left out."""
        return self._ids is not None

    def __len__(self) -> int:
        """How many vectors can be found."""
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        return int(self._index.d)

    def add(self, vectors: NDArray[np.float32]) -> None:
        """Append unit vectors, float32, shape (n, m); they take the next rows."""
        vectors = self._checked(vectors)
        if self._ids is not None:
            found = np.flatnonzero(vectors.any(axis=1))
            self._index.add_with_ids(vectors[found], found + self._rows)
            self._ids = np.concatenate([self._ids, found + self._rows])
        else:
            self._index.add(vectors)
        self._rows += len(vectors)

    def search(
        self, queries: NDArray[np.float32], k: int, *, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The nearest rows of each query.

        Parameters
        ----------
        queries : float32, unit vectors, shape (q, m)
        k : at least 1; more than there are rows gives all of them.
        allowed : bool, shape (rows,): the rows that may be hits. None allows all.

        Returns
        -------
        scores : float32, shape (q, min(k, number of vectors allowed)), falling, within [-1, 1]
        rows : int64, same shape; of equal scores the smaller row comes first.
        """
        if k < 1:
            raise UsageError(f"k is {k}, expected at least 1")
        queries = self._checked(queries)
        count, params = len(self), None
        if allowed is not None:
            count = int(allowed.sum() if self._ids is None else allowed[self._ids].sum())
            bits = np.packbits(allowed, bitorder="little")
            params = faiss.SearchParameters(sel=faiss.IDSelectorBitmap(bits))  # type: ignore[call-arg,arg-type]
        if (k := min(k, count)) == 0:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        scores, rows = self._index.search(queries, k, params=params)
        scores = scores.clip(-1, 1)  # FAISS's sums of float32 products reach 1.0000008
        order = np.lexsort((rows, -scores), axis=1)
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)

    def save(self, path: Path) -> None:
        """Write FAISS's own file. Raises OSError where it cannot be written whole."""
        try:
            faiss.write_index(self._index, str(path))
        except RuntimeError as error:
            raise OSError(f"{path} cannot be written (is the disk full?): {_reason(error)}") from None

    @classmethod
    def load(cls, path: Path, mmap: bool = True) -> VectorIndex:
        """Open what `save` wrote. Raises IndexFolderError where the file is not that.

        Parameters
        ----------
        mmap : map the vectors instead of reading them; nothing can be added to such an index.
        """
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mmap else 0)
        except RuntimeError as error:
            raise IndexFolderError(
                f"{path} is not a whole FAISS index ({_reason(error)}): build the index again"
            ) from None
        loaded = cls.__new__(cls)
        loaded._index = index
        loaded._own()
        return loaded

    def _checked(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise DimensionError(f"expected vectors of shape (n, {self.dimension}), got {vectors.shape}")
        return np.ascontiguousarray(vectors, dtype=np.float32)


def _installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _reason(error: RuntimeError) -> str:
    return str(error).splitlines()[0].split("Error: ")[-1]
