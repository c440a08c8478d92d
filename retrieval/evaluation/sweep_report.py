"""A sweep as a table for people, as Markdown, as LaTeX, as JSON and as a chart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from retrieval.evaluation.bootstrap import LEVEL
from retrieval.evaluation.charts import Chart, Series, heat_map, line_chart
from retrieval.evaluation.grid import keeps_all
from retrieval.evaluation.sweep import Cell, Sweep
from retrieval.evaluation.tables import UNDEFINED, latex, markdown_text, one_line
from retrieval.transforms.spec import NONE

WIDTH = 100
"""Columns of a terminal that a table keeps to; poolings that find no room stand in a table below."""
_MARK = "*"


def as_json(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """One object a cell; fractions, not percent; an undefined or refused value is null, and `refused` says why.

    dataset, split, path, md5, n, model, pooling, backend, precision, fingerprint, transform, dimension, fitted (the
    transform to give `retr eval`), fitted_on, spearman, pearson, auc, refused, choice null or {on, md5, n, spearman},
    best, interval (of the best's spearman).
    """
    task = sweep.task
    for cell in sweep.cells:
        choosing = task.choosing
        yield {
            "dataset": task.pairs.name,
            "split": task.pairs.split or None,
            "path": task.pairs.path,
            "md5": task.pairs.md5,
            "n": len(task.pairs),
            "model": sweep.model,
            "pooling": cell.pooling,
            **sweep.systems[cell.pooling],
            "transform": cell.transform,
            "dimension": cell.dimension,
            "fitted": cell.fitted or None,
            "fitted_on": task.fit_name if cell.transform != NONE else None,
            "spearman": cell.spearman,
            "pearson": cell.pearson,
            "auc": cell.auc,
            "refused": cell.why or None,
            "choice": None
            if choosing is None
            else {"on": choosing.title, "md5": choosing.md5, "n": len(choosing), "spearman": cell.choosing},
            "best": cell is sweep.best,
            "interval": list(sweep.interval) if cell is sweep.best and sweep.interval else None,
        }


def as_table(sweep: Sweep) -> str:
    """A row a transform; of each pooling the Spearman on the pairs of the choice and, beside it, on those measured."""
    labels = ["", "", *sweep.transforms]
    first = max(len(label) for label in labels)
    blocks: list[list[str]] = []
    for pooling in sweep.poolings:
        column = _column(sweep, pooling)
        if not blocks or len(blocks[-1][0]) + 2 + len(column[0]) > WIDTH:
            blocks.append([label.ljust(first) for label in labels])
        blocks[-1] = [f"{line}  {cell}" for line, cell in zip(blocks[-1], column, strict=True)]
    tables = ["\n".join(line.rstrip() for line in block) for block in blocks]
    return "\n\n".join(["\n".join(_about(sweep)), *tables, "\n".join(_notes(sweep))]) + "\n"


def as_markdown(sweep: Sweep) -> str:
    """The same as a Markdown table, the best cell in bold, between what was measured and the notes."""
    header = ["transform", *(f"{pooling} {side}".strip() for pooling in sweep.poolings for side in _sides(sweep))]
    lines = ["| " + " | ".join(map(markdown_text, header)) + " |", "|---|" + "---:|" * (len(header) - 1)]
    for transform, cells in _rows(sweep):
        shown = (f"**{text}**" if strong else markdown_text(text) for text, strong in cells)
        lines.append("| " + " | ".join((markdown_text(transform), *shown)) + " |")
    about, notes = ([f"- {markdown_text(line)}" for line in part] for part in (_about(sweep), _notes(sweep, "in bold")))
    return "\n".join([*about, "", *lines, "", *notes]) + "\n"


def as_latex(sweep: Sweep) -> str:
    """The same as a LaTeX tabular (booktabs), the best cell in bold; what was measured and the notes are comments."""
    header = ["", *(f"{pooling} {side}".strip() for pooling in sweep.poolings for side in _sides(sweep))]
    lines = [f"% {line}" for line in _about(sweep)]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule"]
    lines += [" & ".join(map(latex, header)) + r" \\", r"\midrule"]
    for transform, cells in _rows(sweep):
        shown = (rf"\textbf{{{latex(text)}}}" if strong else latex(text) for text, strong in cells)
        lines.append(" & ".join((latex(transform), *shown)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {line}" for line in _notes(sweep, "in bold"))]
    return "\n".join(lines) + "\n"


def as_chart(sweep: Sweep) -> Chart:
    """A heat map of the measured Spearman; of one pooling with several dimensions, curves over these."""
    title = f"{one_line(sweep.task.pairs.title)}: Spearman x 100, {one_line(sweep.model)}"
    curves = _curves(sweep) if len(sweep.poolings) == 1 else []
    if any(len(curve.x) > 1 for curve in curves):
        ticks = sorted({x for curve in curves for x in curve.x})
        return line_chart(
            curves,
            title=f"{title}, {sweep.poolings[0]}",
            x_label="dimensions",
            y_label="Spearman x 100",
            log_x=True,
            ticks=ticks,
        )
    cells = [[sweep.cell(pooling, transform) for transform in sweep.transforms] for pooling in sweep.poolings]
    places = {
        (row, column): cell for row, line in enumerate(cells) for column, cell in enumerate(line) if cell is not None
    }
    marked = next((place for place, cell in places.items() if cell is sweep.best), None)
    frame = f" (frame: best on {one_line(sweep.task.choosing.title)})" if marked and sweep.task.choosing else ""
    return heat_map(
        [[None if cell is None or cell.spearman is None else 100 * cell.spearman for cell in line] for line in cells],
        sweep.poolings,
        [transform.replace("-", "\n", 1).replace(":", "\n").replace(",", "\n") for transform in sweep.transforms],
        title=title + frame,
        marked=marked,
        missing={place: cell.refused or UNDEFINED for place, cell in places.items() if cell.spearman is None},
    )


def _curves(sweep: Sweep) -> list[Series]:
    """Of each kind of transform, with its numbers but for the dimension: Spearman over dimensions."""
    points: dict[str, list[tuple[float, float]]] = {}
    for cell in sweep.cells:
        kind, _, numbers = cell.transform.partition(":")
        numbers = ",".join(part for part in numbers.split(",") if not part.startswith("eps="))
        label = kind.partition("-")[0] + (f":{numbers}" if numbers else "")
        if cell.spearman is not None and cell.dimension is not None:
            points.setdefault(label, []).append((cell.dimension, 100 * cell.spearman))
    return [Series(label, *zip(*sorted(line), strict=True)) for label, line in points.items()]


def _sides(sweep: Sweep) -> tuple[str, ...]:
    """What stands beside one another under a pooling."""
    measured = one_line(sweep.task.pairs.split or "measured")
    if sweep.task.choosing is None:
        return ("",)
    return sweep.task.choosing.split or "choice", measured


def _rows(sweep: Sweep) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """Of each transform its cells: text, and whether it is the best's."""
    for transform in sweep.transforms:
        cells: list[tuple[str, bool]] = []
        for pooling in sweep.poolings:
            cell = sweep.cell(pooling, transform)
            cells += [(text, cell is not None and cell is sweep.best) for text in _texts(sweep, cell)]
        yield transform, cells


def _texts(sweep: Sweep, cell: Cell | None) -> tuple[str, ...]:
    chooses = sweep.task.choosing is not None
    if cell is None:
        return ("", "") if chooses else ("",)
    if cell.refused:
        return ("", cell.refused) if chooses else (cell.refused,)
    return (_value(cell.choosing), _value(cell.spearman)) if chooses else (_value(cell.spearman),)


def _column(sweep: Sweep, pooling: str) -> list[str]:
    """A pooling's part of the table: its name, what stands below it, and its cells, of one width."""
    sides = _sides(sweep)
    cells = [(sides, False)]
    for transform in sweep.transforms:
        cell = sweep.cell(pooling, transform)
        cells.append((_texts(sweep, cell), cell is not None and cell is sweep.best))
    wide = max(len(texts[-1]) for texts, _ in cells)
    if len(sides) == 1:
        lines = [f"{texts[0]:>{wide}}" for texts, _ in cells]
    else:
        left = max(len(texts[0]) for texts, _ in cells)
        lines = [
            f"{texts[0]:>{left}}{_MARK if best else ' '} {texts[1]:>{wide}}"
            if texts[0]
            else f"{texts[1]:>{left + wide + 2}}"
            for texts, best in cells
        ]
    width = max(len(pooling), *map(len, lines))
    return [line.rjust(width) for line in (pooling, *lines)]


def _value(value: float | None) -> str:
    return UNDEFINED if value is None else f"{100 * value:.2f}"


def _about(sweep: Sweep) -> list[str]:
    pairs, choosing = sweep.task.pairs, sweep.task.choosing
    lines = [f"{one_line(pairs.title)}: {len(pairs):,} pairs", f"md5 {pairs.md5}  {one_line(pairs.path)}"]
    if choosing is not None:
        lines += [
            f"choice on {one_line(choosing.title)}: {len(choosing):,} pairs",
            f"md5 {choosing.md5}  {one_line(choosing.path)}",
        ]
    return lines


def _notes(sweep: Sweep, marked: str = f"marked {_MARK}") -> list[str]:
    task, best = sweep.task, sweep.best
    title = one_line(task.pairs.title)
    if best is not None and task.choosing is not None:
        within = f" [{', '.join(f'{100 * end:.2f}' for end in sweep.interval)}]" if sweep.interval else ""
        notes = [
            f"best on {one_line(task.choosing.title)} ({marked}): {best.pooling}, {best.transform}: "
            f"{_value(best.choosing)}; {title}: {_value(best.spearman)}{within}"
        ]
    else:
        why = task.why_no_choice or "no cell has a Spearman on the pairs of the choice"
        notes = [f"no cell is marked as the best: {one_line(why)}"]
    interval = f"; in brackets the {100 * LEVEL:.0f} % interval of {sweep.resamples:,} bootstrap resamples"
    notes.append("Spearman x 100" + (interval if sweep.interval else ""))
    if task.fit_name:
        notes.append(f"transforms fitted on {one_line(task.fit_name)}, without labels")
    runs = dict.fromkeys(f"{system['backend']}, {system['precision']}" for system in sweep.systems.values())
    notes.append(f"{one_line(sweep.model)}: {'; '.join(runs)}")
    kept: dict[tuple[str, int], list[str]] = {}
    for cell in sweep.cells:
        if keeps_all(cell.transform) and cell.dimension is not None:
            kept.setdefault((cell.transform, cell.dimension), []).append(cell.pooling)
    notes += [f"{name}: {m} dimensions of {', '.join(poolings)}" for (name, m), poolings in kept.items()]
    reasons: dict[str, list[str]] = {}
    for cell in sweep.cells:
        if cell.refused:
            reasons.setdefault(cell.refused, []).append(f"{cell.pooling} {cell.transform}")
    for refused, cells in reasons.items():
        why = (
            "more dimensions are asked for than the vectors of the fit have (eps=0 keeps what may be rounding)"
            if refused.startswith("rank ")
            else "the encoder has no more dimensions"
            if refused.endswith(" dims")
            else next(cell.why for cell in sweep.cells if cell.refused == refused)
        )
        notes.append(f"{refused}: {why}: {', '.join(cells[:3])}{', ...' if len(cells) > 3 else ''}")
    return notes
