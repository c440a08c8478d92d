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
    float32, shape (n, m). A row of zeros stays one: it stands for a text of which the encoder knows nothing.
    """
    vectors = np.array(embeddings, dtype=np.float32) if transform is None else transform.transform(embeddings)
    vectors[~embeddings.any(axis=1)] = 0
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)
