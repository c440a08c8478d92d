"""How hard a search has to look to find a share of the nearest: tried on documents, never on the queries measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.evaluation.bench.recall import Truth, without
from retrieval.index.spec import Setting, list_count
from retrieval.index.vectors import VectorIndex

TRIED = 300
_K_FACTORS = (1, 2, 4, 8, 16, 32)
_EF = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Trial:
    """A setting, what it found of the nearest, and its seconds a batch."""

    setting: Setting
    recall: float
    seconds: float


def try_settings(
    index: VectorIndex, kind_has: Setting, documents: NDArray[np.float32], own: NDArray[np.int64], truth: Truth
) -> list[Trial]:
    """Try all settings that an index has knobs for.

    Parameters
    ----------
    kind_has : a setting with every knob that the index has.
    documents : unit vectors of the index itself, shape (n, m).
    own : their rows.
    truth : their nearest, without themselves.
    """
    trials = []
    for setting in _settings(kind_has, list_count(len(index))):
        start = time.perf_counter()
        scores, rows = index.search(documents, truth.k + 1, setting=setting)
        seconds = time.perf_counter() - start
        trials.append(Trial(setting, float(truth.recall(without(own, scores, rows)[1]).mean()), seconds))
    return trials


def choose(trials: Sequence[Trial], target: float) -> Trial:
    """The fastest that reaches the target; where none does, the one that finds most."""
    enough = [trial for trial in trials if trial.recall >= target]
    return min(enough, key=lambda trial: trial.seconds) if enough else max(trials, key=lambda trial: trial.recall)


def _settings(has: Setting, lists: int) -> list[Setting]:
    probes = [2**power for power in range(lists.bit_length())] if has.nprobe else [None]
    factors = _K_FACTORS if has.k_factor else (None,)
    views = _EF if has.ef_search else (None,)
    return [
        Setting(nprobe=probe, k_factor=factor, ef_search=view)
        for probe in probes
        for factor in factors
        for view in views
    ]
