"""Parquet -> record batches of the chosen columns."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from retrieval.corpus.columns import Column, Selection
from retrieval.corpus.files import CorpusFile
from retrieval.errors import CorpusError

BATCH_ROWS = 2048
Select = Callable[[Sequence[Column]], Selection]


def read_parquet(file: CorpusFile, select: Select) -> Iterator[pa.RecordBatch]:
    """Columns `text` (large_string), `id` where one is selected, and the kept ones with the types they have."""
    with ExitStack() as stack:
        try:
            source: Any = file.path if file.path is not None else stack.enter_context(_spooled(file))
            table = stack.enter_context(pq.ParquetFile(source, pre_buffer=False))
        except (pa.ArrowInvalid, OSError) as error:
            raise _unreadable(file, error) from None
        _check_names(file, table.schema_arrow.names)
        selection = select([column for field in table.schema_arrow for column in _columns(field)])
        names = [selection.text, *([selection.id] if selection.id else []), *selection.keep]
        try:
            for batch in table.iter_batches(BATCH_ROWS, columns=list(dict.fromkeys(names))):
                batch.validate(full=True)
                yield _selected(batch, selection)
        except (pa.ArrowInvalid, OSError) as error:
            raise _unreadable(file, error) from None


def _spooled(file: CorpusFile) -> IO[bytes]:
    """Standard input as a file that can be read from its end, where Parquet keeps its schema."""
    spool = cast(IO[bytes], tempfile.TemporaryFile())  # noqa: SIM115 (the caller closes it)
    with file.open() as stream:
        while chunk := stream.read(io.DEFAULT_BUFFER_SIZE * 128):
            spool.write(chunk)
    spool.seek(0)
    return spool


def _columns(field: pa.Field, prefix: str = "") -> Iterator[Column]:
    name = prefix + field.name
    yield Column(name, str(field.type), _is_text(field.type))
    if pa.types.is_struct(field.type):
        for inner in field.type:
            yield from _columns(inner, f"{name}.")


def _is_text(type: pa.DataType) -> bool:
    if pa.types.is_dictionary(type):
        type = type.value_type
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def _selected(batch: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    arrays = {"text": _plain(_column(batch, selection.text)).cast(pa.large_string())}
    if selection.id is not None:
        ids = _plain(_column(batch, selection.id))
        if not (_is_text(ids.type) or pa.types.is_integer(ids.type)):
            raise CorpusError(f"the id column {selection.id!r} holds {ids.type}, expected strings or whole numbers")
        arrays["id"] = ids.cast(pa.string())
    for name in selection.keep:
        arrays[name] = _plain(_column(batch, name))
    return pa.RecordBatch.from_pydict(arrays)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in batch.schema.names:
        return batch.column(name)
    head, *inner = name.split(".")
    array = batch.column(head)
    for part in inner:
        array = pc.struct_field(array, part)  # null where the parent is null
    return array


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _check_names(file: CorpusFile, names: list[str]) -> None:
    if repeated := {name for name in names if names.count(name) > 1}:
        raise CorpusError(f"{file.name} has more than one column named {sorted(repeated)[0]!r}")


def _unreadable(file: CorpusFile, error: Exception) -> CorpusError:
    detail = str(error).splitlines()[0] if str(error) else type(error).__name__
    return CorpusError(f"{file.name} cannot be read as Parquet: {detail}")
