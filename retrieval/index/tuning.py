"""The cheapest search that finds enough of the true neighbours, by held-out vectors against exact search."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.index.rescored import RescoredIndex
from retrieval.index.spec import EXACT, Setting
from retrieval.index.vectors import VectorIndex

K = 10
"""Recall is that of so many neighbours."""
_K_FACTORS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_MORE_FACTORS = 4
"""More lists want more candidates: so many factors are tried beyond the one that was enough for fewer lists."""
_FINE_STEPS = (0.93, 0.998)
"""Between these recalls, which most people ask for, twice as many settings are tried."""
_TIMED_QUERIES = 16
_LEAST_RECALL = 0.6
_LESS_MISSED = 0.75
_ASKED_FOR = (0.9, 0.95, 0.98, 0.99)
"""Recalls whose cheapest setting a curve keeps."""
_SPARE = 0.001  # of recall, which rounded vectors may lose
# Nanoseconds on a core with AVX-512, which only rank settings: the choice is the same on a busy machine.
_PER_CODE_BYTE = 0.033
_PER_CANDIDATE_BYTE = 0.28
_PER_CANDIDATE_READ = 1500.0  # mapped and transformed: half of what it takes, as a query alone pays more for codes too
_NEAREST = 4 * K  # of which those beyond K count where they are as near as the last of the K
_EQUAL = 1e-6


@dataclass(frozen=True)
class Point:
    """A setting and what it was found to do."""

    setting: Setting
    recall: float
    """Share of the K true neighbours of a held-out vector that are found."""
    milliseconds: float
    """One query alone, median."""

    def to_json(self) -> dict[str, Any]:
        return {**self.setting.to_json(), "recall": round(self.recall, 4), "milliseconds": round(self.milliseconds, 4)}

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> Point:
        knobs = {name: value for name, value in values.items() if name in Setting.__dataclass_fields__}
        return cls(Setting(**knobs), float(values["recall"]), float(values["milliseconds"]))


class HeldOut:
    """Vectors that nothing is trained on and no search may find, and their true neighbours among the others.

    Parameters
    ----------
    vectors : unit vectors, float32, shape (q, m)
    rows : int64, shape (q,), rising: where they are in the corpus.
    """

    def __init__(self, vectors: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        self.vectors, self.rows = vectors, rows
        self._scores = np.full((len(vectors), _NEAREST), -np.inf, np.float32)
        self._nearest = np.full((len(vectors), _NEAREST), -1, np.int64)  # -1 where there are fewer

    def update(self, chunk: NDArray[np.float32], start: int) -> None:
        """Look for neighbours among vectors whose first row is `start`."""
        scores = self.vectors @ chunk.T
        scores[:, ~chunk.any(axis=1)] = -np.inf
        scores[:, self.rows[(self.rows >= start) & (self.rows < start + len(chunk))] - start] = -np.inf
        nearer = scores.max(axis=1) > self._scores[:, -1]  # than some that were found before
        scores, count = scores[nearer], min(_NEAREST, len(chunk))
        best = np.argpartition(scores, -count, axis=1)[:, -count:]
        both = np.concatenate([self._scores[nearer], np.take_along_axis(scores, best, axis=1)], axis=1)
        rows = np.concatenate([self._nearest[nearer], best + start], axis=1)
        order = np.argsort(-both, axis=1, kind="stable")[:, :_NEAREST]
        self._scores[nearer] = both = np.take_along_axis(both, order, axis=1)
        self._nearest[nearer] = np.where(np.isneginf(both), -1, np.take_along_axis(rows, order, axis=1))

    def allowed(self, rows: int) -> NDArray[np.bool_]:
        """bool, shape (rows,): all but these."""
        mask = np.ones(rows, np.bool_)
        mask[self.rows[self.rows < rows]] = False
        return mask

    def recall(self, found: NDArray[np.int64]) -> float:
        """Share of the K true neighbours among rows found, int64, shape (q, any)."""
        return self.recalls(found, [found.shape[1]])[0]

    def recalls(self, found: NDArray[np.int64], counts: Sequence[int]) -> list[float]:
        """The recall of the first so many rows found, for each count.

        A row that is as near as the last of the true neighbours is as good: equal texts have equal vectors.
        """
        there = self._nearest >= 0
        wanted = there[:, :K].sum(axis=1)
        least = np.where(there[:, :K], self._scores[:, :K], np.inf).min(axis=1, initial=np.inf)
        good = there & (self._scores >= least[:, None] - _EQUAL)
        same = self._nearest[:, :, None] == found[:, None, :]  # (q, _NEAREST, any)
        places = np.where(same.any(axis=2) & good, same.argmax(axis=2), found.shape[1])
        hits = [np.minimum((places < count).sum(axis=1), wanted).sum() for count in counts]
        return [float(hit / max(1, wanted.sum())) for hit in hits]


def measure_curve(index: VectorIndex, held_out: HeldOut) -> list[Point]:
    """What settings reach, the cheapest first, each finding more than the one before it."""
    allowed = held_out.allowed(index.rows)
    knobs, lists = index.setting, index.lists
    is_read = isinstance(index, RescoredIndex)
    per_candidate = _PER_CANDIDATE_READ if is_read else _PER_CANDIDATE_BYTE * 2 * index.dimension
    found: list[tuple[float, float, Setting]] = []
    best, useful = 0.0, len(_K_FACTORS)
    for step, nprobe in enumerate(_steps(1, lists, 4) if lists else (None,)):
        if step % 2 and nprobe != lists and not _FINE_STEPS[0] <= best <= _FINE_STEPS[1]:
            continue
        for ef_search in _steps(K, 1024, 2) if knobs.ef_search else (None,):
            setting = Setting(nprobe=nprobe, ef_search=ef_search)
            factors = _K_FACTORS[:useful] if knobs.k_factor else (None,)
            rows = index.candidates(held_out.vectors, int(K * (factors[-1] or 1)), allowed, setting)
            counts = [int(K * (k_factor or 1)) for k_factor in factors]
            recalls = held_out.recalls(rows, counts)
            useful = next(i for i, recall in enumerate(recalls) if recall > recalls[-1] - _SPARE) + _MORE_FACTORS
            for k_factor, count, recall in zip(factors, counts, recalls, strict=True):
                scanned = len(index) * (nprobe / lists if nprobe and lists else 1)
                cost = ef_search or _PER_CODE_BYTE * scanned * index.code_bytes
                cost += per_candidate * count
                found.append((cost, recall, Setting(nprobe, k_factor, ef_search)))
        best = max(recall for _, recall, _ in found)
        if best > 0.9995:
            break
    points: list[Point] = []
    for _, recall, setting in sorted(found, key=lambda entry: entry[:2]):
        if not points or recall > points[-1].recall:
            points.append(Point(setting, recall, 0))
    return [_measured(index, held_out, allowed, point) for point in _thinned(points)]


def _measured(index: VectorIndex, held_out: HeldOut, allowed: NDArray[np.bool_], point: Point) -> Point:
    """What a whole search of that setting does: the vectors kept for refinement are rounded, too."""
    recall = point.recall
    if not isinstance(index, RescoredIndex):  # which orders candidates as exact search does
        _, rows = index.search(held_out.vectors, K, allowed=allowed, setting=point.setting)
        # A kind that cannot leave rows out looks at more candidates here than it does where all are allowed.
        recall = min(recall, held_out.recall(rows))
    return Point(point.setting, recall, milliseconds(index, held_out.vectors, point.setting))


def milliseconds(index: VectorIndex, queries: NDArray[np.float32], setting: Setting) -> float:
    """Of a search of one query, median."""
    times = []
    for query in queries[:_TIMED_QUERIES]:
        start = time.perf_counter()
        index.search(query[None], K, setting=setting)
        times.append(1000 * (time.perf_counter() - start))
    return float(np.median(times))


def pick(curve: Sequence[Point], recall: float, most_milliseconds: float | None = None) -> tuple[Point, str | None]:
    """The cheapest point that reaches the recall within the time.

    Parameters
    ----------
    curve : at least one point, the cheapest first.

    Returns
    -------
    The point, and None; or the best that can be had, and what is lacking.
    """
    within = [point for point in curve if most_milliseconds is None or point.milliseconds <= most_milliseconds]
    if not within:
        fastest = min(curve, key=lambda point: point.milliseconds)
        return fastest, f"no search takes {most_milliseconds:g} ms or less, the fastest {fastest.milliseconds:.2g} ms"
    reaching = [point for point in within if point.recall >= recall]
    if reaching:
        return reaching[0], None
    best = max(within, key=lambda point: point.recall)
    limit = "" if most_milliseconds is None else f" within {most_milliseconds:g} ms"
    return best, f"recall {recall:g} is not reached{limit}, the best is {best.recall:.3f}; --index flat is exact"


def setting_for(curve: Sequence[dict[str, Any]], recall: float) -> tuple[Setting, str | None]:
    """How hard to look for a recall, by a manifest's curve; and what is lacking, if anything.

    Recall 1, or more than any point has, is exact search, and so is any where there is no curve.
    """
    points = [Point.of_json(values) for values in curve]
    if recall == 1 or not points:
        return EXACT, None
    point, lacking = pick(points, recall)
    if lacking is None:
        return point.setting, None
    return EXACT, f"all vectors are compared: the curve of this index ends at recall {point.recall:.3f}"


def _steps(first: int, last: int, octave: int) -> list[int]:
    """Whole numbers from the first to the last, so many until they have doubled."""
    count = int(octave * math.log2(last / first)) + 1
    return sorted({*(round(first * 2 ** (i / octave)) for i in range(count)), last})


def _thinned(points: list[Point]) -> list[Point]:
    """Those that miss noticeably less than the one kept before, so that a curve stays short, and the last.

    And the first that reaches each of the recalls that are asked for most.
    """
    kept: list[Point] = []
    for point in points:
        if point.recall < _LEAST_RECALL:
            continue
        before = kept[-1].recall if kept else 0.0
        reaches = any(before < asked + _SPARE <= point.recall for asked in _ASKED_FOR)
        if reaches or not kept or 1 - point.recall < _LESS_MISSED * (1 - before):
            kept.append(point)
    return kept or points[-1:]
