"""Files -> examples to train on: the sets that `retr eval` knows by name, own files, NLI files as published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.corpus.files import STANDARD_INPUT, CorpusFile, find_files
from retrieval.corpus.named import Place, Row, named_rows, one_file, shown, tab_rows, text_of
from retrieval.errors import CorpusError, UsageError
from retrieval.evaluation.datasets import DATASETS, SPLITS, is_test_file, load_dataset, splits_there
from retrieval.evaluation.evaluate import read_texts as corpus_texts
from retrieval.evaluation.pairs import Pairs, md5_of, read_pairs, sha256_of
from retrieval.training.examples import NLI_CLASSES, NliPairs, TextPairs, Texts, Triplets, known_range

_TRIPLET_COLUMNS = ("anchor", "positive", "negative")
_NLI_COLUMNS = (("sentence1", "premise"), ("sentence2", "hypothesis"), ("label", "gold_label"))
_NLI_WORDS = {word: place for place, word in enumerate(NLI_CLASSES)} | {"蕴含": 0, "中立": 1, "矛盾": 2}
_NO_GOLD = ("-", "-1")
_GRADES = {"sick": (1.0, 5.0)}


def read_training_pairs(source: str, folder: Path | None) -> TextPairs:
    """The labelled pairs of a set's split or of a file of the user's.

    Parameters
    ----------
    source : `lcqmc:dev`, `lcqmc` (its train split), or a file with sentence1, sentence2 and label (or score).
    folder : where the sets lie; None where the user named none.

    Raises
    ------
    UsageError
        No such set, split or file, or a test split.
    CorpusError
        A file is missing or malformed, or a label is outside of 0 to 1 (or 0 to 5, for grades): the line.
    """
    pairs = _set_pairs(source, folder)
    if pairs is None:
        if not Path(source).expanduser().exists():
            raise UsageError(
                f"no set and no file {source!r}: expected SET:SPLIT of the sets {', '.join(DATASETS)}, such as "
                "lcqmc:dev, or a file of pairs (.tsv, .csv, .jsonl, .parquet)"
            )
        pairs = read_pairs(source)
        _check_no_test(pairs.md5, source, folder)
    grades = _GRADES.get(pairs.name)
    read = TextPairs(pairs.title, pairs.sha256, pairs.first, pairs.second, pairs.labels, pairs.lines, grades)
    return replace(read, grades=known_range(read))


def read_triplets(source: str) -> Triplets:
    """A file (TSV, CSV, JSON Lines, Parquet) with columns anchor, positive and negative. Raises as `read_pairs`."""
    file = one_file(source, "triplets")
    columns: tuple[list[str], list[str], list[str]] = ([], [], [])
    for where, values in named_rows(file, _TRIPLET_COLUMNS):
        for name, column, value in zip(_TRIPLET_COLUMNS, columns, values, strict=True):
            column.append(text_of(value, name, where))
    if not columns[0]:
        raise CorpusError(f"{file.name} holds no triplet: it is empty")
    return Triplets(file.name, _sha256(file), *columns)


def read_nli(source: str) -> NliPairs:
    """Premises, hypotheses and labels; pairs without a gold label (`-` or -1) are left out and counted.

    Columns sentence1 or premise, sentence2 or hypothesis, label or gold_label; or, as OCNLI and CNSD-SNLI are
    published, three columns apart by tabs without a header. Labels are words (entailment, neutral, contradiction; 蕴含,
    中立, 矛盾) or numbers, 0, 1 and 2 in this order as the hub has SNLI's.

    Raises
    ------
    CorpusError
        A file is missing or malformed, a label is no such word, or all pairs have one label.
    """
    file = one_file(source, "inferences", text=True)
    first, second, labels, skipped = [], [], [], 0
    for where, (premise, hypothesis, value) in _nli_rows(file):
        if (label := _nli_label(value, where)) is None:
            skipped += 1
            continue
        first.append(text_of(premise, "the premise", where))
        second.append(text_of(hypothesis, "the hypothesis", where))
        labels.append(label)
    if not labels:
        lack = f"none of its {skipped:,} pairs has a gold label" if skipped else "it is empty"
        raise CorpusError(f"{file.name} holds no inference: {lack}")
    if len(set(labels)) == 1:
        raise CorpusError(
            f"{file.name}: all {len(labels):,} labels are {NLI_CLASSES[labels[0]]}, expected at least two of "
            f"{', '.join(NLI_CLASSES)}: a classifier learns nothing from one"
        )
    return NliPairs(file.name, _sha256(file), first, second, np.array(labels, dtype=np.int64), skipped=skipped)


def read_texts(source: str, folder: Path | None = None) -> Texts:
    """The distinct texts of a corpus as `retr index` reads it, or the sentences of a file or a set of pairs.

    Raises
    ------
    UsageError
        Standard input, a test split, or a column is not told.
    CorpusError
        A file is missing or malformed, or there are fewer than two texts.
    """
    if source == STANDARD_INPUT:
        raise UsageError("texts to train on are read from files, not from standard input: name one")
    if (pairs := _set_pairs(source, folder)) is not None:
        return Texts(pairs.title, pairs.sha256, pairs.texts)
    paths = [file.path for file in find_files([source]) if file.path is not None]
    for path in paths:
        _check_no_test(md5_of(path), str(path), folder)
    texts = corpus_texts(source)
    if len(texts) < 2:
        raise CorpusError(
            f"{source} holds {len(texts)} distinct text, expected at least 2: each is told from the others"
        )
    return Texts(source, sha256_of(*paths), texts)


def _set_pairs(source: str, folder: Path | None) -> Pairs | None:
    """A split of a set by its name, `lcqmc:dev`; None where the source is no name."""
    name, colon, split = source.lower().partition(":")
    if name not in DATASETS or (colon and Path(source).exists()):
        return None
    choices = [known for known in SPLITS if known != "test"]
    if split == "test":
        raise UsageError(
            f"{source}: nothing is learnt from a test split, and nothing chosen by it: "
            f"use {' or '.join(f'{name}:{known}' for known in choices)}"
        )
    if colon and split not in choices:
        raise UsageError(f"{name} has no split {split!r} to train on: expected {' or '.join(choices)}")
    try:
        return load_dataset(name, split or "train", folder)
    except CorpusError as error:
        there = [] if folder is None or split or not folder.is_dir() else splits_there(name, folder)
        if not (others := [f"{name}:{known}" for known in there if known != "test"]):
            raise
        raise CorpusError(f"{error}. There is {' and '.join(others)}") from None


def _check_no_test(md5: str, source: str, folder: Path | None) -> None:
    for name in DATASETS:
        if is_test_file(name, md5, folder):
            raise UsageError(f"{source} is {name} test: nothing is learnt from a test split, and nothing chosen by it")


def _nli_rows(file: CorpusFile) -> Iterator[Row]:
    """By the names of the columns, or, where a tab-separated file has no header, its three columns in order."""
    if file.format in ("text", "tsv"):
        rows = tab_rows(file)
        top = next(rows, None)
        known = {name for names in _NLI_COLUMNS for name in names}
        if top is not None and not known.intersection(top[1]):
            yield from _three_columns(chain([top], rows), file)
            return
    yield from named_rows(file, _NLI_COLUMNS)


def _three_columns(rows: Iterator[tuple[int, list[str]]], file: CorpusFile) -> Iterator[Row]:
    for number, cells in rows:
        where = Place(file.name, number)
        if cells == [""]:
            continue
        if len(cells) != 3:
            raise CorpusError(
                f"{where}: {len(cells)} columns, expected 3 apart by tabs: premise, hypothesis and label; or name the "
                "columns sentence1, sentence2 and label in the first line"
            )
        yield where, cells


def _nli_label(value: Any, where: Place) -> int | None:
    """The place of a class; None where there is no gold label."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "" if isinstance(value, bool) else str(value).strip().lower()
    if text in _NO_GOLD:
        return None
    if text in ("0", "1", "2"):
        return int(text)
    if text in _NLI_WORDS:
        return _NLI_WORDS[text]
    raise CorpusError(
        f"{where}: the label is {shown(value)}, expected {', '.join(NLI_CLASSES)} (蕴含, 中立, 矛盾), "
        "or 0, 1, 2 in this order, or - where there is none"
    )


def _sha256(file: CorpusFile) -> str:
    return sha256_of(file.path) if file.path is not None else ""
