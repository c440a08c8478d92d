"""Labelled pairs of sentences, read exactly: own files with named columns, and the public sets' columns by place."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.corpus.files import CorpusFile
from retrieval.corpus.lines import decoded_lines
from retrieval.corpus.named import Place, Row, named_rows, one_file, shown, text_of
from retrieval.errors import CorpusError

COLUMNS = ("sentence1", "sentence2", ("label", "score"))
_SENTENCES = ("sentence1", "sentence2")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


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
    sha256: str = ""
    lines: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Shape (n,): where each pair stands, in lines from 1, or in rows of Parquet from 0."""

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
    """A user's file: TSV (never quoted), CSV, JSON Lines or Parquet with sentence1, sentence2 and label (or score).

    Raises
    ------
    CorpusError
        The file is missing, unreadable, empty or lacks a column; a sentence is blank or a label is no number: the line
        is named (the row, from 0, of a Parquet file).
    UsageError
        More than one file, or one whose name tells no such format.
    """
    file = one_file(path, "pairs")
    assert file.path is not None
    return _pairs(file.name, "", file.path, named_rows(file, COLUMNS), visible=True)


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
    return _pairs(name, split, path, named_rows(CorpusFile(path, "jsonl"), COLUMNS))


def read_hub_pairs(paths: Sequence[Path], name: str, split: str) -> Pairs:
    """A split as the hub has it: Parquet or JSON Lines with sentence1, sentence2 and score. Raises CorpusError."""
    files = [CorpusFile(path, "parquet" if path.suffix == ".parquet" else "jsonl") for path in paths]
    rows = chain.from_iterable(named_rows(file, (*_SENTENCES, "score")) for file in files)
    return _pairs(name, split, paths, rows)


def md5_of(*paths: Path) -> str:
    """Of the bytes of a file, or of several one after the other, in hexadecimal."""
    return _digest("md5", paths)


def sha256_of(*paths: Path) -> str:
    """As `md5_of`: 64 hexadecimal digits."""
    return _digest("sha256", paths)


def _digest(algorithm: str, paths: Sequence[Path]) -> str:
    whole = hashlib.new(algorithm, usedforsecurity=False)
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                whole.update(block)
    return whole.hexdigest()


def _pairs(name: str, split: str, paths: Path | Sequence[Path], rows: Iterator[Row], *, visible: bool = False) -> Pairs:
    """Pairs out of rows; blank sentences are refused where all are to be `visible`."""
    paths = [paths] if isinstance(paths, Path) else paths
    path = paths[0]
    first, second, labels, lines = [], [], [], []
    for where, (one, other, label) in rows:
        first.append(text_of(one, _SENTENCES[0], where, visible=visible))
        second.append(text_of(other, _SENTENCES[1], where, visible=visible))
        labels.append(_label(label, where))
        lines.append(where.number)
    if not labels:
        raise CorpusError(f"{path} holds no pair: it is empty")
    grades, places = np.array(labels, dtype=np.float64), np.array(lines, dtype=np.int64)
    return Pairs(name, split, first, second, grades, str(path), md5_of(*paths), sha256_of(*paths), places)


def _label(value: Any, where: Place) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, int | float) and abs(value) <= sys.float_info.max:
        return float(value)
    raise CorpusError(f"{where}: the label is {shown(value)}, expected a number: 0 or 1, or a grade")


def _exact_rows(path: Path, places: tuple[int, int, int], widths: Sequence[int], header: bool) -> Iterator[Row]:
    data = path.read_bytes()
    mark = "\ufeff" if data.startswith(codecs.BOM_UTF8) else ""  # a character of the first sentence like any other
    for number, line in enumerate(decoded_lines(io.BytesIO(data), str(path), option=""), 1):
        if number == 1 and header:
            continue
        cells = ((mark if number == 1 else "") + line.removesuffix("\n").removesuffix("\r")).split("\t")
        if len(cells) not in widths:
            expected = " or ".join(map(str, widths))
            raise CorpusError(f"{path} line {number}: {len(cells)} columns, expected {expected}, apart by tabs")
        yield Place(str(path), number), [cells[place] for place in places]
