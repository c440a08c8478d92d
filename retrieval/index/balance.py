"""Dimensions in an order in which the codes of a product quantiser share their variance out evenly.

Each code has as many bits as the next, and a rotation gives its vectors in falling order of variance: with neighbouring
dimensions in one code, the first codes would have most to tell and the last next to nothing. (The allocation of OPQ,
Ge et al. 2014, doi:10.1109/TPAMI.2013.240, sec. 3.2, without another rotation.)
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.index.knobs import layers


def in_an_order(index: Any) -> Any:
    """A FAISS index behind an order of dimensions, which `balance` sets before it is trained."""
    return faiss.IndexPreTransform(faiss.RemapDimensionsTransform(index.d, index.d, True), index)


def balance(index: Any, sample: NDArray[np.float32]) -> None:
    """Set the order by the variances of a sample, shape (n, m); nothing where the index has none."""
    first = layers(index)[0]
    if not isinstance(first, faiss.IndexPreTransform):
        return
    order = faiss.downcast_VectorTransform(first.chain.at(0))
    if isinstance(order, faiss.RemapDimensionsTransform):
        importance = sample.var(axis=0) * np.square(sample).mean(axis=0)
        places = balanced_order(importance, layers(index)[-1].pq.M)
        faiss.copy_array_to_vector(places.astype(np.int32), order.map)


def balanced_order(variances: NDArray[np.float32], groups: int) -> NDArray[np.int64]:
    """The dimensions of the first group, then those of the second, and so on, shape (m,).

    They are dealt out by falling variance, forth and back: of two a group, the largest goes with the smallest.
    """
    dealt = np.argsort(-variances, kind="stable").reshape(-1, groups)
    dealt[1::2] = dealt[1::2, ::-1]
    return dealt.T.ravel()
