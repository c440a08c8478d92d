"""Does a transform fit vectors that it was not fitted on? Rows held out of a trial fit, and queries, tell.

Fitted on few rows, whitening makes those rows perfect and anything else enormous: with 100 rows and m = 99, the last
directions divide by what the rows happened to lack. Both figures are taken from moments alone, in no further pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import TransformError
from retrieval.transforms.base import check_dimension, check_finite
from retrieval.transforms.moments import USUAL, Moments, load_moments, save_moments
from retrieval.transforms.spec import AutoSpec, TransformSpec
from retrieval.transforms.whitening import DEFAULT_EPS, Whitening, rank_of

HELD_OUT = 10
"""Every tenth row is held out of the trial fit."""
NORM_ALARM = 1.5
"""Normal vectors reach it when fewer than 1.8 rows a dimension were fitted on: sqrt(n / (n - m)). The inverse alarms
too: what lies outside of all that was seen is lost, and shortens other vectors."""
SHIFT_ALARM = 0.5
"""Half a standard deviation: queries of other kinds or subjects than the documents, or a corpus that changed."""


@dataclass(frozen=True)
class Fitness:
    """How other vectors look beside those that a transform was fitted on.

    Parameters
    ----------
    norm_ratio : root mean square length of the other vectors, transformed, over that of the fitted ones.
    mean_shift : |mean of the others - mean of the fitted| over the fitted ones' standard deviation, which is the root
        of the covariance's trace, before the transform; less what chance gives means of so few vectors:
        sqrt(max(0, |mean_o - mean_f|^2 / trace(Cov_f) - 1 / n_o - 1 / n_f)).
    """

    norm_ratio: float
    mean_shift: float

    @classmethod
    def of(cls, transform: Whitening, fitted: Moments, others: Moments) -> Fitness:
        """Compare others with what the transform was fitted on."""
        apart = others.mean() - fitted.mean()
        extent = float(fitted.covariance().trace())  # 0: all equal, which a rotation allows
        squared = float(apart @ apart) / extent if extent > 0 else 0.0
        return cls(
            norm_ratio=_length(transform, others) / _length(transform, fitted),
            mean_shift=float(np.sqrt(max(0.0, squared - 1 / others.rows - 1 / fitted.rows))),
        )

    def alarms(self, others: str) -> list[str]:
        """What is wrong, in words; `others` says what the vectors are. Empty where nothing is."""
        alarms = []
        if not 1 / NORM_ALARM <= self.norm_ratio <= NORM_ALARM:
            alarms.append(
                f"{others} are {self.norm_ratio:.3g} times as long as those fitted on, once transformed (from "
                f"{1 / NORM_ALARM:.2f} to {NORM_ALARM} is sound): keep fewer dimensions, give more documents, or use "
                f"--transform none"
            )
        if not self.mean_shift <= SHIFT_ALARM:
            alarms.append(
                f"the mean of {others} lies {self.mean_shift:.3g} standard deviations from the mean of those fitted on "
                f"(at most {SHIFT_ALARM} is sound): they are of another kind"
            )
        return alarms


class SplitMoments:
    """Moments of a corpus with every tenth row apart: together they fit the transform, apart they try it.

    Parameters
    ----------
    dimension : d
    exact : all products in float64, as eps below the default needs.
    """

    def __init__(self, dimension: int, exact: bool = False) -> None:
        exact_rows = None if exact else USUAL
        self.fitted, self.held_out = Moments(dimension, exact_rows), Moments(dimension, exact_rows)
        self._seen = 0

    def update(self, embeddings: NDArray[np.float32]) -> None:
        """Take more rows, float32, shape (n, d); rows of zeros, of which the encoder knows nothing, are left out.

        Raises
        ------
        TransformError
            A value is NaN or infinite; the row is named, counted from the first ever given.
        """
        check_dimension(embeddings, self.fitted.dimension)
        fitted, held_out = _parted(embeddings, self.fitted.rows + self.held_out.rows, self._seen)
        self._seen += len(embeddings)
        self.fitted.take(fitted)
        self.held_out.take(held_out)

    def whole(self) -> Moments:
        """The moments of all rows."""
        return self.fitted.merged(self.held_out)

    def serves(self, spec: TransformSpec | AutoSpec) -> bool:
        """Whether the products are exact enough for the floor that is asked for."""
        return spec.eps >= DEFAULT_EPS or (self.fitted.exact and self.held_out.exact)

    def trial(self, spec: TransformSpec) -> Fitness | None:
        """Fit on nine tenths of the rows and try the rest; None where there is no rest, or nothing to fit.

        Where nine tenths have a lower rank than m, the trial keeps as many dimensions as they have.
        """
        if not self.held_out.rows:
            return None
        m = min(spec.m, rank_of(self.fitted, beta=spec.beta, eps=spec.eps))
        if m == 0:
            return None
        transform, _ = Whitening.fit(self.fitted, m, beta=spec.beta, gamma=spec.gamma, eps=spec.eps)
        return Fitness.of(transform, self.fitted, self.held_out)

    def save(self, path: Path, embeddings_sha256: str) -> None:
        """Write a safetensors file, with the hash of the embeddings that were seen."""
        moments = {"fitted": self.fitted, "held_out": self.held_out}
        save_moments(path, moments, {"seen": str(self._seen), "embeddings_sha256": embeddings_sha256})

    @classmethod
    def load(cls, path: Path, embeddings_sha256: str | None = None) -> SplitMoments:
        """Read what `save` wrote.

        Raises
        ------
        TransformError
            It is not that, or of other embeddings than those whose hash is given.
        """
        moments, metadata = load_moments(path, ("fitted", "held_out"))
        if embeddings_sha256 not in (None, metadata.get("embeddings_sha256")):
            raise TransformError(f"{path} holds the moments of other embeddings")
        split = cls(moments["fitted"].dimension)
        split.fitted, split.held_out = moments["fitted"], moments["held_out"]
        split._seen = int(metadata["seen"])
        return split


def parted_chunks(
    chunks: Iterable[NDArray[np.float32]],
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Of each chunk, the rows that `SplitMoments` takes as fitted and those it holds out."""
    known = 0
    for chunk in chunks:
        fitted, held_out = _parted(chunk, known)
        known += len(fitted) + len(held_out)
        yield fitted, held_out


def _parted(
    rows: NDArray[np.float32], before: int, first_row: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Those fitted and those held out, rows of zeros left out, where `before` others came before."""
    with np.errstate(all="ignore"):
        lengths = np.einsum("ij,ij->i", rows, rows)  # a third of the time of any() and isfinite()
    if not np.isfinite(lengths).all():  # large values overflow, and are no fault
        check_finite(rows, first_row)
    known = rows if lengths.all() else rows[rows.any(axis=1)]  # values below 1e-23 have length 0, too
    held_out = (before + np.arange(len(known))) % HELD_OUT == HELD_OUT - 1
    return known[~held_out], known[held_out]


def _length(transform: Whitening, moments: Moments) -> float:
    """Root mean square length of transformed vectors: E|y|^2 = trace(W^T Cov W) + |(mean - beta mu) W|^2."""
    kernel = transform.kernel.astype(np.float64)
    centre = (moments.mean() - transform.mean) @ kernel
    return float(np.sqrt(((moments.covariance() @ kernel) * kernel).sum() + centre @ centre))
