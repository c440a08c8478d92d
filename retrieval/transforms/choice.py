"""Which m? The smallest whose neighbours are those of all dimensions, for vectors that were not fitted on.

The reference is the same transform with all its dimensions, not the raw cosine: cutting is what is judged here, and a
whitening moves the neighbours before anything is cut. On LCQMC dev with multilingual-e5-small, whitened vectors share
at most .68 of their ten neighbours with the raw ones, at 160 dimensions, and fewer again with more: against the raw
cosine a threshold may never be passed, and the smallest m that passes means little. A rotation keeps every inner
product, so there both are the same. The overlap with the raw cosine is measured too, and shown beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import TransformError
from retrieval.transforms.held_out import HELD_OUT, SplitMoments, parted_chunks
from retrieval.transforms.sampling import distinct_rows, sample_rows
from retrieval.transforms.spec import AutoSpec
from retrieval.transforms.whitening import Whitening, rank_of

Chunks = Callable[[], Iterable[NDArray[np.float32]]]
"""All rows, as often as they are asked for."""
NEIGHBOURS = 10
QUERIES, DOCUMENTS = 1000, 10_000
"""At most so many are drawn; with 1,000, the mean overlap is known to about .006 (one standard error)."""
LEAST_QUERIES = 20
LEAST_ROWS = HELD_OUT * LEAST_QUERIES
_BLOCK_QUERIES = 250


@dataclass(frozen=True)
class Point:
    """What a cut at m dimensions keeps of the ten neighbours of a held-out vector, on average.

    Parameters
    ----------
    overlap : of those by the transform with all its dimensions, 0 to 1.
    raw : of those by the raw embeddings' cosine.
    """

    m: int
    overlap: float
    raw: float


@dataclass(frozen=True)
class Choice:
    """The m that was chosen, and why.

    Parameters
    ----------
    points : by m, rising: a coarse grid up to the rank, and what was tried between two of its points.
    threshold : m is the smallest that reached it, where those tried below did not.
    rank : all dimensions of the trial fit.
    queries, documents : held-out vectors, and fitted ones among which their neighbours were sought.
    """

    m: int
    threshold: float
    rank: int
    queries: int
    documents: int
    seed: int
    points: tuple[Point, ...]

    def to_json(self) -> dict[str, Any]:
        """As a manifest holds it: `curve` is a list of m, overlap, raw overlap."""
        own = {name: getattr(self, name) for name in ("m", "threshold", "rank", "queries", "documents", "seed")}
        return {**own, "curve": [[p.m, round(p.overlap, 4), round(p.raw, 4)] for p in self.points]}


def choose_m(
    spec: AutoSpec,
    split: SplitMoments,
    chunks: Chunks,
    *,
    seed: int = 0,
    on_cut: Callable[[], None] = lambda: None,
) -> Choice:
    """Fit on nine tenths of the rows, and find how few dimensions keep the neighbours of the tenth that is held out.

    Parameters
    ----------
    spec : its `overlap` is the threshold.
    split : the moments of the rows.
    chunks : the same rows, float32, (n, d) each; gone through twice.
    seed : of the sample. A held-out row that equals a fitted one is no query.
    on_cut : told after each m that was tried, some twenty in all.

    Raises
    ------
    TransformError
        Too few rows are distinct, or they have rank 0.
    """
    rank = rank_of(split.fitted, beta=spec.beta, eps=spec.eps) if split.held_out.rows >= LEAST_QUERIES else 0
    queries, documents = _sample(chunks, seed) if rank else (np.empty((0, 0), np.float32),) * 2
    if len(queries) < LEAST_QUERIES or len(documents) < NEIGHBOURS:
        raise TransformError(
            f"{spec} wants at least {LEAST_ROWS} distinct vectors, a tenth of them held out, to choose m by; of "
            f"{split.fitted.rows + split.held_out.rows:,} vectors {len(queries)} can be held out (expected "
            f"{LEAST_QUERIES}): give more distinct documents, say m ({spec.kind}-M), or use --transform none"
        )
    transform, _ = Whitening.fit(split.fitted, rank, beta=spec.beta, gamma=spec.gamma, eps=spec.eps)
    raw = _neighbours(queries, documents)
    queries, documents = transform.transform(queries), transform.transform(documents)
    uncut = _neighbours(queries, documents)
    points: dict[int, Point] = {}

    def passes(m: int) -> bool:
        found = _neighbours(queries[:, :m], documents[:, :m])
        points[m] = Point(m, _overlap(found, uncut), _overlap(found, raw))
        on_cut()
        return points[m].overlap >= spec.overlap

    passing = [m for m in _grid(rank) if passes(m)]  # all, for the curve
    high = passing[0]  # the rank passes: there, nothing is cut
    low = max((m for m in points if m < high), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    ordered = tuple(points[m] for m in sorted(points))
    return Choice(high, spec.overlap, rank, len(queries), len(documents), seed, ordered)


def _sample(chunks: Chunks, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Distinct held-out rows that no fitted row equals, and distinct fitted rows."""
    queries = distinct_rows(sample_rows((held_out for _, held_out in parted_chunks(chunks())), QUERIES, seed))
    own = np.ones(len(queries), dtype=bool)

    def fitted() -> Iterator[NDArray[np.float32]]:
        for rows, _ in parted_chunks(chunks()):
            alike = rows[np.isin(rows[:, 0], queries[:, 0])]
            if len(alike):
                known = {row.tobytes() for row in alike}
                own[[row.tobytes() in known for row in queries]] = False
            yield rows

    documents = distinct_rows(sample_rows(fitted(), DOCUMENTS, seed))
    return queries[own], documents


def _grid(rank: int) -> list[int]:
    """8, 12, 16, 24, 32, 48, ... and the rank."""
    steps = [step << power for power in range(rank.bit_length()) for step in (8, 12)]
    return [*sorted(m for m in steps if m < rank), rank]


def _neighbours(queries: NDArray[np.float32], documents: NDArray[np.float32]) -> NDArray[np.int64]:
    """The rows of the ten documents of largest cosine, in no order: int64, shape (queries, 10)."""
    documents, queries = _unit(documents), _unit(queries)
    found = np.empty((len(queries), NEIGHBOURS), dtype=np.int64)
    for start in range(0, len(queries), _BLOCK_QUERIES):
        scores = queries[start : start + _BLOCK_QUERIES] @ documents.T
        found[start : start + len(scores)] = np.argpartition(scores, -NEIGHBOURS, axis=1)[:, -NEIGHBOURS:]
    return found


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def _overlap(found: NDArray[np.int64], expected: NDArray[np.int64]) -> float:
    """The mean share of the neighbours that both have."""
    return float((found[:, :, None] == expected[:, None, :]).sum() / found.size)
