"""Seconds of batches and of single queries, in turn, and memory."""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.types import Progress

Search = Callable[[NDArray[np.float32]], object]
"""Raw query vectors, shape (q, d) -> anything."""
BATCH, SINGLES = 1000, 1000
_WARM, _BLOCK = 5, 20


def measure_times(
    searches: Mapping[str, Search], reference: str, queries: NDArray[np.float32], rounds: int, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Time all searches in turn, so that what else the machine does falls on all of them alike.

    Parameters
    ----------
    reference : the name of the search that the others are compared with, round by round.
    queries : raw, at most BATCH of them make a batch, at most SINGLES are asked one by one.
    rounds : how often the batch is asked.

    Returns
    -------
    name -> queries_per_second (median, min, max), times_faster_than_exact (median, min, max) and milliseconds
    (p50, p95, p99) of single queries.
    """
    batch, singles = queries[:BATCH], queries[:SINGLES]
    for search in searches.values():
        for query in singles[:_WARM]:
            search(query[None])
        search(batch)
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    single: dict[str, list[float]] = {name: [] for name in searches}
    with progress.stage("timing", "searches", len(searches) * (rounds * len(batch) + len(singles))) as advance:
        for _ in range(rounds):
            for name, search in searches.items():
                seconds[name].append(_seconds(search, batch))
                advance(len(batch))
        for start in range(0, len(singles), _BLOCK):
            block = singles[start : start + _BLOCK]
            for name, search in searches.items():
                single[name] += [1000 * _seconds(search, query[None]) for query in block]
                advance(len(block))
    return {
        name: {
            "queries_per_second": _spread([len(batch) / second for second in own]),
            "times_faster_than_exact": _spread(
                [other / second for other, second in zip(seconds[reference], own, strict=True)]
            ),
            "milliseconds": {f"p{p}": float(np.percentile(single[name], p)) for p in (50, 95, 99)},
        }
        for name, own in seconds.items()
    }


def allocated_bytes() -> int | None:
    """Memory that this process holds of malloc, where the system says it (glibc from 2.33 on).

    What a library loads shows in it to the byte; resident memory does not show what takes freed places.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallinfo2 = ctypes.CDLL(None).mallinfo2
        mallinfo2.restype = _Mallinfo2
        info = mallinfo2()
        return int(info.uordblks) + int(info.hblkhd)
    return None


class _Mallinfo2(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def _seconds(search: Search, queries: NDArray[np.float32]) -> float:
    start = time.perf_counter()
    search(queries)
    return time.perf_counter() - start


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
