"""Rows of one file by the names of its columns, exactly: pairs, triplets and whatever else has a few columns of text.

A corpus is streamed as Arrow batches and may lack much (`reader.py`); here every row is whole and says where it stands.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from retrieval.corpus.files import STANDARD_INPUT, CorpusFile, find_files
from retrieval.corpus.lines import decoded_lines, is_blank
from retrieval.corpus.records import csv_rows, json_records
from retrieval.errors import CorpusError, UsageError

Names = Sequence[str | tuple[str, ...]]
"""Of each column its name, or the names that it may have."""


class Place(NamedTuple):
    """Where a row stands; as text `pairs.tsv line 3`."""

    file: str
    number: int
    """Of the line, from 1; of the row of a Parquet file, from 0."""
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file} {self.unit} {self.number}"


Row = tuple[Place, Sequence[Any]]


def one_file(path: str | os.PathLike[str], what: str, text: bool = False) -> CorpusFile:
    """The file that a path names. Raises CorpusError where there is none.

    Parameters
    ----------
    what : it is to hold, for messages: `pairs`.
    text : whether a .txt file will do.

    Raises
    ------
    UsageError
        Standard input, several files, or a name that tells no format.
    """
    source = os.fspath(path)
    if source == STANDARD_INPUT:
        raise UsageError(f"{what} are read from a file, not from standard input: name one")
    files = find_files([source])
    if len(files) != 1 or files[0].path is None:
        raise UsageError(f"{source!r} names {len(files)} files, expected one file of {what}")
    if files[0].format == "text" and not text:
        raise UsageError(f"{files[0].name} is a text file, expected {what} as .tsv, .csv, .jsonl or .parquet")
    return files[0]


def named_rows(file: CorpusFile, columns: Names) -> Iterator[Row]:
    """The values of the columns, row by row: TSV (never quoted), CSV, JSON Lines or Parquet.

    Raises
    ------
    CorpusError
        Not readable, a column is not there or there twice, or a row has more or fewer cells than the header.
    """
    return _READERS[file.format](file, columns)


def tab_rows(file: CorpusFile) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line, apart by tabs, with its number from 1."""
    with file.open() as stream:
        for number, line in enumerate(decoded_lines(stream, file.name, option=""), 1):
            yield number, line.removesuffix("\n").removesuffix("\r").split("\t")


def text_of(value: Any, column: str, where: Place, *, visible: bool = True) -> str:
    """The value itself. Raises CorpusError where it is no text, or a blank one that is to be `visible`."""
    if visible and (value is None or (isinstance(value, str) and is_blank(value))):
        raise CorpusError(f"{where}: {column} is {shown(value)}, expected a text that shows something")
    if not isinstance(value, str):
        raise CorpusError(f"{where}: {column} is {shown(value)}, expected a text")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise CorpusError(f"{where}: {column} holds half a surrogate pair, which is not a character")
    return value


def shown(value: Any) -> str:
    """A value as a message has it: short, and a text in quotation marks."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:60] + "..."


def _tsv_rows(file: CorpusFile, columns: Names) -> Iterator[Row]:
    yield from _headed(tab_rows(file), file, columns)


def _csv_rows(file: CorpusFile, columns: Names) -> Iterator[Row]:
    with file.open() as stream:
        yield from _headed(csv_rows(decoded_lines(stream, file.name, option=""), file), file, columns)


def _headed(rows: Iterator[tuple[int, Sequence[str]]], file: CorpusFile, columns: Names) -> Iterator[Row]:
    """The columns out of rows of which the first names them; empty lines are no rows."""
    _, header = next(rows, (0, []))
    if not header:
        return
    places = [header.index(name) for name in _chosen(file, header, columns)]
    for number, cells in rows:
        if list(cells) in ([], [""]):
            continue
        where = Place(file.name, number)
        if len(cells) != len(header):
            raise CorpusError(f"{where}: {len(cells)} columns, expected {len(header)} as in the header")
        yield where, [cells[place] for place in places]


def _jsonl_rows(file: CorpusFile, columns: Names) -> Iterator[Row]:
    with file.open() as stream:
        for number, record in json_records(decoded_lines(stream, file.name, option=""), file):
            where = Place(file.name, number)
            yield where, [record[name] for name in _chosen(file, list(record), columns, str(where))]


def _parquet_rows(file: CorpusFile, columns: Names) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file.path) as table:
            names = _chosen(file, table.schema_arrow.names, columns)
            row = 0
            for batch in table.iter_batches(columns=names):
                for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                    yield Place(file.name, row, "row"), values
                    row += 1
    except (pa.ArrowInvalid, OSError) as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorpusError(f"{file.name} cannot be read as Parquet: {detail}") from None


def _chosen(file: CorpusFile, names: Sequence[str], columns: Names, where: str = "") -> list[str]:
    """Of each column the name that it has here."""
    chosen = []
    for column in columns:
        known = (column,) if isinstance(column, str) else column
        found = [name for name in names if name in known]
        if len(found) != 1:
            raise CorpusError(
                f"{where or file.name} has {_lack(known, found)}, expected {_listed(columns)}"
                + ("" if where or file.format == "parquet" else " named in the first line")
                + f"; its columns are {', '.join(name[:30] for name in names[:10])}"
                + (", ..." if len(names) > 10 else "")
            )
        chosen += found
    return chosen


def _lack(known: Sequence[str], found: Sequence[str]) -> str:
    if len(set(found)) > 1:
        return f"both a column {found[0]!r} and one {found[1]!r}: which is meant? Keep one"
    return f"{'more than one' if found else 'no'} column {' or '.join(map(repr, known))}"


def _listed(columns: Names) -> str:
    named = [column if isinstance(column, str) else " or ".join(column) for column in columns]
    return f"{', '.join(named[:-1])} and {named[-1]}"


_READERS: dict[str, Callable[[CorpusFile, Names], Iterator[Row]]] = {
    "tsv": _tsv_rows,
    "text": _tsv_rows,
    "csv": _csv_rows,
    "jsonl": _jsonl_rows,
    "parquet": _parquet_rows,
}
