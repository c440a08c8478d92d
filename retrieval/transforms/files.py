"""Vectors in files, .npy or Parquet: read in chunks, and written again transformed, in the same form.

A .npy file is memory-mapped and never unpickled. Of a Parquet file one column holds the vectors, as lists or lists of a
fixed size; the other columns are carried along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import DimensionError, TransformError, UsageError
from retrieval.storage import atomic_file
from retrieval.transforms.base import check_finite

if TYPE_CHECKING:
    import pyarrow as pa

NPY, PARQUET = ".npy", ".parquet"
_CHUNK_BYTES = 1 << 24

Map = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""(n, d) -> (n, m)."""
Tell = Callable[[int], None]


class VectorFile(Protocol):
    """A file of vectors: float16, float32 or float64, shape (rows, dimension)."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    @property
    def rows(self) -> int:
        """How many vectors it holds."""
        ...

    @property
    def dimension(self) -> int | None:
        """d; None where there is no row to tell it."""
        ...

    def chunks(self) -> Iterator[NDArray[np.float32]]:
        """All rows, as float32, in chunks of some 16 MiB.

        Raises TransformError where a value is NaN or infinite, or none (the row is named, from 0), and DimensionError
        where a row has another dimension.
        """
        ...

    def write_mapped(self, output: Path, mapped: Map, m: int, tell: Tell) -> None:
        """Write another file of the same form and type, whole or not at all; `tell` hears of rows as they are done."""
        ...


def open_vectors(path: Path, column: str | None = None) -> VectorFile:
    """Open a file by its suffix.

    Parameters
    ----------
    column : of a Parquet file; None: its only column of vectors.

    Raises
    ------
    UsageError
        There is no such file, it is of another kind, or the column is not there, or not named and not the only one.
    TransformError
        It is not what its suffix says, or holds no vectors.
    """
    if not path.is_file():
        what = " is a folder" if path.is_dir() else ": no such file"
        raise UsageError(f"vectors '{path}'{what}; expected a .npy or .parquet file")
    suffix = path.suffix.lower()
    if suffix not in (NPY, PARQUET):
        raise UsageError(f"vectors '{path}': expected a .npy or .parquet file, got {path.suffix or 'no suffix'}")
    if path.stat().st_size == 0:
        raise TransformError(f"{path} is empty: 0 bytes")
    if suffix == PARQUET:
        return ParquetVectors(path, column)
    if column is not None:
        raise UsageError(f"--vector-column {column} is for Parquet; '{path}' has no columns")
    return NpyVectors(path)


class NpyVectors:
    """A .npy file, memory-mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._array = self._mapped()
        except (ValueError, EOFError, OSError) as error:
            raise TransformError(f"{path} {_not_npy(path, error)}") from None
        if self._array.dtype.kind != "f" or self._array.dtype.itemsize > 8:
            raise TransformError(f"{path} holds {self._array.dtype}: expected float16, float32 or float64")
        if self._array.ndim != 2 or self._array.shape[1] == 0:
            raise DimensionError(f"{path} has shape {self._array.shape}: expected (n, d), a vector a row")

    @property
    def rows(self) -> int:
        """How many vectors it holds."""
        return int(self._array.shape[0])

    @property
    def dimension(self) -> int | None:
        """d."""
        return int(self._array.shape[1])

    def chunks(self) -> Iterator[NDArray[np.float32]]:
        """All rows, as float32; see VectorFile."""
        size = _chunk_rows(self._array.shape[1])
        for start in range(0, self.rows, size):
            # Mapped anew: pages that were read count as memory until then.
            yield _checked(self._mapped()[start : start + size], self.path, start)

    def _mapped(self) -> NDArray[Any]:
        array: NDArray[Any] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return array

    def write_mapped(self, output: Path, mapped: Map, m: int, tell: Tell) -> None:
        """Write another .npy file of the same dtype; see VectorFile."""
        dtype = self._array.dtype.newbyteorder("=")
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (self.rows, m)}
        with atomic_file(output) as file:
            np.lib.format.write_array_header_1_0(file, header)
            start = 0
            for chunk in self.chunks():
                file.write(_narrowed(mapped(chunk), dtype, self.path, start).tobytes())
                start += len(chunk)
                tell(len(chunk))


class ParquetVectors:
    """A Parquet file with a column of vectors."""

    def __init__(self, path: Path, column: str | None) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            self._file = pq.ParquetFile(path, memory_map=True)  # else a row group is read whole
        except (pa.ArrowInvalid, OSError) as error:
            raise TransformError(f"{path} is not a Parquet file: {error}") from None
        schema = self._file.schema_arrow
        fitting = [field.name for field in schema if _is_vector(field.type)]
        if column is not None and column not in schema.names:
            raise UsageError(f"'{path}' has no column {column!r}: expected {_listed(fitting)} (--vector-column)")
        if column is not None and column not in fitting:
            raise UsageError(
                f"column {column!r} of '{path}' holds {schema.field(column).type}, expected lists of float16, float32 "
                f"or float64: {_listed(fitting)} (--vector-column)"
            )
        if column is None and len(fitting) != 1:
            raise UsageError(f"'{path}' holds {_listed(fitting)} of vectors: name one with --vector-column")
        self._column = column or fitting[0]
        if schema.names.count(self._column) > 1:
            raise UsageError(f"'{path}' has column {self._column!r} more than once: rename one")
        self._field = schema.field(self._column)
        self._dimension = self._first_length()
        if self._dimension == 0:
            raise DimensionError(f"{path}: row 0 of column {self._column!r} has 0 dimensions")

    @property
    def rows(self) -> int:
        """How many vectors it holds."""
        return int(self._file.metadata.num_rows)

    @property
    def dimension(self) -> int | None:
        """d; None where lists may have any length and there is none."""
        return self._dimension

    def chunks(self) -> Iterator[NDArray[np.float32]]:
        """All rows, as float32; see VectorFile."""
        for start, batch in self._batches([self._column]):
            yield self._matrix(batch.column(self._column), start)

    def write_mapped(self, output: Path, mapped: Map, m: int, tell: Tell) -> None:
        """Write another Parquet file, its vectors of the same type, the other columns as they were; see VectorFile."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        place, kind = self._file.schema_arrow.get_field_index(self._column), self._field.type
        fixed = pa.types.is_fixed_size_list(kind)
        field = self._field.with_type(pa.list_(kind.value_field, m) if fixed else kind)
        schema = self._file.schema_arrow.set(place, field)
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        with atomic_file(output) as file, pq.ParquetWriter(file, schema) as writer:
            for start, batch in self._batches(None):
                vectors = _narrowed(mapped(self._matrix(batch.column(place), start)), dtype, self.path, start)
                values = pa.array(vectors.reshape(-1), kind.value_type)
                if fixed:
                    column = pa.FixedSizeListArray.from_arrays(values, type=field.type)
                else:
                    offsets = np.arange(len(vectors) + 1) * m
                    owner = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
                    column = owner.from_arrays(pa.array(offsets, _offset_type(kind)), values, type=kind)
                columns = [*batch.columns[:place], column, *batch.columns[place + 1 :]]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
                tell(len(batch))

    def _batches(self, columns: list[str] | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches with the number of their first row."""
        import pyarrow as pa

        start = 0
        try:
            for batch in self._file.iter_batches(_chunk_rows(self._dimension or 1), columns=columns):
                yield start, batch
                start += len(batch)
        except (pa.ArrowInvalid, OSError) as error:
            raise TransformError(f"{self.path} is damaged, after row {start}: {error}") from None

    def _first_length(self) -> int | None:
        import pyarrow as pa

        if pa.types.is_fixed_size_list(self._field.type):
            return int(self._field.type.list_size)
        for batch in self._file.iter_batches(1, columns=[self._column]):
            first = batch.column(0)[0]
            if not first.is_valid:
                raise TransformError(f"{self.path}: row 0 holds no vector (null)")
            return len(first)
        return None

    def _matrix(self, column: pa.Array, first_row: int) -> NDArray[np.float32]:
        """(n, d) of a column. Raises TransformError for a null, DimensionError for another length; the row is named."""
        import pyarrow.compute as pc

        if column.null_count:
            row = first_row + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise TransformError(f"{self.path}: row {row} holds no vector (null)")
        lengths = np.asarray(pc.list_value_length(column))
        if len(wrong := np.flatnonzero(lengths != self._dimension)):
            raise DimensionError(
                f"{self.path}: row {first_row + int(wrong[0])} has {lengths[wrong[0]]} dimensions, row 0 has "
                f"{self._dimension}"
            )
        values = column.flatten()
        if values.null_count:
            place = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            raise TransformError(f"{self.path}: row {first_row + place // int(self._dimension or 1)} holds a null")
        rows: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(len(column), self._dimension or 0)
        return _checked(rows, self.path, first_row)


def check_output(output: Path, inputs: list[Path], suffix: str) -> None:
    """Refuse an output that could not be written after hours, or would take the place of what is read.

    Raises
    ------
    UsageError
        Its folder is missing, it is a folder or one of the inputs, or has another suffix.
    """
    if output.suffix.lower() != suffix:
        raise UsageError(f"output '{output}': expected a name that ends in {suffix}")
    if output.is_dir():
        raise UsageError(f"output '{output}' is a folder: expected a name that ends in {suffix}")
    if not output.parent.is_dir():
        raise UsageError(f"output '{output}': there is no folder '{output.parent}'")
    for path in inputs:
        if output.exists() and output.samefile(path):
            raise UsageError(f"output '{output}' is what is read: give another name")


def _checked(rows: NDArray[Any], path: Path, first_row: int) -> NDArray[np.float32]:
    """As float32. Raises TransformError where a value is NaN, infinite or too large for that; the row is named."""
    with np.errstate(over="ignore"):
        chunk = np.ascontiguousarray(rows, dtype=np.float32)
    try:
        check_finite(chunk, first_row)
    except TransformError as error:
        beyond = " (or what float32 cannot hold)" if rows.dtype.itemsize == 8 else ""
        raise TransformError(f"{path}: {error}{beyond}") from None
    return chunk


def _narrowed(vectors: NDArray[np.float32], dtype: np.dtype[Any], path: Path, first_row: int) -> NDArray[Any]:
    """In the input's dtype. Raises TransformError where float16 cannot hold a value; the row is named."""
    with np.errstate(over="ignore"):
        narrowed = vectors.astype(dtype)
    if dtype.itemsize == 2 and not (finite := np.isfinite(narrowed).all(axis=1)).all():
        row = first_row + int(np.argmin(finite))
        raise TransformError(f"{path}: row {row}, transformed, is too large for float16: give --unit, or float32")
    return narrowed


def _chunk_rows(dimension: int) -> int:
    return max(1, _CHUNK_BYTES // (4 * dimension))


def _is_vector(kind: pa.DataType) -> bool:
    import pyarrow as pa

    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in lists) and pa.types.is_floating(kind.value_type)


def _offset_type(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return pa.int64() if pa.types.is_large_list(kind) else pa.int32()


def _listed(columns: list[str]) -> str:
    return "columns " + ", ".join(repr(name) for name in columns) if columns else "no column"


def _not_npy(path: Path, error: Exception) -> str:
    with path.open("rb") as file:
        magic = file.read(6)
    if magic != b"\x93NUMPY":
        return "is not a .npy file: it does not begin with \\x93NUMPY"
    if "Python objects" in str(error):
        return "holds Python objects, which are never unpickled: expected float16, float32 or float64"
    return f"is damaged: {error}"
