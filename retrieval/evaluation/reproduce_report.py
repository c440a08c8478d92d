"""What `retr reproduce` found beside what was published: for a terminal, as Markdown, and as an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.evaluation.bootstrap import LEVEL
from retrieval.evaluation.charts import Chart, grouped_bars
from retrieval.evaluation.page import Block, Section, html_page
from retrieval.evaluation.page import Table as PageTable
from retrieval.evaluation.published import TABLES, Row, Table
from retrieval.evaluation.results import Record, finished
from retrieval.evaluation.tables import markdown_row, markdown_text

TITLE = "Published figures, measured again"
_NONE = "–"
_GIVEN = "*"


@dataclass(frozen=True)
class Report:
    """One published table, and what was measured of it.

    Parameters
    ----------
    table : as published.
    records : by row id; rows without one were not asked for.
    """

    table: Table
    records: dict[str, Record]

    @property
    def heading(self) -> str:
        """One line."""
        return f"{self.table.name}: {self.table.source}"

    @property
    def header(self) -> list[str]:
        """A name a column."""
        by = self.table.publisher
        split_columns = [f"Spearman, {name}" for name in self._splits()]
        published = [f"Pearson, {by}"] if self._has_pearson else []
        measured = ["Pearson, here", f"Spearman, {by}", "Spearman, here", "interval", "gap"]
        return ["row", "pooling", *published, *measured, *split_columns]

    @property
    def cells(self) -> list[list[str]]:
        """A row of cells a published row: values x 100."""
        return [self._cells(row) for row in self.table.rows]

    @property
    def notes(self) -> list[str]:
        """What the figures are, and what each row was measured with or waits for."""
        by = self.table.publisher
        notes = [
            f"The columns '{by}' are figures as published, on {self.table.published_on}; 'here' are those of retr."
        ]
        for (name, pairs), rows in self._measured_on().items():
            lacking = [split for split in self.table.splits if split not in name.split(" + ")]
            without = f", without {' and '.join(lacking)}, which was not there" if lacking else ""
            of = "" if len(rows) == len(self._finished()) else f": {', '.join(rows)}"
            notes.append(f"Here: {self.table.dataset} {name}, {pairs:,} pairs{without}{of}.")
        if self._finished():
            notes.append(
                f"Values x 100; the interval is that of Spearman, {100 * LEVEL:.0f} % of the bootstrap's resamples; "
                f"the gap is Spearman here less published."
            )
            if any(self.records[row.id]["weights"]["given"] for row in self._finished()):
                notes.append(
                    f"{_GIVEN} weights given with --model: the row is the {by}'s only where they are its weights."
                )
        return notes

    @property
    def weights(self) -> list[str]:
        """Of each finished row: what measured it, and what a transform was fitted on."""
        lines = []
        for row in self._finished():
            record = self.records[row.id]
            encoder, weights = record["encoder"], record["weights"]
            fitted = f"; {row.transform} fitted on {record['fitted_on']}" if record["fitted_on"] else ""
            without = record["without_vector"]
            unknown = f"; {without:,} sentences without a vector" if without else ""
            lines.append(
                f"{row.id}: {weights['source']} (sha256 {weights['sha256'][:12]}), {encoder['backend']} "
                f"{encoder['precision']}, {record['dimension']} dimensions{fitted}{unknown}; {record['at'][:10]}"
            )
        return lines

    @property
    def missing(self) -> list[str]:
        """What rows wait for, or why they failed: a line a reason."""
        reasons: dict[str, list[str]] = {}
        for row in self.table.rows:
            record = self.records.get(row.id, {})
            if record.get("status") == "waiting":
                reasons.setdefault(f"wait{{}} for {record['waits_for']}", []).append(row.id)
            elif record.get("status") == "failed":
                reasons.setdefault(f"failed: {record['error']}", []).append(row.id)
        return [
            f"{', '.join(rows)} {reason.replace('{}', 's' if len(rows) == 1 else '', 1)}"
            for reason, rows in reasons.items()
        ]

    def chart(self) -> Chart:
        """Spearman as published and here. RetrError where matplotlib is not installed."""
        spearman = {row.id: last_split(self.records[row.id])["spearman"]["value"] for row in self._finished()}
        groups: dict[str, list[float | None]] = {self.table.publisher: [100 * row.spearman for row in self.table.rows]}
        if spearman:
            values = [spearman.get(row.id) for row in self.table.rows]
            groups["here"] = [None if value is None else 100 * value for value in values]
        return grouped_bars(
            [self._name(row) for row in self.table.rows],
            groups,
            title=f"{self.table.dataset}: Spearman as published and here",
            x_label="Spearman x 100",
        )

    @property
    def _has_pearson(self) -> bool:
        return any(row.pearson is not None for row in self.table.rows)

    def _finished(self) -> list[Row]:
        return [row for row in self.table.rows if finished(self.records.get(row.id))]

    def _splits(self) -> list[str]:
        """The splits that have columns of their own, beside the one that is compared."""
        names = (split["name"] for row in self._finished() for split in self.records[row.id]["splits"][:-1])
        return list(dict.fromkeys(names))

    def _measured_on(self) -> dict[tuple[str, int], list[str]]:
        found: dict[tuple[str, int], list[str]] = {}
        for row in self._finished():
            last = last_split(self.records[row.id])
            found.setdefault((last["name"], last["n"]), []).append(row.id)
        return found

    def _name(self, row: Row) -> str:
        return row.id + (_GIVEN if row in self._finished() and self.records[row.id]["weights"]["given"] else "")

    def _cells(self, row: Row) -> list[str]:
        pearson = [_percent(row.pearson)] if self._has_pearson else []
        if row not in self._finished():
            rest = [_NONE] * (2 + len(self._splits()))
            return [row.id, row.pooling, *pearson, _NONE, _percent(row.spearman), _NONE, *rest]
        splits = self.records[row.id]["splits"]
        last, by_name = splits[-1], {split["name"]: split for split in splits[:-1]}
        spearman = last["spearman"]
        within = spearman["interval"]
        gap = None if spearman["value"] is None else spearman["value"] - row.spearman
        return [
            self._name(row),
            row.pooling,
            *pearson,
            _percent(last["pearson"]["value"]),
            _percent(row.spearman),
            _percent(spearman["value"]),
            f"{100 * within[0]:.2f} to {100 * within[1]:.2f}" if within else _NONE,
            _NONE if gap is None else f"{100 * gap:+.2f}",
            *(_percent(by_name[name]["spearman"]["value"]) if name in by_name else _NONE for name in self._splits()),
        ]


def last_split(record: Record) -> dict[str, Any]:
    """The pairs of a finished row that are compared with what was published: all that are there."""
    split: dict[str, Any] = record["splits"][-1]
    return split


def as_text(reports: Sequence[Report]) -> str:
    """Tables for a terminal or a pipe."""
    parts = []
    for report in reports:
        # `Pearson, here` stands in two lines, so that a table fits a terminal.
        heads = [name.rpartition(", ") for name in report.header]
        rows = [[head[0] for head in heads], [head[2] for head in heads], *report.cells]
        widths = [max(len(row[place]) for row in rows) for place in range(len(heads))]
        lines = [
            "  ".join(
                cell.ljust(width) if place < 2 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        blocks = [[report.heading], lines, report.notes, report.weights, report.missing]
        parts.append("\n\n".join("\n".join(block) for block in blocks if block))
    return "\n\n\n".join(parts) + "\n"


def as_markdown(reports: Sequence[Report]) -> str:
    """A section a table."""
    parts = [f"# {TITLE}"]
    for report in reports:
        lines = [markdown_row(report.header), "|---|---|" + "---:|" * (len(report.header) - 2)]
        parts += [f"## {markdown_text(report.heading)}", "\n".join([*lines, *map(markdown_row, report.cells)])]
        for block in (report.notes, report.weights, report.missing):
            if block:
                parts.append("\n".join(f"- {markdown_text(line)}" for line in block))
    return "\n\n".join(parts) + "\n"


def as_html(reports: Sequence[Report], charts: Sequence[Chart]) -> str:
    """One page that needs no network: a section a table, with its chart where there is one."""
    sections = []
    for report, chart in zip(reports, [*charts, *[None] * (len(reports) - len(charts))], strict=True):
        blocks: list[Block] = [report.notes[0]]
        if chart is not None:
            blocks.append(chart)
        blocks += [PageTable(report.header, report.cells), *report.notes[1:]]
        sections.append(Section(report.heading, blocks))
        sections += [
            Section(title, lines)
            for title, lines in (("Measured with", report.weights), ("Not measured", report.missing))
            if lines
        ]
    return html_page(TITLE, sections)


def reports_of(records: dict[str, Record], tables: Sequence[str]) -> list[Report]:
    """The reports of tables, in their order."""
    return [Report(TABLES[name], records) for name in tables]


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.2f}"
