"""documents.arrow: ids, texts and kept columns in row order, memory-mapped; one file or several, one after another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retrieval.errors import CorpusError, IndexFolderError

_DIGEST_BYTES = 16
_PIECE_CHARACTERS = 1 << 22


class DocumentsWriter:
    """Write documents as they come, and note which texts and ids are equal: 32 bytes of memory a document."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sink: pa.NativeFile | None = None
        self._writer: pa.RecordBatchFileWriter | None = None
        self._texts: list[bytes] = []
        self._ids: list[bytes] = []

    def __enter__(self) -> DocumentsWriter:
        self._sink = pa.OSFile(str(self._path), "wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._sink is not None:
            self._sink.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch with columns `id`, `text` and any others."""
        if self._writer is None:
            self._writer = pa.ipc.new_file(self._sink, batch.schema)
        self._writer.write_batch(batch)
        self._texts.append(_digests(batch.column("text").to_pylist()))
        self._ids.append(_digests(batch.column("id").to_pylist()))

    def texts_sha256(self) -> str:
        """One hash over all texts in their order."""
        whole = hashlib.sha256()
        for digests in self._texts:
            whole.update(digests)
        return whole.hexdigest()

    def first_rows(self) -> NDArray[np.int64]:
        """For every row the first row with the same text: shape (n,)."""
        return _first_equal(b"".join(self._texts))

    def repeated_id(self) -> tuple[int, int] | None:
        """The first row whose id an earlier row has, as (earlier row, row); None where ids are unique."""
        first = _first_equal(b"".join(self._ids))
        repeats = np.flatnonzero(first != np.arange(len(first)))
        return (int(first[repeats[0]]), int(repeats[0])) if len(repeats) else None


class Documents:
    """Documents by row, read from mapped files when they are asked for.

    Parameters
    ----------
    paths : one file or more of the same columns, whose rows follow each other.

    Raises
    ------
    IndexFolderError
        A file is none that `DocumentsWriter` wrote, or has other columns than the one before.
    """

    def __init__(self, *paths: Path) -> None:
        self._places: list[tuple[pa.RecordBatchFileReader, int]] = []
        sizes: list[int] = []
        for path in paths:
            try:
                reader = pa.ipc.open_file(pa.memory_map(str(path)))
                for i in range(reader.num_record_batches):
                    self._places.append((reader, i))
                    sizes.append(reader.get_batch(i).num_rows)
            except (pa.ArrowInvalid, OSError) as error:
                raise IndexFolderError(
                    f"{path} cannot be read: {str(error).splitlines()[0]}; build the index again"
                ) from None
            if path == paths[0]:
                self.schema: pa.Schema = reader.schema
            elif reader.schema != self.schema:
                raise IndexFolderError(f"{path} has other columns than {paths[0]}: build the index again")
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def fields(self) -> dict[str, str]:
        """The kept columns and their types."""
        return {field.name: str(field.type) for field in self.schema if field.name not in ("id", "text")}

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Some columns of all rows, in row order; nothing is read before it is used."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        batches = [reader.get_batch(i).select(columns) for reader, i in self._places]
        return pa.Table.from_batches(batches, schema)

    def find(self, column: str, values: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows whose `id` or `text` is one of the values: rows, rising, and the place among the values of each."""
        from pyarrow import compute as pc  # not loaded for a query

        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        values = values.cast(self.schema.field(column).type)
        places = pc.index_in(self.table([column])[column], value_set=values)
        rows = np.flatnonzero(places.is_valid().to_numpy())
        return rows, places.drop_null().to_numpy().astype(np.int64)

    def batches(self, start: int = 0, withheld: NDArray[np.bool_] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows from `start` on, but for those withheld, shape (n,), in batches of which none is empty."""
        for (reader, i), first, last in zip(self._places, self._starts, self._starts[1:], strict=False):
            if last <= start:
                continue
            offset = max(0, start - int(first))
            batch = reader.get_batch(i).slice(offset)
            if withheld is not None:
                batch = batch.filter(pa.array(~withheld[first + offset : last]))
            if batch.num_rows:
                yield batch

    def texts(self, start: int, stop: int) -> Iterator[tuple[int, list[str]]]:
        """The texts of rows start to stop, stop excluded, in pieces that fit in memory: (first row, texts)."""
        batch, row = self._batch_of(start), start
        piece: list[str] = []
        characters = 0
        while row < stop:
            offset = row - int(self._starts[batch])
            for text in self._batch(batch).column("text").slice(offset, stop - row).to_pylist():
                piece.append(text)
                characters += len(text)
                row += 1
                if characters > _PIECE_CHARACTERS:
                    yield row - len(piece), piece
                    piece, characters = [], 0
            batch += 1
        if piece:
            yield row - len(piece), piece

    def take(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The documents of the rows, in their order: `id`, `text` and the kept columns."""
        documents = []
        for row in rows:
            batch = self._batch_of(row)
            documents.append(self._batch(batch).slice(row - int(self._starts[batch]), 1).to_pylist()[0])
        return documents

    def _batch(self, number: int) -> pa.RecordBatch:
        reader, i = self._places[number]
        return reader.get_batch(i)

    def _batch_of(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, side="right")) - 1


def write_documents(batches: Any, path: Path) -> DocumentsWriter:
    """Write all batches.

    Raises
    ------
    CorpusError
        An id is repeated; it is named.
    """
    with DocumentsWriter(path) as writer:
        for batch in batches:
            writer.write(batch)
    if repeated := writer.repeated_id():
        one, other = Documents(path).take(repeated)
        raise CorpusError(
            f"id {other['id']!r} is repeated: {one['text'][:30]!r} and {other['text'][:30]!r} both have it; "
            f"ids are unique: choose another --id-column, or leave it out to use row numbers"
        )
    return writer


def _digests(values: list[str]) -> bytes:
    return b"".join(hashlib.blake2b(value.encode("utf-8"), digest_size=_DIGEST_BYTES).digest() for value in values)


def _first_equal(digests: bytes) -> NDArray[np.int64]:
    """For every digest the position of the first equal one. shape (n,)"""
    halves = np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # stable: equal digests stay in row order
    arranged = halves[order]
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = (arranged[1:] != arranged[:-1]).any(axis=1)
    first = np.empty(len(order), dtype=np.int64)
    first[order] = order[np.flatnonzero(starts)[np.cumsum(starts) - 1]]
    return first
