"""Axes in which 4-bit codes lose little of an inner product.

Each code of a product quantiser has as many bits as the next and minds all of its axes alike, while an inner product
minds an error as much as vectors are long in its direction. So the axes are the principal ones about the origin: the
first is what all sentence vectors share, where an error counts most: it and maybe a few more have codes of their own;
of the others, which share codes in twos, the longest goes with the shortest. (The allocation of OPQ, Ge et al. 2014,
doi:10.1109/TPAMI.2013.240, sec. 3.2, and the weight of parallel errors of Guo et al. 2020, arXiv:1908.10396.)
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.index.knobs import layers
from retrieval.index.spec import code_count


def balanced(factory: str, dimension: int) -> Any:
    """A FAISS index by inner product whose codes are of balanced axes, which `balance` sets before it is trained.

    Parameters
    ----------
    factory : of codes that come in twos of dimensions, and maybe `,Refine(...)` by the vectors as they are.
    dimension : m
    """
    codes, _, refined = factory.partition(",Refine(")
    axes = 2 * code_count(dimension)
    index = faiss.index_factory(axes, codes, faiss.METRIC_INNER_PRODUCT)
    index = faiss.IndexPreTransform(faiss.LinearTransform(dimension, axes, False), index)
    if refined:
        index = faiss.IndexRefine(index, faiss.index_factory(dimension, refined[:-1], faiss.METRIC_INNER_PRODUCT))
    return index


def balance(index: Any, sample: NDArray[np.float32]) -> None:
    """Set the axes by a sample, shape (n, m); nothing where the index has none that are to be set."""
    for layer in layers(index):
        if isinstance(layer, faiss.IndexPreTransform):
            linear = faiss.downcast_VectorTransform(layer.chain.at(0))
            if type(linear) is faiss.LinearTransform and not linear.is_trained:
                faiss.copy_array_to_vector(balanced_axes(sample).ravel(), linear.A)
                linear.is_trained = True


def balanced_axes(sample: NDArray[np.float32]) -> NDArray[np.float32]:
    """Two rows for each code, orthonormal but for those of zeros, shape (2 codes, m)."""
    dimension = sample.shape[1]
    _, axes = np.linalg.eigh((sample.T @ sample).astype(np.float64))
    longest_first = axes.T[::-1]
    codes = code_count(dimension)
    shared = max(0, dimension - codes)
    rows = np.zeros((codes, 2, dimension), np.float32)
    rows[: dimension - shared, 0] = longest_first[: dimension - shared]
    rows[codes - shared :, 1] = longest_first[dimension - shared :][::-1]
    return rows.reshape(-1, dimension)
