"""Labelled pairs of sentences, read exactly: own files with named columns, and the public sets' columns by place."""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.corpus.files import STANDARD_INPUT, CorpusFile, find_files
from retrieval.corpus.lines import decoded_lines, is_blank
from retrieval.corpus.records import csv_rows, json_records
from retrieval.errors import CorpusError, UsageError

COLUMNS = ("sentence1", "sentence2", "label")
HUB_COLUMNS = ("sentence1", "sentence2", "score")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_Row = tuple[str, Sequence[Any]]  # where it stands, in words, and the values of COLUMNS


@dataclass(frozen=True)
class Pairs:
    """Pairs of sentences with labels: 0 and 1, or grades of which larger means more alike."""

    name: str
    """Of the set, or the file's path."""
    split: str
    """train, dev or test; empty for a file of the user's."""
    first: list[str]
    second: list[str]
    labels: NDArray[np.float64]
    """Shape (n,), n >= 1, finite."""
    path: str
    md5: str
    """Of the file as it lies on the disk."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def title(self) -> str:
        """`lcqmc test`, or the file's path."""
        return f"{self.name} {self.split}".strip()

    @property
    def texts(self) -> list[str]:
        """The distinct sentences, in the order of their first appearance."""
        return list(dict.fromkeys([*self.first, *self.second]))


def read_pairs(path: str | os.PathLike[str]) -> Pairs:
    """A user's file: TSV (never quoted), CSV, JSON Lines or Parquet with columns sentence1, sentence2 and label.

    Raises
    ------
    CorpusError
        The file is missing, unreadable, empty or lacks a column; a sentence is blank or a label is no number: the line
        is named (the row, from 0, of a Parquet file).
    UsageError
        More than one file, or one whose name tells no such format.
    """
    source = os.fspath(path)
    if source == STANDARD_INPUT:
        raise UsageError("pairs are read from a file, not from standard input: name one")
    files = find_files([source])
    if len(files) != 1 or files[0].path is None:
        raise UsageError(f"{source!r} names {len(files)} files, expected one file of pairs")
    file, reader = files[0], _READERS.get(files[0].format)
    if reader is None:
        raise UsageError(f"{file.name} is a text file, expected pairs as .tsv, .csv, .jsonl or .parquet")
    return _pairs(file.name, "", files[0].path, _filled(reader(file)))


def read_columns(
    path: Path, name: str, split: str, places: tuple[int, int, int], widths: Sequence[int], header: bool
) -> Pairs:
    r"""A public set's file: columns apart by tabs, in fixed places, without any quoting; every character is kept.

    Parameters
    ----------
    places : columns of the two sentences and the label, from 0.
    widths : how many columns a line may have.
    header : whether the first line names the columns.

    Raises
    ------
    CorpusError
        Not UTF-8, another number of columns, or a label that is no number; the line is named.
    """
    return _pairs(name, split, path, _exact_rows(path, places, widths, header))


def read_json_pairs(path: Path, name: str, split: str) -> Pairs:
    """A public set's file of JSON Lines with sentence1, sentence2 and label. Raises CorpusError as `read_pairs`."""
    return _pairs(name, split, path, _jsonl_rows(CorpusFile(path, "jsonl")))


def read_hub_pairs(paths: Sequence[Path], name: str, split: str) -> Pairs:
    """A split as the hub has it: Parquet or JSON Lines with sentence1, sentence2 and score. Raises CorpusError."""
    rows: list[Iterator[_Row]] = []
    for path in paths:
        file = CorpusFile(path, "parquet" if path.suffix == ".parquet" else "jsonl")
        rows.append((_parquet_rows if file.format == "parquet" else _jsonl_rows)(file, HUB_COLUMNS))
    return _pairs(name, split, paths, chain.from_iterable(rows))


def md5_of(*paths: Path) -> str:
    """Of the bytes of a file, or of several one after the other, in hexadecimal."""
    whole = hashlib.md5(usedforsecurity=False)
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                whole.update(block)
    return whole.hexdigest()


def _pairs(name: str, split: str, paths: Path | Sequence[Path], rows: Iterator[_Row]) -> Pairs:
    paths = [paths] if isinstance(paths, Path) else paths
    path = paths[0]
    first, second, labels = [], [], []
    for where, (one, other, label) in rows:
        for column, sentence in zip(COLUMNS, (one, other), strict=False):
            if not isinstance(sentence, str):
                raise CorpusError(f"{where}: {column} is {_shown(sentence)}, expected a text")
            if any("\ud800" <= character <= "\udfff" for character in sentence):
                raise CorpusError(f"{where}: {column} holds half a surrogate pair, which is not a character")
        first.append(one)
        second.append(other)
        labels.append(_label(label, where))
    if not labels:
        raise CorpusError(f"{path} holds no pair: it is empty")
    return Pairs(name, split, first, second, np.array(labels, dtype=np.float64), str(path), md5_of(*paths))


def _label(value: Any, where: str) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, int | float) and abs(value) <= sys.float_info.max:
        return float(value)
    raise CorpusError(f"{where}: the label is {_shown(value)}, expected a number: 0 or 1, or a grade")


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:60] + "..."


def _filled(rows: Iterator[_Row]) -> Iterator[_Row]:
    for where, values in rows:
        for column, sentence in zip(COLUMNS, values[:2], strict=False):
            if sentence is None or (isinstance(sentence, str) and is_blank(sentence)):
                raise CorpusError(f"{where}: {column} is {_shown(sentence)}, expected a text that shows something")
        yield where, values


def _exact_rows(path: Path, places: tuple[int, int, int], widths: Sequence[int], header: bool) -> Iterator[_Row]:
    data = path.read_bytes()
    mark = "\ufeff" if data.startswith(codecs.BOM_UTF8) else ""  # a character of the first sentence like any other
    for number, line in enumerate(decoded_lines(io.BytesIO(data), str(path), option=""), 1):
        if number == 1 and header:
            continue
        cells = ((mark if number == 1 else "") + line.removesuffix("\n").removesuffix("\r")).split("\t")
        if len(cells) not in widths:
            expected = " or ".join(map(str, widths))
            raise CorpusError(f"{path} line {number}: {len(cells)} columns, expected {expected}, apart by tabs")
        yield f"{path} line {number}", [cells[place] for place in places]


def _tsv_rows(file: CorpusFile) -> Iterator[_Row]:
    with file.open() as stream:
        lines = decoded_lines(stream, file.name, option="")
        cells = (line.removesuffix("\n").removesuffix("\r").split("\t") for line in lines)
        yield from _named(enumerate(cells, 1), file)


def _csv_rows(file: CorpusFile) -> Iterator[_Row]:
    with file.open() as stream:
        yield from _named(csv_rows(decoded_lines(stream, file.name, option=""), file), file)


def _named(rows: Iterator[tuple[int, Sequence[str]]], file: CorpusFile) -> Iterator[_Row]:
    """The three columns out of rows of which the first names the columns; empty lines are no rows."""
    _, header = next(rows, (0, []))
    if not header:
        return
    _check_columns(file, header)
    places = [header.index(column) for column in COLUMNS]
    for number, cells in rows:
        if list(cells) in ([], [""]):
            continue
        if len(cells) != len(header):
            raise CorpusError(
                f"{file.name} line {number}: {len(cells)} columns, expected {len(header)} as in the header"
            )
        yield f"{file.name} line {number}", [cells[place] for place in places]


def _jsonl_rows(file: CorpusFile, columns: Sequence[str] = COLUMNS) -> Iterator[_Row]:
    with file.open() as stream:
        for number, record in json_records(decoded_lines(stream, file.name, option=""), file):
            where = f"{file.name} line {number}"
            _check_columns(file, list(record), where, columns)
            yield where, [record[column] for column in columns]


def _parquet_rows(file: CorpusFile, columns: Sequence[str] = COLUMNS) -> Iterator[_Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file.path) as table:
            _check_columns(file, table.schema_arrow.names, columns=columns)
            row = 0
            for batch in table.iter_batches(columns=list(columns)):
                for values in zip(*(batch.column(column).to_pylist() for column in columns), strict=True):
                    yield f"{file.name} row {row}", values
                    row += 1
    except (pa.ArrowInvalid, OSError) as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorpusError(f"{file.name} cannot be read as Parquet: {detail}") from None


def _check_columns(file: CorpusFile, names: Sequence[str], where: str = "", columns: Sequence[str] = COLUMNS) -> None:
    for column in columns:
        if names.count(column) != 1:
            expected = f"{columns[0]}, {columns[1]} and {columns[2]}"
            lack = "more than one" if column in names else "no"
            shown = ", ".join(name[:30] for name in names[:10]) + (", ..." if len(names) > 10 else "")
            raise CorpusError(
                f"{where or file.name} has {lack} column {column!r}, expected {expected}"
                + ("" if where or file.format == "parquet" else " named in the first line")
                + f"; its columns are {shown}"
            )


_READERS = {"tsv": _tsv_rows, "csv": _csv_rows, "jsonl": _jsonl_rows, "parquet": _parquet_rows}
