"""withheld.arrow: the rows that a search passes over. Rows are never taken out of a standing index, nor given again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retrieval.errors import IndexFolderError
from retrieval.index.folder import WITHHELD, Manifest

_SCHEMA = pa.schema([("row", pa.int64()), ("deleted", pa.bool_())])


@dataclass(frozen=True)
class Withheld:
    """Which of an index's n rows are passed over.

    Parameters
    ----------
    deleted : bool, shape (n,); replaced documents are deleted ones.
    unknown : bool, shape (n,)
        Rows of zeros, of whose text the encoder knows nothing, in an index that holds them as vectors.
    """

    deleted: NDArray[np.bool_]
    unknown: NDArray[np.bool_]

    @classmethod
    def none(cls, rows: int) -> Withheld:
        """Of an index of which nothing was deleted."""
        return cls(np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool))

    @classmethod
    def load(cls, path: Path, rows: int) -> Withheld:
        """Read what `save` wrote. Raises IndexFolderError where the file is not that, or of an index of fewer rows."""
        withheld = cls.none(rows)
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            if reader.schema != _SCHEMA:
                raise pa.ArrowInvalid(f"its columns are {reader.schema.names}, not {_SCHEMA.names}")
            for batch in map(reader.get_batch, range(reader.num_record_batches)):
                if batch.num_rows == 0:
                    continue
                # By the buffers: to_numpy() loads pandas wherever that is installed, which takes longer than a query.
                _, row, _, flag = (buffer for column in batch.columns for buffer in column.buffers())
                places = np.frombuffer(row, np.int64)[: batch.num_rows]
                deleted = np.unpackbits(np.frombuffer(flag, np.uint8), bitorder="little")[: batch.num_rows] == 1
                withheld.deleted[places[deleted]] = True
                withheld.unknown[places[~deleted]] = True
        except (pa.ArrowInvalid, KeyError, IndexError, OSError) as error:
            raise IndexFolderError(
                f"{path} cannot be read: {str(error).splitlines()[0]}; build the index again"
            ) from None
        return withheld

    @classmethod
    def of(cls, folder: Path, manifest: Manifest) -> Withheld:
        """Of an index folder; nothing is read where nothing was ever withheld."""
        return cls.load(folder / WITHHELD, manifest.rows) if WITHHELD in manifest.files else cls.none(manifest.rows)

    def grown(self, unknown: NDArray[np.bool_]) -> Withheld:
        """With more rows at the end, of which some are unknown."""
        deleted = np.concatenate([self.deleted, np.zeros(len(unknown), dtype=bool)])
        return Withheld(deleted, np.concatenate([self.unknown, unknown]))

    def any(self) -> bool:
        """Whether any row is passed over."""
        return bool(self.deleted.any() or self.unknown.any())

    def allowed(self) -> NDArray[np.bool_] | None:
        """The rows that a search may find, shape (n,); None where these are all."""
        return ~(self.deleted | self.unknown) if self.any() else None

    def save(self, path: Path) -> None:
        """Write an Arrow IPC file: for each row withheld `row` (int64) and `deleted` (false where it is unknown)."""
        rows = np.flatnonzero(self.deleted | self.unknown)
        batch = pa.RecordBatch.from_pydict({"row": rows.astype(np.int64), "deleted": self.deleted[rows]}, _SCHEMA)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
