"""Documents that are indexed, and queries that are not: held out of the indexes and of what is fitted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import TransformError, UsageError
from retrieval.evaluation.bench.sources import Source
from retrieval.index.building import Chunks
from retrieval.index.rescored import Take, transformed
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform, check_finite
from retrieval.transforms.moments import USUAL, Moments
from retrieval.types import Progress

HOLD_OUT, LARGEST_SHARE = 1000, 0.1


@dataclass(frozen=True)
class Material:
    """What is measured on."""

    source: Source
    kept: NDArray[np.int64]
    """The source's rows that are documents, rising, shape (n,). A document's row is its place here."""
    queries: NDArray[np.float32]
    """Raw, shape (q, d)."""
    asked: NDArray[np.int64]
    """Which of the source's queries they are, or which of its rows where they were held out: shape (q,)."""
    moments: Moments
    """Of the documents that have a vector."""
    numbered: bool
    """Whether a document has none."""
    sha256: str
    """Of the documents and queries."""
    notes: tuple[str, ...]

    def __len__(self) -> int:
        """How many documents there are."""
        return len(self.kept)

    def raw_chunks(self) -> Iterator[NDArray[np.float32]]:
        """The documents' raw vectors, a chunk at a time."""
        yield from _selected(self.source, self.kept)

    def unit_chunks(self, transform: Transform | None) -> Chunks:
        """The documents' unit vectors."""
        return lambda: (unit_vectors(chunk, transform) for chunk in self.raw_chunks())

    def unit_rows(self, transform: Transform | None) -> Take:
        """Some of them, by rows that rise."""
        return transformed(lambda rows: self.source.take(self.kept[rows]), transform)


def gather(
    source: Source,
    *,
    hold_out: int = HOLD_OUT,
    sample: int | None = None,
    seed: int = 0,
    exact: bool = False,
    progress: Progress,
) -> Material:
    """Choose the queries where the source brings none, and go through the documents once.

    A document that equals a held-out query is held out too; a query given that equals a document is left out.

    Parameters
    ----------
    hold_out : rows to be queries, at most a tenth of them; where the source brings no queries.
    sample : take so many of the rows, chosen by the seed; None: all.
    exact : take all products of the moments in float64.

    Raises
    ------
    UsageError
        Too few rows, a vector holds NaN or infinity, or no query is left.
    """
    random = np.random.default_rng(seed)
    rows, notes = np.arange(source.rows), list(source.notes)
    if source.deleted is not None:
        rows = rows[~source.deleted]
    if sample is not None and sample < len(rows):
        rows = np.sort(random.permutation(rows)[:sample])
    if source.queries is None:
        count = min(hold_out, int(LARGEST_SHARE * len(rows)))
        if count == 0:
            raise UsageError(
                f"{source.name}: {len(rows):,} rows are too few to hold a tenth of them out as queries; give more, "
                f"or queries of their own"
            )
        asked = np.sort(random.permutation(rows)[:count])
        queries = np.concatenate(list(_selected(source, asked)))
    else:
        asked, queries = np.arange(len(source.queries)), source.queries
        _check(queries, 0, f"{source.name}: query vector")
    if not (known := queries.any(axis=1)).all():
        notes.append(f"{int((~known).sum()):,} queries without a vector are left out")
        asked, queries = asked[known], queries[known]
    equal = _Equal(queries)
    moments = Moments(source.dimension, None if exact else USUAL)
    digest, numbered, position = hashlib.sha256(queries.tobytes()), False, 0
    kept: list[NDArray[np.int64]] = []
    with progress.stage("reading", "vectors", len(rows)) as advance:
        for chunk in _selected(source, rows):
            _check(chunk, position, f"{source.name}: row")
            own = rows[position : position + len(chunk)]
            position += len(chunk)
            if source.queries is None:
                inside = ~equal.seen(chunk)
                chunk, own = chunk[inside], own[inside]
            else:
                equal.seen(chunk)
            known = chunk.any(axis=1)
            numbered |= not known.all()
            moments.update(chunk[known])
            digest.update(chunk.tobytes())
            kept.append(own)
            advance(len(own))
    if source.queries is not None and equal.found.any():
        notes.append(f"{int(equal.found.sum()):,} queries equal a document, and are left out: queries are held out")
        asked, queries = asked[~equal.found], queries[~equal.found]
    documents = np.concatenate(kept)
    if source.queries is None and (twins := len(rows) - len(documents) - len(asked)) > 0:
        notes.append(f"{twins:,} documents equal a held-out query, and are held out too")
    if not len(queries) or not moments.rows:
        raise UsageError(f"{source.name}: no {'query' if moments.rows else 'document'} is left that has a vector")
    return Material(source, documents, queries, asked, moments, numbered, digest.hexdigest(), tuple(notes))


class _Equal:
    """Which queries are met, bit for bit, among rows that go by."""

    def __init__(self, queries: NDArray[np.float32]) -> None:
        self.found = np.zeros(len(queries), np.bool_)
        self._firsts = np.unique(queries[:, 0])
        self._places: dict[bytes, list[int]] = {}
        for place, query in enumerate(queries):
            self._places.setdefault(query.tobytes(), []).append(place)

    def seen(self, chunk: NDArray[np.float32]) -> NDArray[np.bool_]:
        """bool, shape (n,): which rows are queries."""
        equal = np.zeros(len(chunk), np.bool_)
        for row in np.flatnonzero(np.isin(chunk[:, 0], self._firsts)):
            if places := self._places.get(chunk[row].tobytes()):
                equal[row], self.found[places] = True, True
        return equal


def _selected(source: Source, rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
    """The raw vectors of rows, which rise, a chunk of the source at a time."""
    start = 0
    for chunk in source.chunks():
        first, last = np.searchsorted(rows, (start, start + len(chunk)))
        yield chunk if last - first == len(chunk) else chunk[rows[first:last] - start]
        start += len(chunk)


def _check(vectors: NDArray[np.float32], first: int, name: str) -> None:
    try:
        check_finite(vectors, first)
    except TransformError as error:
        raise UsageError(f"{name} {str(error).removeprefix('row ')}: expected finite numbers") from None
