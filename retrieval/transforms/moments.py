"""Mean and covariance of a stream of vectors, in one pass and O(d^2) memory; merged, saved, and gone on with.

Data shifted by a first estimate of the mean lose no digits to the mean's size, and two sums about different shifts
are added by moving one: Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance".

Products are float64, unless only the first rows are wanted so (`usual_exact_rows`: they show that repeated rows have no
more directions than there are distinct ones). The rows after them are then multiplied in float32, at half the time, and
their blocks added in float64; what rounding can put into an eigenvalue is `noise`, below which no direction is taken
for the data's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import DimensionError, TransformError
from retrieval.storage import atomic_file
from retrieval.transforms.base import check_dimension, check_finite

BLOCK_ROWS = 4096
USUAL = -1
_EXACT_VALUES = 1 << 24


def usual_exact_rows(dimension: int) -> int:
    """So many rows that float64 costs little: 40,960 of 384 dimensions, 20,480 of 768, 2,097,152 of 8."""
    return max(1, _EXACT_VALUES // dimension // BLOCK_ROWS) * BLOCK_ROWS


class Moments:
    """Mean and covariance of all rows seen, the same to the last bit however the rows are cut into chunks.

    Parameters
    ----------
    dimension : d
    exact_rows : so many rows are multiplied in float64, the ones after them in float32; None: all in float64. USUAL:
        `usual_exact_rows`, which large corpora want: half the time.
    """

    def __init__(self, dimension: int, exact_rows: int | None = None) -> None:
        self.dimension = dimension
        self._exact_rows = usual_exact_rows(dimension) if exact_rows == USUAL else exact_rows
        self._rows = 0  # in whole blocks
        self._rounded = 0  # of these, in float32
        self._shift: NDArray[np.float32] | None = None
        self._sum = np.zeros(dimension)  # of x - shift
        self._products = np.zeros((dimension, dimension))  # of (x - shift)(x - shift)^T
        # Rows wait here for a full block: sums are always taken over the same blocks, whatever the chunks were.
        self._waiting = np.empty((BLOCK_ROWS, dimension), dtype=np.float32)
        self._waiting_rows = 0

    @property
    def rows(self) -> int:
        """How many rows were seen."""
        return self._rows + self._waiting_rows

    @property
    def exact(self) -> bool:
        """Whether all products so far were taken in float64."""
        return self._rounded_rows == 0

    def update(self, embeddings: NDArray[np.float32]) -> None:
        """Take more rows.

        Parameters
        ----------
        embeddings : float32, shape (n, d); not modified.

        Raises
        ------
        DimensionError
            d is not the dimension.
        TransformError
            A value is NaN or infinite; the row is named. Rows before it may have been taken.
        """
        embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
        check_dimension(embeddings, self.dimension)
        self._take(embeddings, checked=False)

    def take(self, embeddings: NDArray[np.float32]) -> None:
        """`update` with rows that were checked already."""
        self._take(embeddings, checked=True)

    def merged(self, other: Moments) -> Moments:
        """The moments of the rows of both; neither is changed.

        Equal to one pass over all rows but for rounding: within 1e-12 of the covariance's largest entry where all is
        `exact`, which by default it is. With float32 products, within 1e-7: a block's product is rounded according to
        the shift and to which rows share the block, and a part has its own of both from wherever it was cut.

        Raises
        ------
        DimensionError
            The other has another dimension.
        """
        if other.dimension != self.dimension:
            raise DimensionError(f"moments of {other.dimension} dimensions cannot join those of {self.dimension}")
        one, two = (other, self) if self._shift is None and other._shift is not None else (self, other)
        both = Moments(self.dimension, self._exact_rows)
        both._rows, both._rounded = one._rows + two._rows, one._rounded + two._rounded
        both._shift = one._shift
        both._sum += one._sum
        both._products += one._products
        if one._shift is not None and two._shift is not None:
            move = two._shift.astype(np.float64) - one._shift  # x - a = (x - b) + (b - a)
            crossed = np.outer(move, two._sum)
            both._sum += two._sum + two._rows * move
            both._products += two._products + crossed + crossed.T + two._rows * np.outer(move, move)
        for part in (one, two):
            both.update(part._waiting[: part._waiting_rows])
        return both

    def mean(self) -> NDArray[np.float64]:
        """float64, shape (d,). Raises TransformError where no row was seen."""
        sums, _, shift = self._whole()
        return sums / self.rows + shift

    def covariance(self) -> NDArray[np.float64]:
        """float64, shape (d, d): the mean of (x - mean)(x - mean)^T, divided by n (not n - 1)."""
        sums, products, _ = self._whole()
        return products / self.rows - np.outer(sums / self.rows, sums / self.rows)

    def noise(self) -> float:
        """The largest eigenvalue that rounding alone can give the covariance.

        Independent errors of e sqrt(v_i v_j), v being the diagonal of the products over n, make a symmetric matrix
        whose eigenvalues are at most about 2 e sqrt(max(v) sum(v)) (Wigner's semicircle, with unequal variances). e
        is float32's epsilon for the share of rows multiplied in it, and 1.5 times float64's for all that comes after.
        """
        _, products, _ = self._whole()
        variances = products.diagonal() / self.rows
        share = self._rounded_rows / self.rows
        e = share * float(np.finfo(np.float32).eps) + 1.5 * float(np.finfo(np.float64).eps)
        return 2 * e * float(np.sqrt(variances.max() * variances.sum()))

    def tensors(self) -> tuple[dict[str, NDArray[np.generic]], dict[str, int | None]]:
        """What `from_tensors` makes the same object of: arrays, and numbers by name."""
        arrays: dict[str, NDArray[np.generic]] = {
            "sum": self._sum,
            "products": self._products,
            "waiting": self._waiting[: self._waiting_rows],
        }
        if self._shift is not None:
            arrays["shift"] = self._shift
        return arrays, {"rows": self._rows, "rounded_rows": self._rounded, "exact_rows": self._exact_rows}

    @classmethod
    def from_tensors(cls, arrays: dict[str, NDArray[np.generic]], numbers: dict[str, int | None]) -> Moments:
        """What `tensors` was taken of. Raises KeyError, TypeError or ValueError where they are not that."""
        products, waiting = np.asarray(arrays["products"], np.float64), np.asarray(arrays["waiting"], np.float32)
        moments = cls(len(products), numbers["exact_rows"])
        moments._rows, moments._rounded = int(numbers["rows"] or 0), int(numbers["rounded_rows"] or 0)
        moments._shift = np.asarray(arrays["shift"], np.float32) if moments._rows else None
        moments._sum += np.asarray(arrays["sum"], np.float64)
        moments._products += products
        moments._waiting_rows = len(waiting)
        moments._waiting[: len(waiting)] = waiting
        return moments

    def save(self, path: Path) -> None:
        """Write a safetensors file, from which `load` makes the same object, to the last bit."""
        save_moments(path, {"moments": self})

    @classmethod
    def load(cls, path: Path) -> Moments:
        """Read what `save` wrote. Raises TransformError where the file is not that."""
        return load_moments(path, ("moments",))[0]["moments"]

    @property
    def _next_is_rounded(self) -> bool:
        return self._exact_rows is not None and self._rows >= self._exact_rows

    @property
    def _rounded_rows(self) -> int:
        return self._rounded + (self._waiting_rows if self._next_is_rounded else 0)

    def _take(self, rows: NDArray[np.float32], checked: bool) -> None:
        start = 0
        while start < len(rows):
            taken = rows[start : start + BLOCK_ROWS - self._waiting_rows]
            start += len(taken)
            if len(taken) == BLOCK_ROWS:
                self._take_block(taken, checked)
                continue
            if not checked:
                check_finite(taken, self.rows)
            self._waiting[self._waiting_rows : self._waiting_rows + len(taken)] = taken
            self._waiting_rows += len(taken)
            if self._waiting_rows == BLOCK_ROWS:
                self._waiting_rows = 0
                self._take_block(self._waiting, True)

    def _take_block(self, block: NDArray[np.float32], checked: bool) -> None:
        if self._shift is None:
            if not checked:
                check_finite(block, self._rows)
            self._shift = _first_estimate(block)
        with np.errstate(all="ignore"):
            sums, products = _sums(block, self._shift, self._next_is_rounded)
        if not checked and not np.isfinite(sums).all():  # large values overflow, and are no fault
            check_finite(block, self._rows)
        self._rounded += len(block) if self._next_is_rounded else 0
        self._rows += len(block)
        self._sum += sums
        self._products += products

    def _whole(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float32]]:
        """Sum, products and shift with the waiting rows taken in; the object is not changed."""
        waiting = self._waiting[: self._waiting_rows]
        if self.rows == 0:
            raise TransformError("no vector was seen: a mean needs at least one")
        shift = _first_estimate(waiting) if self._shift is None else self._shift
        if len(waiting) == 0:
            return self._sum, self._products, shift
        sums, products = _sums(waiting, shift, self._next_is_rounded)
        return self._sum + sums, self._products + products, shift


def save_moments(path: Path, moments: dict[str, Moments], metadata: dict[str, str] | None = None) -> None:
    """Write moments by name into one safetensors file, with `metadata` beside them."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[np.generic]] = {}
    numbers: dict[str, dict[str, int | None]] = {}
    for name, each in moments.items():
        own, numbers[name] = each.tensors()
        arrays |= {f"{name}.{key}": np.ascontiguousarray(array) for key, array in own.items()}
    with atomic_file(path) as file:
        file.write(save(arrays, {**(metadata or {}), "moments": json.dumps(numbers)}))


def load_moments(path: Path, names: Sequence[str]) -> tuple[dict[str, Moments], dict[str, str]]:
    """What `save_moments` wrote: the moments by name, and the metadata. Raises TransformError where it is not that."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
            numbers = json.loads(metadata["moments"])
            arrays: dict[str, dict[str, NDArray[np.generic]]] = {name: {} for name in names}
            for key in file.keys():  # noqa: SIM118 (not a dict)
                name, _, part = key.partition(".")
                arrays[name][part] = file.get_tensor(key)
            return {name: Moments.from_tensors(arrays[name], numbers[name]) for name in names}, metadata
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise TransformError(f"{path} does not hold moments: {error}") from None


def _first_estimate(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of the mean: rounded to float32, so that equal rows leave exactly zero."""
    return np.asarray(rows.mean(axis=0, dtype=np.float64), dtype=np.float32)


def _sums(
    rows: NDArray[np.float32], shift: NDArray[np.float32], rounded: bool
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Sum (d,) and products (d, d) of the shifted rows, in float32 where `rounded`, else in float64."""
    shifted = np.subtract(rows, shift, dtype=np.float32 if rounded else np.float64)
    return np.ones(len(rows), dtype=shifted.dtype) @ shifted, shifted.T @ shifted
