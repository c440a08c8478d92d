"""Percentile intervals from resampled pairs (Efron and Tibshirani 1993, chapter 13), many resamples at once.

A resample is n draws with replacement, kept as how often each pair was drawn: scores and labels are sorted once, and
every value follows from weighted sums.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from retrieval.evaluation.correlation import Floats, is_binary

LEVEL = 0.95
_BLOCK_VALUES = 1 << 20
"""How often each pair was drawn is held for so many pairs and resamples at once."""


def resampled(
    scores: Floats, labels: Floats, thresholds: tuple[float, float] | None, resamples: int, seed: int = 0
) -> dict[str, Floats]:
    """Every measure in each resample. Equal n and seed draw the same pairs, so that two systems can be compared.

    Parameters
    ----------
    scores, labels : float64, shape (n,), n >= 1
    thresholds : for accuracy and for F1, or None.
    resamples : B, the draws of each being `default_rng(seed).integers(n, size=n)`, one after another.

    Returns
    -------
    pearson, spearman, auc, accuracy, f1: float64, shape (B,); NaN where a resample has no such value.
    """
    n, sorted_scores, sorted_labels = len(scores), _Sorted(scores), _Sorted(labels)
    binary = is_binary(labels)
    positive = (labels == 1).astype(np.float64)
    # Of unit variance about 0: the sums of squares then lose no digits to the mean.
    x, y = _standardised(scores), _standardised(labels)
    products = np.stack([x, y, x * x, y * y, x * y], axis=1)  # (n, 5)
    values: dict[str, list[Floats]] = {name: [] for name in ("pearson", "spearman", "auc", "accuracy", "f1")}
    for counts in _draws(n, resamples, seed):  # (b, n)
        score_ranks, score_variance, one_score = sorted_scores.ranks(counts)
        label_ranks, label_variance, one_label = sorted_labels.ranks(counts)
        constant = one_score | one_label
        mean_x, mean_y, xx, yy, xy = (counts @ products / n).T
        variances = (xx - mean_x**2) * (yy - mean_y**2)
        values["pearson"].append(_ratio(xy - mean_x * mean_y, np.sqrt(variances.clip(min=0)), ~constant))
        middle = (n + 1) / 2
        covariance = (counts * (score_ranks - middle) * (label_ranks - middle)).sum(axis=1)
        values["spearman"].append(_ratio(covariance, np.sqrt(score_variance * label_variance), ~constant))
        positives = counts @ positive
        rank_sum = (counts * score_ranks) @ positive
        wins = rank_sum - positives * (positives + 1) / 2
        values["auc"].append(_ratio(wins, positives * (n - positives), ~one_label & binary))
        for name, threshold in zip(("accuracy", "f1"), thresholds or (0.0, 0.0), strict=True):
            taken = (scores >= threshold).astype(np.float64)
            if name == "accuracy":
                values[name].append(_ratio(counts @ (taken == positive), np.float64(n), thresholds is not None))
            else:
                wanted = counts @ (taken + positive)
                values[name].append(_ratio(2 * (counts @ (taken * positive)), wanted, thresholds is not None))
    return {name: np.concatenate(blocks) for name, blocks in values.items()}


def resampled_means(values: Floats, resamples: int, seed: int = 0) -> Floats:
    """The means of columns in each resample of the rows, drawn as `resampled` does: (n, m) -> float64, (B, m)."""
    n = len(values)
    return np.concatenate([counts @ values / n for counts in _draws(n, resamples, seed)])


def interval(samples: Floats, level: float = LEVEL) -> tuple[float, float] | None:
    """The percentile interval of resampled values, those that are undefined (NaN) left out; None where all are."""
    defined = samples[~np.isnan(samples)]
    if len(defined) == 0:
        return None
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class _Sorted:
    """Values sorted once, so that their average ranks in a resample are sums."""

    def __init__(self, values: Floats) -> None:
        _, self._group, sizes = np.unique(values, return_inverse=True, return_counts=True)
        self._order = np.argsort(self._group, kind="stable")
        self._starts = np.cumsum(sizes) - sizes

    def ranks(self, counts: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Each value's average rank (b, n), the sum of squares of the ranks about their mean (b,), constant or not."""
        sizes = np.add.reduceat(counts[:, self._order], self._starts, axis=1)  # (b, groups)
        n = counts.shape[1]
        ranks = np.cumsum(sizes, axis=1) - (sizes - 1) / 2
        variance = (sizes * (ranks - (n + 1) / 2) ** 2).sum(axis=1)
        return ranks[:, self._group], variance, (sizes == n).any(axis=1)


def _draws(n: int, resamples: int, seed: int) -> Iterator[Floats]:
    """How often each pair was drawn, float64, in blocks of shape (b, n)."""
    random = np.random.default_rng(seed)
    block = max(1, _BLOCK_VALUES // n)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        yield np.stack([np.bincount(random.integers(n, size=n), minlength=n) for _ in range(rows)]).astype(np.float64)


def _standardised(values: Floats) -> Floats:
    centred = values - values.mean()
    deviation = float(np.sqrt((centred**2).mean()))
    return np.asarray(centred / (deviation or 1.0), dtype=np.float64)


def _ratio(numerator: Floats, denominator: Floats | np.float64, defined: NDArray[np.bool_] | bool) -> Floats:
    out = np.full(numerator.shape, np.nan)
    np.divide(numerator, denominator, out=out, where=np.logical_and(defined, denominator > 0))
    return out
