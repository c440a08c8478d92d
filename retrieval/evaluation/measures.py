"""What is reported of one system on one set of pairs: values with intervals, or the reason why one is undefined."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrieval.evaluation.bootstrap import interval, resampled
from retrieval.evaluation.correlation import (
    Floats,
    accuracy,
    attainable_spearman,
    auc,
    f1,
    is_binary,
    pearson,
    spearman,
)

MEASURES = ("pearson", "spearman", "share", "auc", "accuracy", "f1")
"""`share` is Spearman as a share of what a perfect scorer without ties reaches against these labels."""


@dataclass(frozen=True)
class Value:
    """A measured value with its 95 % interval; None is undefined, and `why` says why."""

    value: float | None
    interval: tuple[float, float] | None = None
    why: str = ""


@dataclass(frozen=True)
class Measures:
    """The value of every measure, and its values in each resample, shape (B,)."""

    values: dict[str, Value]
    samples: dict[str, Floats]


@dataclass(frozen=True)
class Thresholds:
    """From which score on two sentences count as alike, found on other pairs than those that are measured."""

    accuracy: float
    f1: float


def measure(
    scores: Floats,
    labels: Floats,
    thresholds: Thresholds | None = None,
    why_none: str = "no threshold was given",
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Measures:
    """Measure how scores match labels.

    Parameters
    ----------
    scores, labels : float64, shape (n,), n >= 1
    thresholds : for accuracy and F1.
    why_none : the reason that is given where there are no thresholds.
    resamples : of the bootstrap; 0 for no intervals.
    """
    attainable = attainable_spearman(labels)
    rho = spearman(scores, labels)
    values = {
        "pearson": pearson(scores, labels),
        "spearman": rho,
        "share": None if rho is None or attainable is None else rho / attainable,
    }
    binary = is_binary(labels)
    values["auc"] = auc(scores, labels) if binary else None
    known = thresholds if binary else None
    values["accuracy"] = accuracy(scores, labels, known.accuracy) if known else None
    values["f1"] = f1(scores, labels, known.f1) if known else None

    cuts = (known.accuracy, known.f1) if known else None
    samples = resampled(scores, labels, cuts, resamples, seed) if resamples else {}
    if resamples:
        samples["share"] = samples["spearman"] / (attainable or np.nan)
    reasons = _reasons(scores, labels, known is not None, why_none)
    return Measures(
        {
            name: Value(None, None, reasons[name])
            if value is None
            else Value(value, interval(samples[name]) if resamples else None)
            for name, value in values.items()
        },
        samples,
    )


def difference(first: Measures, other: Measures) -> dict[str, Value]:
    """Other minus first, on the same pairs and resamples: the interval is that of the paired difference."""
    found = {}
    for name in MEASURES:
        one, two = first.values[name], other.values[name]
        if one.value is None or two.value is None:
            found[name] = Value(None, None, one.why or two.why)
        else:
            within = interval(other.samples[name] - first.samples[name]) if other.samples else None
            found[name] = Value(two.value - one.value, within)
    return found


def _reasons(scores: Floats, labels: Floats, has_thresholds: bool, why_none: str) -> dict[str, str]:
    """Why a measure is undefined, where it is."""
    one_label = f"all labels are {labels[0]:g}" if labels.min() == labels.max() else ""
    correlation = "there is one pair" if len(labels) < 2 else one_label or "all scores are equal"
    graded = "" if is_binary(labels) else "labels are graded, not 0 and 1"
    threshold = graded or why_none
    return {
        "pearson": correlation,
        "spearman": correlation,
        "share": correlation,
        "auc": graded or one_label,
        "accuracy": threshold,
        "f1": "no pair has label 1 or is taken to have it" if has_thresholds else threshold,
    }
