"""The one way from raw embeddings to the unit vectors that are indexed and searched."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retrieval.transforms.whitening import Whitening


def unit_vectors(embeddings: NDArray[np.float32], transform: Whitening | None) -> NDArray[np.float32]:
    """Transform, then scale to unit length.

    Parameters
    ----------
    embeddings : float32, shape (n, d); not modified.
    transform : None leaves the embeddings as they are but for their length.

    Returns
    -------
    float32, shape (n, m); a vector of length 0 stays 0, and scores 0 against everything.
    """
    vectors = np.array(embeddings, dtype=np.float32) if transform is None else transform.transform(embeddings)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)
