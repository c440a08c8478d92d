"""Unit vectors in FAISS: build, add, search. Rows and FAISS's own conventions end here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.errors import DimensionError, IndexFolderError, UsageError
from retrieval.index.balance import balance, balanced
from retrieval.index.gpu import gpu_copy, on_gpu
from retrieval.index.knobs import layers, parameters, read_setting, selective, stored, write_setting
from retrieval.index.spec import EXACT, INDEX_SPECS, KINDS, Setting, factory_string, list_count
from retrieval.index.spilled import Filling, distinct, spills

_FEW_ALLOWED = 20_000
_SHARE_ALLOWED = 0.05
"""Of the rows: where no more may be hits, comparing them all is no slower than a search that leaves the others out."""
_SHARE_CANDIDATES = 0.25
"""Of the rows: where so many would be refined, comparing all is no slower."""

_METRIC = faiss.METRIC_INNER_PRODUCT
_MOST_HITS_OF_GPU = 2048
_ANY_DIMENSION = 256
_ROUNDS, _MOST_POINTS = 5, 48
"""Of k-means over inverted lists, and of its points a list: twice as fast as FAISS's 10 over 64, and no recall lost."""
_UNPARSED = "could not parse"  # what index_factory says of a string that is none


def faiss_conflict() -> str | None:
    """What to do where both packages that hold the module `faiss` are installed; None where one is."""
    both = [name for name in ("faiss-cpu", "faiss-gpu") if _installed(name)]
    if len(both) < 2:
        return None
    return (
        "faiss-cpu and faiss-gpu are both installed and hold the same files: "
        "pip uninstall -y faiss-cpu faiss-gpu, then install the one that is wanted"
    )


def check_factory(spec: str, dimension: int | None = None) -> None:
    """Refuse what FAISS's factory cannot build for vectors of so many dimensions.

    Parameters
    ----------
    spec : `auto`, a kind, or a factory string
    dimension : m; None where it is not known yet, which refuses only what is no factory string at all.

    Raises
    ------
    UsageError
        With the choices.
    """
    if spec in INDEX_SPECS:
        return
    try:
        index = faiss.index_factory(dimension or _ANY_DIMENSION, spec, _METRIC)
    except RuntimeError as error:
        if dimension is None and _UNPARSED not in str(error):
            return
        shape = "" if dimension is None else f" for inner products of {dimension} dimensions"
        raise UsageError(
            f"unknown index {spec!r}: expected one of {', '.join(INDEX_SPECS)}, or a string that faiss.index_factory "
            f"takes{shape} ({_reason(error)})"
        ) from None
    if isinstance(layers(index)[-1], faiss.IndexNSG | faiss.IndexNNDescent):
        raise UsageError(f"the index {spec!r} takes all its vectors at once, and retr adds them in pieces: use hnsw")


class VectorIndex:
    """Nearest neighbours by inner product over unit vectors, that is by cosine.

    Parameters
    ----------
    dimension : m
    spec : a kind of `spec.KINDS`, or a FAISS factory string
    numbered : store row numbers beside the vectors, and leave out rows of zeros, which then are never found.
    rows : how many vectors it will hold, about: sets the number of inverted lists.
    """

    def __init__(self, dimension: int, spec: str = "flat", numbered: bool = False, *, rows: int = 0) -> None:
        check_factory(spec, dimension)
        factory = factory_string(spec, dimension, rows)
        coded = spec in KINDS and KINDS[spec].coded
        index = balanced(factory, dimension) if coded else faiss.index_factory(dimension, factory, _METRIC)
        innermost = layers(index)[-1]
        if spec in KINDS and isinstance(innermost, faiss.IndexIVF):
            innermost.cp.niter, innermost.cp.max_points_per_centroid = _ROUNDS, _MOST_POINTS
        self._own(faiss.IndexIDMap(index) if numbered else index)
        self._twice = spec in KINDS and KINDS[spec].twice
        self.setting = Setting(nprobe=max(8, list_count(rows) // 32), k_factor=8, ef_search=64)

    def _own(self, index: Any, mapped: bool = False) -> None:
        """Take a FAISS index; what maps positions to rows is peeled off for searches."""
        self._index = index  # owns what the others below only point to
        numbered = isinstance(self._index, faiss.IndexIDMap)
        self._inner = faiss.downcast_index(self._index.index) if numbered else self._index
        self._ids: NDArray[np.int64] | None = faiss.vector_to_array(self._index.id_map) if numbered else None
        self._rows = self._count_rows()
        self._gpu: tuple[Any, Any] | None = None
        self._mapped = mapped
        self._twice = spills(self._inner)
        self._filling: Filling | None = None

    def _count_rows(self) -> int:
        if self._ids is None:
            return len(self)
        return int(self._ids[-1]) + 1 if len(self._ids) else 0

    def __len__(self) -> int:
        """How many vectors can be found."""
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        return int(self._index.d)

    @property
    def rows(self) -> int:
        """How many rows were added, those of zeros included; zeros at the end are forgotten by saving."""
        return self._rows

    @property
    def is_trained(self) -> bool:
        """Whether vectors can be added."""
        return bool(self._index.is_trained)

    @property
    def setting(self) -> Setting:
        """How hard a search looks unless it is told otherwise; saved with the index."""
        return read_setting(self._inner)

    @setting.setter
    def setting(self, setting: Setting) -> None:
        write_setting(self._inner, setting)

    @property
    def lists(self) -> int:
        """Inverted lists; 0 for a kind that has none."""
        innermost = layers(self._inner)[-1]
        return int(innermost.nlist) if isinstance(innermost, faiss.IndexIVF) else 0

    @property
    def code_bytes(self) -> int:
        """Bytes of a vector that a search of all lists goes through before it refines, where FAISS tells."""
        return int(getattr(layers(self._inner)[-1], "code_size", 4 * self.dimension)) * (2 if self._twice else 1)

    def search_on(self, device: str) -> None:
        """Search batches on a GPU from now on, with a copy of the index there; what is saved stays the CPU's.

        Raises
        ------
        UsageError
            FAISS cannot use the GPU, or has no such kind for one.
        """
        self._gpu = gpu_copy(self._inner, device)

    def train(self, sample: NDArray[np.float32], device: str = "cpu") -> None:
        """Learn the centroids and codes of a kind that has such; nothing for another.

        Parameters
        ----------
        sample : unit vectors, float32, shape (n, m): rows of the corpus, chosen at random
        device : where k-means looks for the nearest centroids: `cpu` or `cuda`.

        Raises
        ------
        UsageError
            FAISS cannot train it on so few.
        """
        if self.is_trained:
            return
        sample = self._checked(sample)
        balance(self._inner, sample)
        with on_gpu(layers(self._inner)[-1], device), _quiet():
            try:
                self._index.train(sample)
            except RuntimeError as error:
                raise UsageError(f"{len(sample):,} vectors cannot train it: {_reason(error)}") from None

    def add(self, vectors: NDArray[np.float32]) -> None:
        """Append unit vectors, float32, shape (n, m); they take the next rows."""
        vectors = self._checked(vectors)
        if self._mapped:  # FAISS ends the process
            raise UsageError("this index is memory-mapped, and takes no vectors: load it with mmap=False")
        if not self.is_trained:
            raise UsageError("this kind of index learns from a sample: train it before vectors are added")
        new = vectors if self._ids is None else vectors[vectors.any(axis=1)]
        if self._ids is not None:
            self._ids = np.concatenate([self._ids, np.flatnonzero(vectors.any(axis=1)) + self._rows])
        if self._twice:
            self._filling = self._filling or Filling(self._inner)
            self._filling.add(new)
            self._index.ntotal = self._inner.ntotal
        elif self._ids is None:
            self._index.add(new)
        else:
            self._index.add_with_ids(new, self._ids[len(self) :])
        self._rows += len(vectors)
        self._gpu = None  # which lacks them

    def _settle(self) -> None:
        """Let FAISS find what was added."""
        if self._filling is not None:
            self._filling.pack()
            self._filling = None
            if self._ids is not None:
                faiss.copy_array_to_vector(self._ids, self._index.id_map)

    def search(
        self,
        queries: NDArray[np.float32],
        k: int,
        *,
        allowed: NDArray[np.bool_] | None = None,
        setting: Setting | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The nearest rows of each query.

        Parameters
        ----------
        queries : float32, unit vectors, shape (q, m)
        k : at least 1; more than there are rows gives all of them.
        allowed : bool, shape (rows,): the rows that may be hits; rows beyond its end may not. None allows all.
        setting : how hard to look, instead of the index's own `setting`; `spec.EXACT` compares every stored vector.

        Returns
        -------
        scores : float32, shape (q, min(k, number of vectors allowed)), falling, within [-1, 1]
        rows : int64, same shape; of equal scores the smaller row comes first.
        """
        if k < 1:
            raise UsageError(f"k is {k}, expected at least 1")
        self._settle()
        queries = self._checked(queries)
        mask = None if allowed is None else self._positions_allowed(allowed)
        count = len(self) if mask is None else int(mask.sum())
        k = min(k, count)
        if k == 0:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        gpu = self._gpu if len(queries) > 1 and k <= _MOST_HITS_OF_GPU and setting is None else None
        setting = setting or self.setting
        if mask is not None and count == len(self):
            mask = None
        if gpu is not None and mask is None:
            scores, positions = gpu[0].search(queries, k)
        elif self._exhaustive(setting, k, count if mask is not None else None):
            scores, positions = self._compare_all(queries, k, mask)
        else:
            scores, positions = self._look(queries, k, mask, setting)
        if (short := (positions < 0).any(axis=1)).any():
            scores[short], positions[short] = self._compare_all(queries[short], k, mask)
        scores = scores.clip(-1, 1)  # FAISS's sums of float32 products reach 1.0000008
        rows = positions if self._ids is None else self._ids[positions]
        order = np.lexsort((rows, -scores), axis=1)
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)

    def candidates(
        self, queries: NDArray[np.float32], count: int, allowed: NDArray[np.bool_], setting: Setting
    ) -> NDArray[np.int64]:
        """The rows that a search would refine, the nearest by their codes first, shape (q, count); -1: no more."""
        self._settle()
        mask = self._positions_allowed(allowed)
        base = self._inner.base_index if isinstance(self._inner, faiss.IndexRefine) else self._inner
        base = faiss.downcast_index(base)
        if selective(base):
            _, positions = base.search(queries, count, params=parameters(base, setting, mask))
        else:
            most = min(len(self), count + int((~mask).sum()))
            _, positions = self._drop(base, queries, count, mask, most, setting)
        rows: NDArray[np.int64] = positions if self._ids is None else np.where(positions >= 0, self._ids[positions], -1)
        return rows

    def _positions_allowed(self, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """bool, shape (vectors,): by FAISS's positions, which leave rows of zeros out."""
        if allowed.ndim != 1 or allowed.dtype != np.bool_:
            raise UsageError(f"allowed is {allowed.dtype} of shape {allowed.shape}, expected bool of shape (rows,)")
        whole = np.zeros(max(self._rows, len(allowed)), np.bool_)
        whole[: len(allowed)] = allowed
        return whole[: len(self)] if self._ids is None else whole[self._ids]

    def _exhaustive(self, setting: Setting, k: int, allowed: int | None) -> bool:
        candidates = k * (setting.k_factor or 1)
        return setting.exact or candidates >= _SHARE_CANDIDATES * len(self) or self._few(allowed)

    def _few(self, allowed: int | None) -> bool:
        """Whether so few rows may be hits that a search which leaves the others out finds too little."""
        return allowed is not None and allowed <= max(_FEW_ALLOWED, _SHARE_ALLOWED * len(self))

    def _look(
        self, queries: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None, setting: Setting
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The search that the kind is for; position -1 where it finds fewer than k."""
        if self._twice:
            setting = replace(setting, k_factor=max(1, (setting.k_factor or self.setting.k_factor or 1) / 2))
            scores, positions = self._inner.search(queries, 2 * k, params=parameters(self._inner, setting, mask))
            return distinct(scores, positions, k)
        if mask is None or selective(self._inner):
            scores, positions = self._inner.search(queries, k, params=parameters(self._inner, setting, mask))
            return scores, positions
        share = mask.sum() / len(self)
        most = min(len(self), int(1.2 * k / share) + 16)
        if setting.k_factor:  # as many candidates that are allowed as where all are
            setting = replace(setting, k_factor=max(1, setting.k_factor * k / share / most))
        return self._drop(self._inner, queries, k, mask, most, setting)

    def _compare_all(
        self, queries: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Every stored vector that is allowed, compared."""
        index = stored(self._inner)
        if mask is None or selective(index):
            scores, positions = index.search(queries, k, params=parameters(index, EXACT, mask))
            return scores, positions
        return self._drop(index, queries, k, mask, len(self), EXACT)

    @staticmethod
    def _drop(
        index: Any, queries: NDArray[np.float32], k: int, mask: NDArray[np.bool_], most: int, setting: Setting
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """For what cannot leave rows out while it searches: ask for more, and drop them."""
        scores, positions = index.search(queries, most, params=parameters(index, setting, None))
        dropped = (positions < 0) | ~mask[positions]
        scores[dropped], positions[dropped] = -np.inf, -1
        order = np.argsort(dropped, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(positions, order, axis=1)

    def save(self, path: Path) -> None:
        """Write FAISS's own file. Raises OSError where it cannot be written whole."""
        self._settle()
        try:
            faiss.write_index(self._index, str(path))
        except RuntimeError as error:
            raise OSError(f"{path} cannot be written (is the disk full?): {_reason(error)}") from None

    @classmethod
    def load(cls, path: Path, mmap: bool = True) -> VectorIndex:
        """Open what `save` wrote.

        Parameters
        ----------
        mmap : map the vectors where FAISS can, instead of reading them; nothing can be added to such an index.

        Raises
        ------
        IndexFolderError
            The file is not that.
        """
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mmap else 0)
        except RuntimeError as error:
            raise IndexFolderError(
                f"{path} is not a whole FAISS index ({_reason(error)}): build the index again"
            ) from None
        loaded = cls.__new__(cls)
        loaded._own(index, mmap)
        return loaded

    def _checked(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise DimensionError(f"expected vectors of shape (n, {self.dimension}), got {vectors.shape}")
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            raise UsageError(f"vector {int(finite.argmin())} holds NaN or infinity: expected finite numbers")
        return vectors


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what C++ says about few training points off the terminal."""
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _reason(error: RuntimeError) -> str:
    """FAISS's message without the C++ function and line that it begins with."""
    return re.sub(r"^Error in .*\.(cpp|h|cu):\d+: (Error: )?", "", str(error).splitlines()[0])
