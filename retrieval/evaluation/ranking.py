"""Ranked results against judgements, by ir-measures: recall@k, MRR@k, nDCG@k, MAP, and how much nobody judged.

ir-measures (MacAvaney et al. 2022) hands each measure to a library that is known for it, trec_eval above all, and needs
numpy and scipy alone. ranx is as good, but brings numba, pandas and seaborn along, and compiles before it measures.

Recall counts documents of relevance 1 and above; nDCG (Järvelin and Kekäläinen 2002) gains the relevance itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.types import Qrels, Run

MAP, JUDGED = "MAP", "judged"


def measure_names(cutoffs: Sequence[int], depth: int | None) -> list[str]:
    """What is measured: recall, MRR, nDCG and the judged share at each cut-off, and MAP to the depth of the run.

    Whether the first hit was judged is always measured.

    Parameters
    ----------
    cutoffs : k, each at least 1.
    depth : of the rankings; None where they are whole.
    """
    at_each = [f"{name}@{k}" for k in cutoffs for name in ("recall", "MRR", "nDCG", JUDGED)]
    first = [] if 1 in cutoffs else [f"{JUDGED}@1"]
    return [*first, *at_each, MAP if depth is None else f"{MAP}@{depth}"]


def ordered(scores: Mapping[str, float]) -> list[str]:
    """The documents from the best score on. Scores are compared as float32; of equal ones the larger id comes first.

    That is trec_eval's order, so that a run in memory and the file that it is written to are worth the same; the
    libraries behind ir-measures do not agree among themselves.
    """
    with np.errstate(over="ignore"):
        rounded = np.fromiter(scores.values(), np.float64, len(scores)).astype(np.float32).tolist()
    return [document for _, document in sorted(zip(rounded, scores, strict=True), reverse=True)]


def without_relevant(qrels: Qrels) -> list[str]:
    """The queries for which no document is judged relevant: nothing can be found for them."""
    return [query for query, judged in qrels.items() if not any(grade > 0 for grade in judged.values())]


def measure_queries(
    qrels: Qrels, run: Run, measures: Sequence[str], queries: Iterable[str] | None = None
) -> NDArray[np.float64]:
    """Every measure of every query.

    Parameters
    ----------
    measures : as `measure_names` gives them.
    queries : those of the rows; None: all of the qrels that have a relevant document. One of which the run knows
        nothing has 0.

    Returns
    -------
    float64, shape (queries, measures), each from 0 to 1.
    """
    import ir_measures

    if queries is None:
        queries = [query for query in qrels if any(grade > 0 for grade in qrels[query].values())]
    rows = {query: row for row, query in enumerate(queries)}
    # Falling whole numbers for scores: the libraries break ties in ways of their own.
    ranked = {
        query: {document: -float(rank) for rank, document in enumerate(ordered(found))}
        for query, found in run.items()
        if query in rows and found
    }
    wanted = {_measure(name): place for place, name in enumerate(measures)}
    values = np.zeros((len(rows), len(measures)))
    if not rows:
        return values
    for metric in ir_measures.iter_calc(list(wanted), {query: qrels[query] for query in rows}, ranked):
        values[rows[metric.query_id], wanted[metric.measure]] = metric.value
    return values


def _measure(name: str) -> Any:
    from ir_measures import AP, RR, Judged, R, nDCG

    kinds = {"recall": R, "MRR": RR, "nDCG": nDCG, MAP: AP, JUDGED: Judged}
    kind, _, cutoff = name.partition("@")
    return kinds[kind] @ int(cutoff) if cutoff else kinds[kind]
