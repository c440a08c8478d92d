"""The files of ann-benchmarks (Aumüller, Bernhardsson, Faithfull 2018, arXiv:1807.05614): HDF5 with train, test,
neighbors and distances. The distance is `angular`, 1 - cosine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import CorpusError, RetrError, UsageError
from retrieval.evaluation.bench.sources import Source, as_float32, by_rows, check_vectors
from retrieval.storage import atomic_file

NEIGHBORS = 100
"""As many as the files of ann-benchmarks hold."""


def hdf5_source(path: Path) -> Source:
    """Documents out of `train`, queries out of `test`, and `neighbors` to compare the exact search with.

    Raises
    ------
    CorpusError
        It is no HDF5 file, or lacks train or test.
    UsageError
        Its distance is not angular.
    """
    h5py = _h5py()
    if not path.is_file():
        raise CorpusError(f"no such file: '{path}'")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise CorpusError(f"'{path}' cannot be read as HDF5: {str(error).splitlines()[0]}") from None
    if lacking := [name for name in ("train", "test") if name not in file]:
        there = ", ".join(file) or "nothing"
        raise CorpusError(f"'{path}' lacks {' and '.join(lacking)}: it holds {there}; expected ann-benchmarks' form")
    distance = file.attrs.get("distance", "angular")
    distance = distance.decode() if isinstance(distance, bytes) else str(distance)
    if distance != "angular":
        raise UsageError(f"'{path}' is for the distance {distance!r}: retr searches by cosine, expected 'angular'")
    train, test = (check_vectors(file[name], f"{path}: {name}") for name in ("train", "test"))
    if train.shape[1] != test.shape[1]:
        raise CorpusError(f"'{path}': train has {train.shape[1]} dimensions, and test {test.shape[1]}")
    neighbors = np.asarray(file["neighbors"], np.int64) if "neighbors" in file else None
    name = f"the vectors of '{path.name}'"
    return Source(name, train.shape[1], len(train), *by_rows(train), as_float32(test[:]), neighbors=neighbors)


def write_hdf5(
    path: Path,
    train: NDArray[np.float32],
    test: NDArray[np.float32],
    neighbors: NDArray[np.int64],
    cosines: NDArray[np.float32],
) -> None:
    """Write what ann-benchmarks runs.

    Parameters
    ----------
    train, test : unit vectors, float32, shapes (n, m) and (q, m).
    neighbors, cosines : the nearest rows of each query, shape (q, at most NEIGHBORS), nearest first.
    """
    h5py = _h5py()
    with atomic_file(path) as stream, h5py.File(stream, "w") as file:
        attributes: dict[str, Any] = {"type": "dense", "distance": "angular", "point_type": "float"}
        file.attrs.update(attributes | {"dimension": train.shape[1]})
        for name, values in (("train", train), ("test", test)):
            file.create_dataset(name, data=values)
        file.create_dataset("neighbors", data=neighbors.astype(np.int32))
        file.create_dataset("distances", data=(1 - cosines).astype(np.float32))


def check_h5py() -> None:
    """Raise RetrError where h5py is not installed."""
    _h5py()


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise RetrError(
            f"HDF5 needs the package h5py, which is not installed ({error}): pip install 'retr[hdf5]'"
        ) from None
    return h5py
