"""Labelled pairs of random texts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from conftest import random_texts

from retrieval.training.examples import TextPairs


def pairs_of(count: int, seed: int = 0) -> TextPairs:
    """Half of them differ in one character and have label 1, half are two texts and have label 0."""
    texts = random_texts(2 * count, seed=seed)
    first, second = texts[:count], texts[count:]
    second = [
        one[:-1] + other[-1:] if row % 2 else other for row, (one, other) in enumerate(zip(first, second, strict=True))
    ]
    return TextPairs("made up", "0" * 64, first, second, np.arange(count) % 2.0)


def write_rows(path: Path, columns: str, rows: Iterable[Iterable[object]]) -> Path:
    """A tab-separated file."""
    lines = [columns.split(), *(map(str, row) for row in rows)]
    path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")
    return path


def write_pairs(path: Path, pairs: TextPairs) -> Path:
    """Labelled pairs as `retr train` reads them."""
    labels = (f"{label:g}" for label in pairs.labels)
    return write_rows(path, "sentence1 sentence2 label", zip(pairs.first, pairs.second, labels, strict=True))
