"""Corpus files -> Arrow record batches of (id, text, kept columns), without the texts that are blank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from retrieval.corpus.columns import Column, Selection, select_columns
from retrieval.corpus.files import CorpusFile, find_files
from retrieval.corpus.lines import check_encoding, is_blank
from retrieval.corpus.records import read_csv, read_jsonl, read_text, read_tsv
from retrieval.corpus.sampling import sampled
from retrieval.corpus.tables import Select, read_parquet
from retrieval.errors import CorpusError, UsageError

FIRST_SKIPPED = 10
_LINE_READERS = {"text": read_text, "csv": read_csv, "tsv": read_tsv, "jsonl": read_jsonl}


@dataclass(frozen=True)
class CorpusOptions:
    """How corpus files are read."""

    text_column: str | None = None
    """`a.b` for a nested one; None: a usual name, or the only text column."""
    id_column: str | None = None
    """None: the id is the row number in the corpus, from 0."""
    keep: tuple[str, ...] = ()
    format: str | None = None
    encoding: str = "utf-8"
    sample: int | None = None
    """Take only this many documents, chosen at random, always the same ones for the same corpus."""
    on_empty: str = "skip"
    """What to do with blank texts: `skip` (counted) or `error`."""


@dataclass
class Corpus:
    """Files to be read once, from the first to the last row; the counts are true when `batches` has ended.

    Parameters
    ----------
    sources : paths of files and folders, globs, or `-` for standard input.
    schema : of the batches of another corpus that these are to join; None takes that of the first file.
    first_number : of the row numbers that are ids where there is no id column.
    """

    sources: Sequence[str | os.PathLike[str]]
    options: CorpusOptions = field(default_factory=CorpusOptions)
    schema: pa.Schema | None = None
    first_number: int = 0
    rows: int = 0
    """Rows read, blank ones included."""
    skipped: int = 0
    first_skipped: list[int] = field(default_factory=list)
    """Row numbers, from 0, of the first FIRST_SKIPPED blank texts."""
    selection: Selection | None = None
    """The columns chosen for the first file."""

    def __post_init__(self) -> None:
        check_encoding(self.options.encoding)
        if isinstance(self.options.keep, str):
            raise UsageError(f"keep is the text {self.options.keep!r}, expected a tuple of column names")
        if self.options.on_empty not in ("skip", "error"):
            raise UsageError(f"on-empty is {self.options.on_empty!r}, expected skip or error")
        if self.options.sample is not None and self.options.sample < 1:
            raise UsageError(f"sample is {self.options.sample}, expected at least 1")
        self.files: list[CorpusFile] = find_files(self.sources, self.options.format)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Batches with columns `id` (string), `text` (large_string), then the kept ones; none is empty.

        Raises
        ------
        CorpusError
            A file cannot be read, a row is malformed, an id is null, or nothing but blank texts is there.
        UsageError
            A column is not there, or the text column is not told.
        """
        if self.options.sample is not None:
            return sampled(self._all_batches(), self.options.sample)
        return self._all_batches()

    def _all_batches(self) -> Iterator[pa.RecordBatch]:
        schema = self.schema
        widest = _widest(self.files, self.options.keep) if self.options.keep and schema is None else {}
        for file in self.files:
            for batch in self._read(file):
                kept = self._without_blank(batch, file)
                self.rows += batch.num_rows
                if schema is None:
                    schema = pa.schema([field.with_type(widest.get(field.name, field.type)) for field in kept.schema])
                if kept.schema != schema:
                    kept = _cast(kept, schema, file, "the index" if self.schema is not None else "the files before it")
                if kept.num_rows:
                    yield kept
        if self.rows == 0:
            raise CorpusError(f"{self._named()} holds no document: it is empty")
        if self.rows == self.skipped:
            raise CorpusError(f"{self._named()} holds no document: all {self.rows:,} texts are blank")

    def _read(self, file: CorpusFile) -> Iterator[pa.RecordBatch]:
        select: Select = partial(self._select, file)
        if file.format == "parquet":
            return read_parquet(file, select)
        return _LINE_READERS[file.format](file, select, self.options.encoding)

    def _select(self, file: CorpusFile, columns: Sequence[Column]) -> Selection:
        options = self.options
        selection = select_columns(file.name, columns, options.text_column, options.id_column, options.keep)
        self.selection = self.selection or selection
        return selection

    def _without_blank(self, batch: pa.RecordBatch, file: CorpusFile) -> pa.RecordBatch:
        texts = batch.column("text").to_pylist()
        blank = [row for row, text in enumerate(texts) if is_blank(text)]
        if blank and self.options.on_empty == "error":
            raise CorpusError(
                f"{file.name}: the text of row {self.rows + blank[0]} (from 0) is {_named_blank(texts[blank[0]])}; "
                f"without --on-empty error such rows are skipped and counted"
            )
        self.skipped += len(blank)
        self.first_skipped += [self.rows + row for row in blank[: FIRST_SKIPPED - len(self.first_skipped)]]
        if "id" in batch.schema.names:
            ids = batch.column("id")
        else:
            first = self.first_number + self.rows
            ids = pa.array([str(first + row) for row in range(batch.num_rows)], pa.string())
        others = {name: batch.column(name) for name in batch.schema.names if name not in ("id", "text")}
        whole = pa.RecordBatch.from_pydict({"id": ids, "text": batch.column("text"), **others})
        if blank:
            dropped = set(blank)
            whole = whole.filter(pa.array([row not in dropped for row in range(batch.num_rows)]))
        if whole.column("id").null_count:
            row = whole.column("id").to_pylist().index(None)
            raise CorpusError(
                f"{file.name}: the id of the text {whole.column('text')[row].as_py()[:30]!r} is null: "
                f"give every row an id, or leave out --id-column to use row numbers"
            )
        return whole

    def _named(self) -> str:
        return self.files[0].name if len(self.files) == 1 else f"the corpus ({len(self.files)} files)"


def _named_blank(text: str | None) -> str:
    return "null" if text is None else "empty" if text == "" else f"blank ({text[:20]!r})"


def _cast(batch: pa.RecordBatch, schema: pa.Schema, file: CorpusFile, others: str) -> pa.RecordBatch:
    try:
        arrays = [_as_type(batch.column(wanted.name), wanted.type) for wanted in schema]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        different = [
            f"{wanted.name!r} ({wanted.type}, here {batch.column(wanted.name).type})"
            for wanted in schema
            if batch.column(wanted.name).type != wanted.type
        ]
        raise CorpusError(
            f"{file.name}: kept column {different[0]} does not fit {others}: "
            f"give the files one type, or leave the column out of --keep"
        ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as_type(array: pa.Array, type: pa.DataType) -> pa.Array:
    if pa.types.is_string(array.type) and not pa.types.is_string(type):  # an empty CSV cell is no number
        array = pc.if_else(pc.equal(array, ""), pa.scalar(None, pa.string()), array)
    return array.cast(type)


def _widest(files: Sequence[CorpusFile], keep: Sequence[str]) -> dict[str, pa.DataType]:
    """The types of kept columns that hold what every Parquet file has of them: null < int32 < int64 < double ..."""
    schemas = []
    for file in files:
        if file.format == "parquet" and file.path is not None:
            with contextlib.suppress(pa.ArrowInvalid, OSError):  # told when it is read
                fields = pq.read_schema(file.path)
                schemas.append(pa.schema([_plain_field(fields.field(name)) for name in keep if name in fields.names]))
    try:
        unified = pa.unify_schemas(schemas, promote_options="permissive") if len(schemas) > 1 else pa.schema([])
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return {}
    return {field.name: field.type for field in unified}


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
