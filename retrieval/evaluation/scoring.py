"""An encoder and a transform -> the cosine of each pair; every distinct sentence is encoded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import Encoder, TextKind
from retrieval.evaluation.correlation import Floats
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform
from retrieval.transforms.flow import Flow
from retrieval.transforms.moments import Moments
from retrieval.transforms.spec import FlowSpec, TransformSpec
from retrieval.transforms.whitening import Whitening
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

    def __len__(self) -> int:
        """How many distinct texts were encoded."""
        return len(self._row)

    @property
    def without_vector(self) -> int:
        """Distinct texts of which the encoder knows nothing: their cosine with any other is 0."""
        return int((~self._embeddings.any(axis=1)).sum())

    def of(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32, shape (n, d), in the order of the texts. KeyError for one that was not encoded."""
        return self._embeddings[[self._row[text] for text in texts]]

    def fit(self, spec: TransformSpec | FlowSpec, texts: Sequence[str]) -> Transform:
        """Fit a transform on the distinct texts given; those without a vector do not count.

        Raises
        ------
        TransformError
            The texts do not carry as many dimensions as are asked for.
        """
        embeddings = self.of(list(dict.fromkeys(texts)))
        known = embeddings[embeddings.any(axis=1)]
        if isinstance(spec, FlowSpec):
            return Flow.fit([known])
        moments = Moments(self._embeddings.shape[1])
        moments.update(known)
        return Whitening.fit(moments, spec.m, beta=spec.beta, gamma=spec.gamma, eps=spec.eps)[0]

    def cosines(self, first: Sequence[str], second: Sequence[str], transform: Transform | None = None) -> Floats:
        """The cosine of each pair's transformed vectors: float64, shape (n,), exactly 1 for a text with itself."""
        blocks = [np.empty(0)]
        for start in range(0, len(first), _BLOCK_ROWS):
            one, other = (
                unit_vectors(self.of(side[start : start + _BLOCK_ROWS]), transform).astype(np.float64)
                for side in (first, second)
            )
            # The float32 vectors are of unit length but for their rounding.
            squares = (one * one).sum(axis=1) * (other * other).sum(axis=1)
            products = (one * other).sum(axis=1)
            blocks.append(products / np.sqrt(np.where(squares > 0, squares, 1)))
        return np.concatenate(blocks).clip(-1, 1)
