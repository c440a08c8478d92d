"""Unit vectors in chunks -> a trained, filled and tuned VectorIndex."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import UsageError
from retrieval.index.rescored import RescoredIndex, Take
from retrieval.index.spec import EXACT_KINDS, SEED, Wanted, factory_string, is_rescored, sample_rows
from retrieval.index.tuning import HeldOut, Point, measure_curve, milliseconds, pick
from retrieval.index.vectors import VectorIndex
from retrieval.types import NoProgress, Progress

_HELD_OUT, _HELD_OUT_SHARE = 1000, 0.05
_LEAST_HELD_OUT = 20

Chunks = Callable[[], Iterator[NDArray[np.float32]]]
"""All unit vectors in row order, a chunk at a time, whenever it is called; rows of zeros are texts without a vector."""


@dataclass
class Built:
    """An index, and what a manifest tells of it."""

    vectors: VectorIndex
    spec: str
    factory: str
    wanted: Wanted
    curve: list[Point] = field(default_factory=list)
    """What settings reach, the cheapest first; empty for exact search."""
    recall: float | None = None
    """Of the setting that was chosen; None where nothing was held out."""

    def to_json(self) -> dict[str, Any]:
        found = {} if self.recall is None else {"recall": round(self.recall, 4)}
        return {
            "spec": self.spec,
            "dimension": self.vectors.dimension,
            "vectors": len(self.vectors),
            "factory": self.factory,
            "setting": self.vectors.setting.to_json(),
            "wanted_recall": self.wanted.recall,
            **found,
            "curve": [point.to_json() for point in self.curve],
        }


def build_vectors(
    chunks: Chunks,
    rows: int,
    dimension: int,
    spec: str,
    *,
    take: Take | None = None,
    wanted: Wanted | None = None,
    numbered: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Built:
    """Train an index on a seeded sample of the rows, add them all, and find the cheapest search that is good enough.

    Parameters
    ----------
    chunks : see Chunks
    rows : of all chunks
    dimension : m
    spec : a kind that `spec.choose_spec` gave, or a FAISS factory string
    take : the same unit vectors by their rows; only for a kind that scores its candidates with them.
    wanted : the recall that is looked for, and the time a query may take
    numbered : whether there may be rows of zeros
    device : where k-means runs: `cpu` or `cuda`
    progress : told how it goes, and what was chosen.
    """
    wanted, progress = wanted or Wanted(), progress or NoProgress()
    index = VectorIndex(dimension, spec, numbered, rows=rows)
    if is_rescored(spec):
        if take is None:
            raise UsageError(f"the index {spec} scores its candidates with stored vectors, and there are none here")
        index = RescoredIndex(index, take)
    order = np.random.default_rng(SEED).permutation(rows)
    count = min(_HELD_OUT, int(_HELD_OUT_SHARE * rows))
    held = order[: 0 if spec in EXACT_KINDS or count < _LEAST_HELD_OUT else count]
    sample = order[len(held) :][: 0 if index.is_trained else sample_rows(spec, rows)]
    added_late = 0
    if index.setting.ef_search and len(held):  # a graph leads a vector that is in it to its own neighbours at once
        held, added_late = np.arange(rows - count, rows), count
    held_out = None
    if len(held) or len(sample):
        vectors, places = _take(chunks, np.sort(np.concatenate([held, sample])))  # one pass for both
        is_held = np.isin(places, held)
        held_out = HeldOut(vectors[is_held], places[is_held]) if len(held) else None
    if len(sample):
        with progress.stage("training", "vectors", len(sample)) as advance:
            try:
                index.train(vectors[~is_held], device)
            except UsageError as error:
                progress.note(f"index flat, not {spec}: {error}")
                return build_vectors(
                    chunks, rows, dimension, "flat", wanted=wanted, numbered=numbered, progress=progress
                )
            advance(len(sample))
        del vectors  # a quarter of a gigabyte, for a million
    start, late = 0, []
    with progress.stage("indexing", "vectors", rows) as advance:
        for chunk in chunks():
            now = chunk[: max(0, rows - added_late - start)]
            index.add(now)
            if held_out is not None and len(now):
                held_out.update(now, start)
            if len(now) < len(chunk):
                late.append(chunk[len(now) :])
            start += len(chunk)
            advance(len(chunk))
    built = Built(index, spec, factory_string(spec, dimension, rows), wanted)
    if held_out is not None and len(held_out.rows):
        with progress.stage("tuning", "settings", None):
            _tune(built, held_out, progress)
    elif wanted.most_milliseconds is not None and len(index):
        _tell_of_time(built, _take(chunks, np.sort(order[:_LEAST_HELD_OUT]))[0], progress)
    for chunk in late:
        index.add(chunk)
    return built


def _tune(built: Built, held_out: HeldOut, progress: Progress) -> None:
    index, wanted = built.vectors, built.wanted
    built.curve = measure_curve(index, held_out)
    point, lacking = pick(built.curve, wanted.recall, wanted.most_milliseconds)
    index.setting = point.setting
    built.recall = point.recall
    progress.note(
        f"search: {point.setting}: recall@10 {built.recall:.3f} of {len(held_out.rows):,} vectors held out, "
        f"{point.milliseconds:.2g} ms a query"
    )
    if lacking:
        progress.note(f"warning: {lacking}")


def _tell_of_time(built: Built, queries: NDArray[np.float32], progress: Progress) -> None:
    most = built.wanted.most_milliseconds
    needed = milliseconds(built.vectors, queries, built.vectors.setting)
    if most is not None and needed > most:
        progress.note(
            f"warning: a query takes {needed:.2g} ms, not {most:g} ms: {built.spec} compares all vectors; "
            f"another kind (--index ivf-pqfs) or fewer dimensions are faster"
        )


def _take(chunks: Chunks, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The vectors of some rows, which rise, float32, shape (n, m), and their rows; those of zeros left out."""
    found, start = [], 0
    for chunk in chunks():
        inside = rows[(rows >= start) & (rows < start + len(chunk))] - start
        found.append(chunk[inside])
        start += len(chunk)
    vectors = np.concatenate(found)
    kept = vectors.any(axis=1)
    return vectors[kept], rows[kept]
