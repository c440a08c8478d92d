"""The one way from raw embeddings to the unit vectors that are indexed and searched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import TransformError
from retrieval.transforms.base import Transform
from retrieval.transforms.flow import KIND, Flow
from retrieval.transforms.whitening import Whitening


def unit_vectors(embeddings: NDArray[np.float32], transform: Transform | None) -> NDArray[np.float32]:
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


def load_transform(path: Path) -> Transform:
    """Read what `save` of any transform wrote. Raises TransformError where the file is not that."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise TransformError(f"{path} is not a transform: {error}") from None
    return Flow.load(path) if metadata.get("kind") == KIND else Whitening.load(path)
