"""Every vector in two inverted lists, so that a search has to look into few of them.

A neighbour is missed where its list ranks low for a query. The second list is one for which that happens to other
queries: a near centroid whose residual is about orthogonal to the first one's. (SOAR: Sun et al. 2023,
arXiv:2404.00774, with lambda 1.) FAISS does not know of it, and finds a row up to twice: `distinct` mends that.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.index.knobs import layers

_LEAST_LENGTH = 1e-9  # of a residual that has a direction
_MORE_LISTS = 4  # hold as many of the neighbours where each vector is in one; between 2.7 and 3.8 were measured
_BLOCK_ROWS = 16_384


def spills(index: Any) -> bool:
    """Whether a FAISS index holds vectors in two lists."""
    innermost = layers(index)[-1]
    if not isinstance(innermost, faiss.IndexIVFPQFastScan):
        return False
    return int(innermost.invlists.compute_ntotal()) > int(innermost.ntotal)


class Filling:
    """Vectors on their way into a refined FAISS index of `balance.balanced`, each into two of its inverted lists.

    FastScan's packed lists choose a vector's list themselves, so that they are unpacked first, and packed at the end.
    """

    def __init__(self, index: Any) -> None:
        self._layers = _, chain, lists = layers(index)
        codes = lists.pq
        self._plain = faiss.IndexIVFPQ(
            lists.quantizer, lists.d, lists.nlist, codes.M, codes.nbits, faiss.METRIC_INNER_PRODUCT
        )
        self._plain.pq, self._plain.by_residual, self._plain.is_trained = codes, lists.by_residual, True
        lists.orig_invlists = self._plain.invlists
        lists.reconstruct_orig_invlists()
        lists.orig_invlists = None
        codes.sync_transposed_centroids()  # a quarter faster
        axes = faiss.downcast_VectorTransform(chain.chain.at(0))
        self._axes = faiss.vector_to_array(axes.A).reshape(axes.d_out, axes.d_in).T
        self._centroids = lists.quantizer.reconstruct_n(0, lists.nlist)

    def add(self, vectors: NDArray[np.float32]) -> None:
        """Append vectors, shape (n, m); they cannot be found until they are packed."""
        refined, axes, lists = self._layers
        inside = vectors @ self._axes
        rows = np.arange(refined.ntotal, refined.ntotal + len(vectors))
        for chosen in _two_lists(inside, self._centroids):
            self._plain.add_core(len(inside), *map(faiss.swig_ptr, (inside, rows, chosen)), None)
        refined.refine_index.add(vectors)
        for layer in (refined, axes, lists):
            layer.ntotal = refined.refine_index.ntotal

    def pack(self) -> None:
        """Let the vectors be found."""
        _, _, lists = self._layers
        packed = faiss.IndexIVFPQFastScan(self._plain, lists.bbs)
        packed.own_invlists = False
        lists.replace_invlists(packed.invlists, True)


def _two_lists(vectors: NDArray[np.float32], centroids: NDArray[np.float32]) -> tuple[NDArray[np.int64], ...]:
    """The nearest list of each vector, and its second one, int64, shape (n,) each."""
    double = 2 * vectors @ centroids.T  # (n, lists): twice the products
    first, every = double.argmax(axis=1), np.arange(len(vectors))
    residuals = vectors - centroids[first]
    lengths = np.linalg.norm(residuals, axis=1, keepdims=True)
    directions = residuals / np.maximum(lengths, _LEAST_LENGTH)
    loss = directions @ centroids.T
    loss -= np.einsum("ij,ij->i", vectors, directions)[:, None]
    np.square(loss, out=loss)  # of the part along the first residual
    loss -= double
    loss += np.einsum("ij,ij->i", centroids, centroids)  # |vector - centroid|^2 - |vector|^2 without that part
    if len(centroids) > 1:
        loss[every, first] = np.inf
    return first.astype(np.int64), loss.argmin(axis=1).astype(np.int64)


def distinct(
    scores: NDArray[np.float32], positions: NDArray[np.int64], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The k best of hits, shape (q, any) each, every position once; -1 where there are fewer.

    A position that is there twice has the same score both times.
    """
    order = np.lexsort((positions, -scores), axis=1)
    scores, positions = np.take_along_axis(scores, order, axis=1), np.take_along_axis(positions, order, axis=1)
    again = np.zeros(positions.shape, np.bool_)
    again[:, 1:] = positions[:, 1:] == positions[:, :-1]
    scores[again], positions[again] = -np.inf, -1
    kept = np.argsort(again, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, kept, axis=1), np.take_along_axis(positions, kept, axis=1)


def in_one_list(index: Any) -> None:
    """Put every vector of a FAISS index that `spills` into its first list alone, and look into more lists for it."""
    refined, axes, lists = layers(index)
    axes.reset()
    for start in range(0, refined.ntotal, _BLOCK_ROWS):
        axes.add(refined.refine_index.reconstruct_n(start, min(_BLOCK_ROWS, refined.ntotal - start)))
    lists.nprobe = min(lists.nlist, _MORE_LISTS * lists.nprobe)
