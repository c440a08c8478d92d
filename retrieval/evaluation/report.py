"""Results as a table for people, as Markdown, as LaTeX, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrieval.evaluation import tables
from retrieval.evaluation.bootstrap import LEVEL
from retrieval.evaluation.evaluate import SEED, Result
from retrieval.evaluation.measures import MEASURES
from retrieval.evaluation.tables import UNDEFINED, Cell, json_value, one_line, value_cell

_HEADER = ("system", "Pearson", "Spearman", "% of attainable", "AUC", "accuracy", "F1")


def as_json(result: Result) -> dict[str, Any]:
    """The fixed schema: fractions, not percent; an undefined value is null, and `undefined` has the reason.

    dataset, split, path, md5, n, positives (null for graded labels), attainable_spearman, system {...},
    MEASURES each {value, interval}, undefined {measure: reason}, threshold {from, accuracy, f1} or null,
    bootstrap {resamples, seed, level}, difference null or {to, MEASURES each {value, interval}}.
    """
    pairs, tuning, thresholds = result.task.pairs, result.task.tuning, result.thresholds
    values = result.measures.values
    difference = None
    if result.differences is not None:
        difference = {"to": result.baseline, **{name: json_value(result.differences[name]) for name in MEASURES}}
    return {
        "dataset": pairs.name,
        "split": pairs.split or None,
        "path": pairs.path,
        "md5": pairs.md5,
        "n": len(pairs),
        "positives": _positives(result),
        "attainable_spearman": result.attainable,
        "system": result.system,
        **{name: json_value(values[name]) for name in MEASURES},
        "undefined": {name: values[name].why for name in MEASURES if values[name].value is None},
        "threshold": {"from": tuning.title, "accuracy": thresholds.accuracy, "f1": thresholds.f1}
        if tuning and thresholds
        else None,
        "bootstrap": {"resamples": result.resamples, "seed": SEED, "level": LEVEL},
        "difference": difference,
    }


def as_table(results: Sequence[Result]) -> str:
    """The results on one set: what was measured, a row a system with intervals below the values, and notes."""
    return tables.as_table(_sheet(results))


def as_markdown(results: Sequence[Result]) -> str:
    """The results on one set as a Markdown table between what was measured and the notes."""
    return tables.as_markdown(_sheet(results))


def as_latex(results: Sequence[Result]) -> str:
    """The results on one set as a LaTeX tabular (booktabs); what was measured and the notes are comments."""
    return tables.as_latex(_sheet(results))


def _sheet(results: Sequence[Result]) -> tables.Sheet:
    return tables.Sheet(_about(results), _HEADER, _rows(results), _notes(results))


def _positives(result: Result) -> int | None:
    labels = result.task.pairs.labels
    return int((labels == 1).sum()) if set(labels.tolist()) <= {0.0, 1.0} else None


def _about(results: Sequence[Result]) -> list[str]:
    pairs, positives = results[0].task.pairs, _positives(results[0])
    labels = (
        f"{positives:,} with label 1"
        if positives is not None
        else (f"labels {pairs.labels.min():g} to {pairs.labels.max():g}")
    )
    return [f"{one_line(pairs.title)}: {len(pairs):,} pairs, {labels}", f"md5 {pairs.md5}  {one_line(pairs.path)}"]


def _rows(results: Sequence[Result]) -> list[tuple[str, list[Cell]]]:
    """A row a system, and below each later one its difference to the first."""
    rows = []
    for number, result in enumerate(results, 1):
        label = f"{number} " if len(results) > 1 else ""
        rows.append(
            (label + one_line(_system(result)), [value_cell(result.measures.values[name]) for name in MEASURES])
        )
        if result.differences is not None:
            rows.append((f"{number} minus 1", [value_cell(result.differences[name], "+") for name in MEASURES]))
    return rows


def _system(result: Result) -> str:
    system = result.system
    return f"{system['name']}, {system['pooling']}, {system['transform']}"


def _notes(results: Sequence[Result]) -> list[str]:
    first = results[0]
    notes = [
        "all values x 100"
        + (
            f"; in brackets {100 * LEVEL:.0f} % intervals of {first.resamples:,} bootstrap resamples"
            if first.resamples
            else ""
        )
    ]
    if first.attainable is not None:
        notes.append(f"attainable Spearman: {100 * first.attainable:.2f} (a perfect scorer without ties)")
    for number, result in enumerate(results, 1):
        system, which = result.system, f"{number}: " if len(results) > 1 else ""
        run = f"{system['dimension']} dimensions, {system['backend']}, {system['precision']}"
        fitted = f"; fitted on {one_line(system['fitted_on'])}" if system["fitted_on"] else ""
        cuts = result.thresholds
        threshold = ""
        if cuts is not None and result.task.tuning is not None:
            threshold = (
                f"; thresholds {cuts.accuracy:.4f} (accuracy) and {cuts.f1:.4f} (F1), "
                f"the best on {one_line(result.task.tuning.title)}"
            )
        notes.append(which + run + fitted + threshold)
        reasons: dict[str, list[str]] = {}
        for name in MEASURES:
            if result.measures.values[name].value is None:
                reasons.setdefault(result.measures.values[name].why, []).append(_HEADER[MEASURES.index(name) + 1])
        notes += [f"{which}{', '.join(names)} {UNDEFINED}: {one_line(why)}" for why, names in reasons.items()]
    return notes
