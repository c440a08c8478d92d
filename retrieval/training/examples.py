"""What an encoder is trained on, in memory: labelled pairs and their flaws, triplets, inferences, texts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import CorpusError, UsageError
from retrieval.evaluation.correlation import is_binary

NLI_CLASSES = ("entailment", "neutral", "contradiction")
_UNIT, _GRADES = (0.0, 1.0), (0.0, 5.0)
_SHOWN = 5


@dataclass(frozen=True)
class TextPairs:
    """Pairs of sentences with labels: 0 and 1, or grades of which larger means more alike."""

    name: str
    sha256: str
    first: list[str]
    second: list[str]
    labels: NDArray[np.float64]
    """Shape (n,), finite."""
    lines: NDArray[np.int64] | None = None
    """Shape (n,): where each stands in the file; None: as they come, from 1."""
    grades: tuple[float, float] | None = None
    """The smallest and the largest grade that there can be; None: 0 to 1 where all are, or else 0 to 5."""
    weights: NDArray[np.float64] | None = None
    """Shape (n,), above 0: how much each counts where weights are chosen; None: all alike."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> TextPairs:
        """Some of the pairs, by row from 0, in that order."""
        first, second = [self.first[row] for row in rows], [self.second[row] for row in rows]
        lines = np.array([self.line(row) for row in rows], dtype=np.int64)
        weights = None if self.weights is None else self.weights[rows]
        return TextPairs(self.name, self.sha256, first, second, self.labels[rows], lines, known_range(self), weights)

    def line(self, row: int) -> int:
        """Where a row stands in the file."""
        return row + 1 if self.lines is None else int(self.lines[row])

    @property
    def unit(self) -> str:
        """What `lines` counts."""
        return "row" if self.name.endswith((".parquet", ".pq")) else "line"


@dataclass(frozen=True)
class Triplets:
    """Texts with one that is to be near and one that is to be far."""

    name: str
    sha256: str
    anchor: list[str]
    positive: list[str]
    negative: list[str]

    def __len__(self) -> int:
        return len(self.anchor)


@dataclass(frozen=True)
class NliPairs:
    """Premises and hypotheses with what follows: a place in `classes`."""

    name: str
    sha256: str
    first: list[str]
    second: list[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...] = NLI_CLASSES
    skipped: int = 0
    """Pairs without a gold label, left out."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Texts:
    """Distinct texts without labels."""

    name: str
    sha256: str
    texts: list[str]

    def __len__(self) -> int:
        return len(self.texts)


def known_range(pairs: TextPairs) -> tuple[float, float]:
    """The smallest and the largest grade that the labels can have: 0 to 1 where all are, or else 0 to 5.

    Raises
    ------
    CorpusError
        A label is outside: its line.
    """
    low, high = pairs.grades or (_UNIT if pairs.labels.max(initial=0) <= 1 else _GRADES)
    if (outside := np.flatnonzero((pairs.labels < low) | (pairs.labels > high))).size:
        row = int(outside[0])
        expected = f"{low:g} to {high:g}" if pairs.grades else "all from 0 to 1, or grades from 0 to 5"
        raise CorpusError(
            f"{pairs.name} {pairs.unit} {pairs.line(row)}: the score is {pairs.labels[row]:g}, expected {expected}: "
            "map the scores to that range"
        )
    return low, high


def scaled(pairs: TextPairs) -> NDArray[np.float64]:
    """The labels in [0, 1], as a cosine is to be: 0 and 1 stay, grades of 0 to 5 are divided by 5.

    Raises
    ------
    CorpusError
        A label is outside of the range, or all are the same.
    """
    low, high = known_range(pairs)
    check_labels_differ(pairs)
    return (pairs.labels - low) / (high - low)


def check_labels_differ(pairs: TextPairs) -> None:
    """Raises CorpusError where all labels are the same: an order or a score cannot be learnt from them."""
    if np.ptp(pairs.labels) == 0:
        raise CorpusError(
            f"{pairs.name}: all {len(pairs):,} labels are {pairs.labels[0]:g}, expected at least two different ones, "
            "such as 0 and 1: add pairs of the other kind, or train simbert, which takes pairs that belong together"
        )


def positives(pairs: TextPairs) -> TextPairs:
    """The pairs that belong together: label 1, or a grade in the upper half of the range.

    Raises
    ------
    CorpusError
        There is none, or a label is outside of the range.
    """
    if not (rows := np.flatnonzero(_alike(pairs))).size:
        low, high = known_range(pairs)
        expected = "1" if high == 1 else f"above {(low + high) / 2:g} of {low:g} to {high:g}"
        raise CorpusError(
            f"{pairs.name}: none of the {len(pairs):,} labels is {expected}, the largest is {pairs.labels.max():g}: "
            "simbert learns from pairs that belong together"
        )
    return pairs.take(rows)


def _alike(pairs: TextPairs) -> NDArray[np.bool_]:
    low, high = known_range(pairs)
    return pairs.labels == 1 if is_binary(pairs.labels) else pairs.labels > (low + high) / 2


@dataclass(frozen=True)
class LabelNoise:
    """Labels that contradict their sentences or one another; of each kind how many, and the first lines."""

    equal: int
    """Pairs of equal sentences with label 0, or a grade in the lower half."""
    equal_lines: tuple[int, ...]
    conflicts: int
    """Pairs, in either order, that occur with different labels."""
    conflict_lines: tuple[tuple[int, int], ...]
    duplicates: int
    """Lines that repeat an earlier one: the same sentences in the same order with the same label."""
    duplicate_lines: tuple[tuple[int, int], ...]
    unit: str = "line"

    @property
    def words(self) -> list[str]:
        """A line for each kind that occurs; none where all is well."""
        conflicts = [f"{one} and {other}" for one, other in self.conflict_lines]
        duplicates = [f"{other} as {one}" for one, other in self.duplicate_lines]
        kinds = [
            (self.equal, "equal sentences labelled as different", [str(line) for line in self.equal_lines]),
            (self.conflicts, "the same pair with different labels", conflicts),
            (self.duplicates, "the same pair with the same label again", duplicates),
        ]
        return [
            f"{count:,} x {what}: {_at(self.unit, lines)}{'; ...' if count > len(lines) else ''}"
            for count, what, lines in kinds
            if count
        ]


def _at(unit: str, lines: Sequence[str]) -> str:
    return f"{unit}{'' if lines[0].isdecimal() and len(lines) == 1 else 's'} {'; '.join(lines)}"


def noise(pairs: TextPairs) -> LabelNoise:
    """Look for labels that cannot be right, and for repeated lines. Raises CorpusError as `known_range` does."""
    alike = _alike(pairs)
    equal: list[int] = []
    conflicts: list[tuple[int, int]] = []
    duplicates: list[tuple[int, int]] = []
    seen: dict[tuple[str, str], tuple[int, float]] = {}
    in_conflict: set[tuple[str, str]] = set()
    exact: dict[tuple[str, str, float], int] = {}
    for row, (one, other) in enumerate(zip(pairs.first, pairs.second, strict=True)):
        label, line = float(pairs.labels[row]), pairs.line(row)
        if one == other and not alike[row]:
            equal.append(line)
        pair = (one, other) if one <= other else (other, one)
        before, earlier = seen.setdefault(pair, (line, label))
        if earlier != label and pair not in in_conflict:
            in_conflict.add(pair)
            conflicts.append((before, line))
        same = exact.setdefault((one, other, label), line)
        if same != line:
            duplicates.append((same, line))
    return LabelNoise(
        len(equal),
        tuple(equal[:_SHOWN]),
        len(conflicts),
        tuple(conflicts[:_SHOWN]),
        len(duplicates),
        tuple(duplicates[:_SHOWN]),
        pairs.unit,
    )


def split_off(pairs: TextPairs, share: float, seed: int) -> tuple[TextPairs, TextPairs]:
    """Set pairs aside so that no sentence stands on both sides: a model that has seen one of a pair deceives.

    Pairs that share a sentence, directly or through others, stay together; such groups are drawn at random for as
    long as they fit, so that the part held out is near the share, never above it by a pair.

    Parameters
    ----------
    share : of the pairs, between 0 and 1.

    Returns
    -------
    (train, held out), each in the order of the file.

    Raises
    ------
    UsageError
        The share is not between 0 and 1, or no group is small enough to be held out.
    """
    if not 0 < share < 1:
        raise UsageError(f"a share of {share:g} cannot be held out: expected one between 0 and 1, such as 0.1")
    wanted = max(1, round(share * len(pairs)))
    groups = _linked(pairs)
    random.Random(seed).shuffle(groups)
    held: set[int] = set()
    for group in groups:
        if len(held) + len(group) <= wanted:
            held.update(group)
    if not held or len(held) == len(pairs):
        smallest = min(map(len, groups))
        raise UsageError(
            f"{wanted:,} of the {len(pairs):,} pairs of {pairs.name} cannot be held out: they share sentences with one "
            f"another, and the smallest group that shares none has {smallest:,}; name other pairs to choose by"
        )
    kept = [row for row in range(len(pairs)) if row not in held]
    return pairs.take(kept), pairs.take(sorted(held))


def _linked(pairs: TextPairs) -> list[list[int]]:
    """Rows in groups that share no sentence with another group: the connected components, by union-find."""
    parent: dict[str, str] = {}

    def root(text: str) -> str:
        while (above := parent.setdefault(text, text)) != text:
            parent[text] = parent[above]  # halves the path
            text = above
        return text

    for one, other in zip(pairs.first, pairs.second, strict=True):
        parent[root(one)] = root(other)
    groups: dict[str, list[int]] = {}
    for row, text in enumerate(pairs.first):
        groups.setdefault(root(text), []).append(row)
    return list(groups.values())
