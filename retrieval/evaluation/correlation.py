"""How scores of pairs agree with their labels: Pearson, Spearman, AUC, accuracy and F1 at a threshold.

A value that does not exist (the correlation with a constant, say) is None, never NaN.
Ranks and AUC: Kendall 1945 (average ranks of ties); Hanley and McNeil 1982 (AUC as the Wilcoxon statistic).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def average_ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share the average of theirs. float64, shape (n,) -> float64, shape (n,)."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    return np.asarray((ends - (sizes - 1) / 2)[group], dtype=np.float64)


def is_binary(labels: Floats) -> bool:
    """Whether every label is 0 or 1."""
    return bool(np.isin(labels, (0.0, 1.0)).all())


def pearson(one: Floats, other: Floats) -> float | None:
    """Pearson's correlation, -1 to 1; None for fewer than two pairs, or where either side is constant.

    Parameters
    ----------
    one, other : float64, shape (n,), finite
    """
    if len(one) < 2 or one.min() == one.max() or other.min() == other.max():
        return None
    centred_one, centred_other = one - one.mean(), other - other.mean()
    unit_one = centred_one / np.linalg.norm(centred_one)
    unit_other = centred_other / np.linalg.norm(centred_other)
    return float(np.clip(unit_one @ unit_other, -1, 1))


def spearman(one: Floats, other: Floats, weights: Floats | None = None) -> float | None:
    """Pearson's correlation of the average ranks; None where that is.

    Parameters
    ----------
    weights : float64, shape (n,), 0 or more
        How much each pair counts. Ranks are then the weight below a value and half of that of its ties, and Pearson's
        correlation is under the weights; equal ones change nothing. None: all count alike.
    """
    if weights is None:
        return pearson(average_ranks(one), average_ranks(other))
    counted = weights > 0
    weights = weights[counted]
    ranks = []
    for values in (one[counted], other[counted]):
        distinct, group = np.unique(values, return_inverse=True)
        if len(distinct) < 2:
            return None
        sums = np.bincount(group, weights)
        ranks.append((np.cumsum(sums) - sums / 2)[group])
    centred = [(each - np.average(each, weights=weights)) * np.sqrt(weights) for each in ranks]
    lengths = np.linalg.norm(centred[0]) * np.linalg.norm(centred[1])
    return float(np.clip(centred[0] @ centred[1] / lengths, -1, 1))


def attainable_spearman(labels: Floats) -> float | None:
    """The Spearman of a perfect scorer: one that orders the pairs as their labels do, and gives no two the same score.

    With groups of t equal labels among n it is sqrt(1 - sum(t^3 - t) / (n^3 - n)): the average ranks are the tie-free
    ones projected onto the groups. sqrt(3)/2 = .8660 for labels of which half are 1, in the limit of many. None where
    all labels are equal.
    """
    n, sizes = len(labels), np.unique(labels, return_counts=True)[1].astype(np.float64)
    if len(sizes) < 2:
        return None
    return float(np.sqrt(1 - (sizes**3 - sizes).sum() / (float(n) ** 3 - n)))


def auc(scores: Floats, labels: Floats) -> float | None:
    """The share of (label 1, label 0) pairs that the scores order rightly, ties as half; None without both labels.

    Parameters
    ----------
    scores : float64, shape (n,)
    labels : float64, shape (n,), each 0 or 1
    """
    positives = int((labels == 1).sum())
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        return None
    rank_sum = float(average_ranks(scores)[labels == 1].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def accuracy(scores: Floats, labels: Floats, threshold: float) -> float | None:
    """The share of labels (0 or 1) that `score >= threshold` tells; None for no pair."""
    return float(((scores >= threshold) == (labels == 1)).mean()) if len(labels) else None


def f1(scores: Floats, labels: Floats, threshold: float) -> float | None:
    """2 TP / (2 TP + FP + FN) of `score >= threshold`; None where no pair has label 1 or is taken to have it."""
    taken, positive = scores >= threshold, labels == 1
    wanted = int(taken.sum()) + int(positive.sum())
    return 2 * int((taken & positive).sum()) / wanted if wanted else None


def best_thresholds(scores: Floats, labels: Floats) -> tuple[float, float]:
    """The thresholds that are best for accuracy and for F1 on these pairs.

    A threshold lies half-way between two neighbouring scores, at the lowest score (all are taken) or just above the
    highest (none is); of equally good ones the highest is given.

    Parameters
    ----------
    scores : float64, shape (n,), n >= 1
    labels : float64, shape (n,), each 0 or 1
    """
    distinct, group = np.unique(scores, return_inverse=True)
    ones = np.bincount(group, weights=labels == 1, minlength=len(distinct))
    zeros = np.bincount(group, weights=labels != 1, minlength=len(distinct))
    # Cut i takes the distinct scores from i on; the last takes none.
    hits = np.append(np.cumsum(ones[::-1])[::-1], 0)
    false = np.append(np.cumsum(zeros[::-1])[::-1], 0)
    between = distinct[:-1] + np.diff(distinct) / 2
    between = np.maximum(between, np.nextafter(distinct[:-1], np.inf))  # neighbouring floats have nothing between
    cuts = np.concatenate([distinct[:1], between, [np.nextafter(distinct[-1], np.inf)]], dtype=np.float64)
    right = hits + zeros.sum() - false
    f1_values = 2 * hits / np.maximum(hits + false + ones.sum(), 1)
    return float(cuts[_last_best(right)]), float(cuts[_last_best(f1_values)])


def _last_best(values: Floats) -> int:
    return len(values) - 1 - int(np.argmax(values[::-1]))
