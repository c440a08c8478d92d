"""An encoder and a transform -> the cosine of each pair; every distinct sentence is encoded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import Encoder, TextKind
from retrieval.evaluation.correlation import Floats
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform
from retrieval.transforms.choice import choose_m
from retrieval.transforms.fitting import curve_lines
from retrieval.transforms.flow import Flow
from retrieval.transforms.held_out import SplitMoments
from retrieval.transforms.moments import USUAL, Moments
from retrieval.transforms.spec import AutoSpec, FlowSpec, TransformSpec
from retrieval.transforms.whitening import DEFAULT_EPS, Whitening
from retrieval.types import NoProgress, Progress

_BLOCK_ROWS = 4096


class EncodedTexts:
    """Raw embeddings of texts. Both sentences of a pair are encoded as documents: neither asks for the other.

    Parameters
    ----------
    texts : any number, with repetitions; each distinct one is encoded once.
    kind : which of the encoder's two prompts is put before each.
    """

    def __init__(
        self, encoder: Encoder, texts: Sequence[str], progress: Progress | None = None, kind: TextKind = "document"
    ) -> None:
        distinct = list(dict.fromkeys(texts))
        self._row = {text: row for row, text in enumerate(distinct)}
        with (progress or NoProgress()).stage("encoding", "texts", len(distinct)) as advance:
            self._embeddings = encoder.encode(distinct, kind=kind, on_batch=advance)

    @classmethod
    def of_embeddings(cls, texts: Sequence[str], embeddings: NDArray[np.float32]) -> EncodedTexts:
        """Of distinct texts that are encoded already: float32, shape (n, d), in their order."""
        encoded = cls.__new__(cls)
        encoded._row = {text: row for row, text in enumerate(texts)}
        encoded._embeddings = embeddings
        return encoded

    def __len__(self) -> int:
        """How many distinct texts were encoded."""
        return len(self._row)

    @property
    def dimension(self) -> int:
        """d of the embeddings."""
        return int(self._embeddings.shape[1])

    @property
    def without_vector(self) -> int:
        """Distinct texts of which the encoder knows nothing: their cosine with any other is 0."""
        return int((~self._embeddings.any(axis=1)).sum())

    def of(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32, shape (n, d), in the order of the texts. KeyError for one that was not encoded."""
        return self._embeddings[[self._row[text] for text in texts]]

    def moments(self, texts: Sequence[str], exact: bool = False) -> Moments:
        """Of the distinct texts given; those without a vector do not count. `exact`: all products in float64."""
        moments = Moments(self.dimension, None if exact else USUAL)
        moments.update(self._known(texts))
        return moments

    def choose(self, spec: AutoSpec, texts: Sequence[str], progress: Progress | None = None) -> TransformSpec:
        """The smallest m by the distinct texts given, as an index of them would have it; `progress` is told the curve.

        Raises
        ------
        TransformError
            The texts are too few.
        """
        known = self._known(texts)
        split = SplitMoments(known.shape[1], exact=spec.eps < DEFAULT_EPS)
        split.update(known)
        choice = choose_m(spec, split, lambda: [known])
        for line in curve_lines(str(spec), choice):
            (progress or NoProgress()).note(line)
        return spec.at(choice.m)

    def fit(self, spec: TransformSpec | FlowSpec, texts: Sequence[str], moments: Moments | None = None) -> Transform:
        """Fit a transform on the distinct texts given; those without a vector do not count.

        Parameters
        ----------
        moments : of these texts, where they are there already.

        Raises
        ------
        TransformError
            The texts do not carry as many dimensions as are asked for.
        """
        if isinstance(spec, FlowSpec):
            return Flow.fit([self._known(texts)])
        moments = moments or self.moments(texts)
        return Whitening.fit(moments, spec.m, beta=spec.beta, gamma=spec.gamma, eps=spec.eps)[0]

    def _known(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The embeddings of the distinct texts that have one."""
        embeddings = self.of(list(dict.fromkeys(texts)))
        return embeddings[embeddings.any(axis=1)]

    def cosines(self, first: Sequence[str], second: Sequence[str], transform: Transform | None = None) -> Floats:
        """The cosine of each pair's transformed vectors; see `pair_cosines`."""
        one, other = (np.array([self._row[text] for text in side], dtype=np.int64) for side in (first, second))
        return pair_cosines(self._embeddings, one, other, transform)

    def distances(
        self, first: Sequence[str], second: Sequence[str], transform: Transform | None = None
    ) -> dict[str, Floats]:
        """The `euclidean` and `manhattan` distance of each pair's unit vectors: float64, shape (n,)."""
        blocks: dict[str, list[Floats]] = {"euclidean": [np.empty(0)], "manhattan": [np.empty(0)]}
        for start in range(0, len(first), _BLOCK_ROWS):
            one, other = (
                unit_vectors(self.of(side[start : start + _BLOCK_ROWS]), transform).astype(np.float64)
                for side in (first, second)
            )
            blocks["euclidean"].append(np.sqrt(((one - other) ** 2).sum(axis=1)))
            blocks["manhattan"].append(np.abs(one - other).sum(axis=1))
        return {kind: np.concatenate(values) for kind, values in blocks.items()}


def pair_cosines(
    embeddings: NDArray[np.float32],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    transform: Transform | None = None,
) -> Floats:
    """The cosine of each pair's transformed vectors: float64, shape (n,), exactly 1 for a text with itself.

    Parameters
    ----------
    embeddings : float32, shape (texts, d)
    first, second : rows of the two sentences of each pair, shape (n,)
    """
    blocks = [np.empty(0)]
    for start in range(0, len(first), _BLOCK_ROWS):
        one, other = (
            unit_vectors(embeddings[side[start : start + _BLOCK_ROWS]], transform).astype(np.float64)
            for side in (first, second)
        )
        # The float32 vectors are of unit length but for their rounding.
        squares = (one * one).sum(axis=1) * (other * other).sum(axis=1)
        products = (one * other).sum(axis=1)
        blocks.append(products / np.sqrt(np.where(squares > 0, squares, 1)))
    return np.concatenate(blocks).clip(-1, 1)
