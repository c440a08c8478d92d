"""Results of retrieval as a table for people, as Markdown, as LaTeX, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrieval.evaluation import tables
from retrieval.evaluation.bootstrap import LEVEL
from retrieval.evaluation.evaluate import SEED
from retrieval.evaluation.measures import Value
from retrieval.evaluation.ranking import JUDGED, MAP
from retrieval.evaluation.retrieval import RankingResult
from retrieval.evaluation.tables import Cell, json_value, one_line, value_cell

_NAMED = 5


def as_json(result: RankingResult) -> dict[str, Any]:
    """The fixed schema: fractions, not percent.

    task, sources [{path, md5}], documents (null where a run was made elsewhere), queries, judged, relevant, system
    {...}, measures {name: {value, interval}} with recall@k, MRR@k, nDCG@k, judged@k for every cut-off and MAP or
    MAP@depth, duplicates {what: [texts]}, notes, bootstrap {resamples, seed, level}, difference null or {to, measures}.
    """
    judged = result.judged
    difference = None
    if result.differences is not None:
        difference = {"to": result.baseline, "measures": _json_values(result.differences)}
    return {
        "task": judged.title,
        "sources": [{"path": source.path, "md5": source.md5} for source in judged.sources],
        "documents": judged.documents,
        "queries": len(judged.qrels),
        "judged": sum(map(len, judged.qrels.values())),
        "relevant": _relevant(result),
        "system": result.system,
        "measures": _json_values(result.values),
        "duplicates": judged.duplicates,
        "notes": list(judged.notes),
        "bootstrap": {"resamples": result.resamples, "seed": SEED, "level": LEVEL},
        "difference": difference,
    }


def as_text(results: Sequence[RankingResult], write: Callable[[tables.Sheet], str] = tables.as_table) -> str:
    """The results on one task, by one of the writers of `tables`.

    Recall is shown at every cut-off, MRR and nDCG at the largest, and how many of the first hits nobody judged.
    """
    first = results[0]
    most = max(first.cutoffs)
    shown = [f"recall@{k}" for k in first.cutoffs] + [f"MRR@{most}", f"nDCG@{most}"]
    shown += [name for name in first.values if name.partition("@")[0] == MAP]
    header, top = ["system", *shown, "top 1 unjudged"], f"{JUDGED}@1"
    rows: list[tuple[str, list[Cell]]] = []
    for number, result in enumerate(results, 1):
        label = f"{number} " if len(results) > 1 else ""
        cells = [*(value_cell(result.values[name]) for name in shown), value_cell(_complement(result.values[top]))]
        rows.append((label + one_line(_system(result)), cells))
        if result.differences is not None:
            gains = result.differences
            cells = [*(value_cell(gains[name], "+") for name in shown), value_cell(_negative(gains[top]), "+")]
            rows.append((f"{number} minus 1", cells))
    return write(tables.Sheet(_about(first), header, rows, _notes(results)))


def _about(result: RankingResult) -> list[str]:
    judged = result.judged
    counts = [f"{len(judged.qrels):,} queries", f"{_relevant(result):,} relevant documents"]
    if judged.documents is not None:
        counts.insert(1, f"{judged.documents:,} documents")
    lines = [f"{one_line(judged.title)}: {', '.join(counts)}", *map(one_line, judged.about)]
    return lines + [f"md5 {source.md5 or '-'}  {one_line(source.path)}" for source in judged.sources]


def _notes(results: Sequence[RankingResult]) -> list[str]:
    first = results[0]
    notes = ["all values x 100, means over the queries"]
    if first.resamples:
        notes[0] += f"; in brackets {100 * LEVEL:.0f} % intervals of {first.resamples:,} bootstrap resamples of them"
    notes += first.judged.notes
    for what, texts in first.judged.duplicates.items():
        more = ", ..." if len(texts) > _NAMED else ""
        named = ", ".join(one_line(text)[:30] for text in texts[:_NAMED])
        notes.append(f"{what}: {len(texts):,} ({named}{more})")
    for number, result in enumerate(results, 1):
        system, which = result.system, f"{number}: " if len(results) > 1 else ""
        if "documents" in system:
            notes.append(f"{which}an index of {system['documents']:,} documents, asked of its own")
        if "dimension" not in system:
            continue
        prompts = f"prompts {system['query_prompt']!r} (query) and {system['document_prompt']!r} (document)"
        fitted = f"; fitted on {one_line(system['fitted_on'])}" if system["fitted_on"] else ""
        notes.append(
            f"{which}{system['dimension']} dimensions, {system['backend']}, {system['precision']}, {prompts}{fitted}"
        )
    return notes


def _system(result: RankingResult) -> str:
    system = result.system
    parts = [system["name"], system.get("pooling"), system["transform"]]
    return ", ".join(part for part in parts if part)


def _relevant(result: RankingResult) -> int:
    return sum(grade > 0 for found in result.judged.qrels.values() for grade in found.values())


def _json_values(values: dict[str, Value]) -> dict[str, Any]:
    return {name: json_value(value) for name, value in values.items()}


def _complement(value: Value) -> Value:
    """1 minus a value."""
    turned = _negative(value)
    within = (1 + turned.interval[0], 1 + turned.interval[1]) if turned.interval else None
    return Value(None if turned.value is None else 1 + turned.value, within)


def _negative(value: Value) -> Value:
    within = (-value.interval[1], -value.interval[0]) if value.interval else None
    return Value(None if value.value is None else -value.value, within)
