"""A sheet of results as a table for people, as Markdown and as LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.evaluation.measures import Value

UNDEFINED = "undefined"
Cell = tuple[str, str]  # the value, and its interval or nothing


@dataclass(frozen=True)
class Sheet:
    """What was measured, a row a system, and notes."""

    about: Sequence[str]
    header: Sequence[str]
    """Of the names of the rows, then of their cells."""
    rows: Sequence[tuple[str, Sequence[Cell]]]
    notes: Sequence[str]


def as_table(sheet: Sheet) -> str:
    """Columns apart by spaces, intervals below the values."""
    rows: list[tuple[str, ...]] = [tuple(sheet.header)]
    for name, cells in sheet.rows:
        rows.append((name, *(value for value, _ in cells)))
        if any(within for _, within in cells):
            rows.append(("", *(within for _, within in cells)))
    widths = [max(len(row[place]) for row in rows) for place in range(len(sheet.header))]
    lines = [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*sheet.about, "", *lines, "", *sheet.notes]) + "\n"


def as_markdown(sheet: Sheet) -> str:
    """A Markdown table between what was measured and the notes."""
    lines = [markdown_row(sheet.header), "|---|" + "---:|" * (len(sheet.header) - 1)]
    lines += [markdown_row((name, *(" ".join(cell).strip() for cell in cells))) for name, cells in sheet.rows]
    about, notes = ([f"- {markdown_text(line)}" for line in part] for part in (sheet.about, sheet.notes))
    return "\n".join([*about, "", *lines, "", *notes]) + "\n"


def as_latex(sheet: Sheet) -> str:
    """A LaTeX tabular (booktabs); what was measured and the notes are comments."""
    lines = [f"% {line}" for line in sheet.about]
    columns = "l" + "r" * (len(sheet.header) - 1)
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", latex_row(sheet.header), r"\midrule"]
    for name, cells in sheet.rows:
        shown = (latex(value) + (rf" {{\scriptsize {latex(within)}}}" if within else "") for value, within in cells)
        lines.append(" & ".join((latex(name), *shown)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {line}" for line in sheet.notes)]
    return "\n".join(lines) + "\n"


def value_cell(value: Value, sign: str = "") -> Cell:
    """A value x 100 with its interval; `sign` is + for differences."""
    if value.value is None:
        return UNDEFINED, ""
    if value.interval is None:
        return f"{100 * value.value:{sign}.2f}", ""
    low, high = value.interval
    return f"{100 * value.value:{sign}.2f}", f"[{100 * low:{sign}.2f}, {100 * high:{sign}.2f}]"


def json_value(value: Value) -> dict[str, object]:
    """{value, interval}, as fractions."""
    return {"value": value.value, "interval": list(value.interval) if value.interval else None}


def one_line(text: str) -> str:
    """A name or path on one line, without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)


def markdown_row(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(markdown_text(cell) for cell in cells) + " |"


def markdown_text(text: str) -> str:
    """A text in which Markdown sees nothing but text."""
    return "".join("\\" + character if character in "|*`_<" else character for character in text)


def latex_row(cells: Sequence[str]) -> str:
    """A line of a LaTeX tabular."""
    return " & ".join(latex(cell) for cell in cells) + r" \\"


def latex(text: str) -> str:
    """A text in which LaTeX sees nothing but text."""
    escapes = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(escapes.get(c, "\\" + c if c in "&%$#_{}" else c) for c in text)
