"""The results as a table, as CSV, as PNG charts and as one HTML page."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from retrieval.evaluation.bench.grid import TRANSFORMS
from retrieval.evaluation.bench.results import CHARTS, PAGE, TABLE
from retrieval.evaluation.bench.run import MEASURED, UNCUT
from retrieval.evaluation.charts import Chart, Point, pareto_chart, pareto_front
from retrieval.evaluation.page import Code, Section, Table, html_page
from retrieval.evaluation.tables import Sheet
from retrieval.index.spec import KINDS, Setting, is_rescored
from retrieval.storage import atomic_file

_LABELS = ("spearman", "recall", "MRR", "nDCG")


def rows_of(content: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows with the labels of their cut: the exact search on the uncut vectors first, then by transform."""

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        if row["cut"] == UNCUT:
            return (-1,)
        targets = row.get("targets") or [0]
        kind = list(KINDS).index(row["index"]) if row["index"] in KINDS else len(KINDS)
        return (TRANSFORMS.index(row["transform"]), -row["m"], kind, row["index"], *targets)

    labels = {
        cut: {name: value for name, value in found.items() if name.partition("@")[0] in _LABELS}
        for cut, found in content["labels"].items()
    }
    return [{**row, "labels": labels.get(row["cut"], {})} for row in sorted(content["rows"], key=place)]


def name_of(row: dict[str, Any]) -> str:
    """`whiten-256 ivf-pqfs .95`: the cut, the kind, and the recall that the search was set to reach."""
    targets = " ".join(f"{target:g}".removeprefix("0") for target in row.get("targets") or ())
    return f"{row['cut']} {row['index']} {targets}".strip()


def as_sheet(content: dict[str, Any]) -> Sheet:
    """A row a setting; what failed has its reason in the notes."""
    rows = rows_of(content)
    measured = [row for row in rows if row["status"] == MEASURED]
    columns = _columns(content, measured)
    body = [(name_of(row), [(show(row), "") for show in columns.values()]) for row in measured]
    return Sheet(about(content), ["", *columns], body, [*notes(content), *_lacking(rows)])


def about(content: dict[str, Any]) -> list[str]:
    """What was measured, on what, in lines."""
    measured, machine = content["measured"], content["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return [
        f"{measured['source']}: {measured['documents']:,} documents of {measured['dimension']} dimensions, "
        f"{measured['queries']:,} held-out queries ({measured['queries_from']}), k = {content['inputs']['k']}",
        f"{machine['cores']} cores of {machine['cpu']}, {content['inputs']['threads']} threads, {machine['date']}; "
        f"{versions}; seed {content['inputs']['seed']}",
    ]


def notes(content: dict[str, Any]) -> list[str]:
    """What a reader of the figures has to know."""
    k = content["inputs"]["k"]
    lines = [
        f"recall of uncut: share of the {k} nearest in the whole vectors that are found. recall of cut: of the {k} "
        f"nearest in the cut vectors. What the first loses beyond the second is lost by the cut.",
        f"times run from the raw embedding on (transform and search, no encoding); batches are medians of "
        f"{content['inputs']['rounds']} rounds in turn, x exact is against the exact search on uncut vectors in the "
        f"same rounds.",
    ]
    if any(row.get("targets") for row in content["rows"]):
        lines.append(
            "the number behind a kind is the recall of cut that its search was set to reach, on documents and not on "
            "the queries measured; MiB is what the loaded index takes in memory."
        )
    if read := sorted({row["index"] for row in content["rows"] if is_rescored(row["index"])}):
        lines.append(
            f"bytes and MiB of {', '.join(read)} are those of the codes; the {content['measured']['dimension']} raw "
            f"values of each candidate are read from where they lie, here out of the system's cache."
        )
    for row in content["rows"]:
        if (share := row.get("recall_of_given_neighbors")) is not None:
            lines.append(f"the neighbours that the source itself lists are the exact ones to {share:.2%}.")
    labels = next(iter(content["labels"].values()), None)
    if labels is not None:
        lines.append(
            f"{labels['pairs']} ({labels['count']:,} pairs): Spearman of the cosines, and known items among all their "
            f"sentences, both exact; the transform is the documents'. x 100."
        )
    return [*lines, *content["measured"]["notes"]]


def as_csv(content: dict[str, Any]) -> str:
    """All that was measured, a row a setting, flat: `milliseconds.p50`."""
    flat = [_flat(row) for row in rows_of(content)]
    header = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, header, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def write_report(content: dict[str, Any], folder: Path, command: str) -> str:
    """Write results.csv, the charts and index.html beside results.json.

    Returns
    -------
    Letters that no font installed here has, which a PNG shows as boxes.
    """
    charts = draw(content)
    missing = ""
    for name, chart in charts.items():
        missing += chart.save(folder / name)
    for name, text in ((TABLE, as_csv(content)), (PAGE, as_html(content, list(charts.values()), command))):
        with atomic_file(folder / name) as file:
            file.write(text.encode("utf-8"))
    return missing


def draw(content: dict[str, Any]) -> dict[str, Chart]:
    """File name -> recall against what it costs."""
    measured = [row for row in rows_of(content) if row["status"] == MEASURED]
    costs: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
        CHARTS[0]: ("one query, median milliseconds", lambda row: float(row["milliseconds"]["p50"])),
        CHARTS[1]: ("bytes a document", lambda row: float(row["bytes_per_document"])),
    }
    k = content["inputs"]["k"]
    return {
        name: pareto_chart(
            _points(measured, cost),
            title=f"recall@{k} against {label.split(',')[0]}: up and left is better",
            x_label=label,
            y_label=f"recall@{k} of the uncut vectors' nearest, %",
            log_x=True,
        )
        for name, (label, cost) in costs.items()
    }


def _points(rows: Sequence[dict[str, Any]], cost: Callable[[dict[str, Any]], float]) -> list[Point]:
    """A point a row. Of the settings of one index, those on the front have a name, and the one that finds most."""
    points = [Point(row["cut"], cost(row), 100 * row["recall_of_uncut"], row["index"]) for row in rows]
    best: dict[tuple[str, str], Point] = {}
    for point in points:
        known = best.setdefault((point.label, point.group), point)
        if (point.y, -point.x) > (known.y, -known.x):
            best[point.label, point.group] = point
    named = {*best.values(), *(points[place] for place in pareto_front(points))}
    return [point if point in named else replace(point, label="") for point in points]


def as_html(content: dict[str, Any], charts: Sequence[Chart], command: str) -> str:
    """One page that needs no network."""
    sheet = as_sheet(content)
    rows = [[name, *(value for value, _ in cells)] for name, cells in sheet.rows]
    sections = [
        Section("", list(sheet.about)),
        Section("Recall against what it costs", [*charts, "The line joins what nothing beats in both."]),
        Section("All figures", [Table(sheet.header, rows, strong=frozenset({0})), *sheet.notes]),
        Section("Run it again", [Code(command)]),
    ]
    return html_page(f"retr bench: {content['measured']['source']}", sections)


def _columns(content: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Callable[[dict[str, Any]], str]]:
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "recall of uncut": lambda row: f"{100 * row['recall_of_uncut']:.2f}",
        "of cut": lambda row: f"{100 * row['recall_of_cut']:.2f}",
        "queries/s": lambda row: f"{row['queries_per_second']['median']:,.0f}",
        "x exact": lambda row: f"{row['times_faster_than_exact']['median']:.2f}",
        "p50 ms": lambda row: f"{row['milliseconds']['p50']:.3g}",
        "p95": lambda row: f"{row['milliseconds']['p95']:.3g}",
        "p99": lambda row: f"{row['milliseconds']['p99']:.3g}",
        "build s": lambda row: f"{row['build_seconds']:.3g}",
        "bytes/doc": lambda row: f"{row['bytes_per_document']:,.0f}",
        "MiB": lambda row: "–" if row["memory_bytes"] is None else f"{row['memory_bytes'] / 2**20:,.1f}",
    }
    for group in ("labels", "judged"):
        for name in dict.fromkeys(name for row in rows for name in row[group]):
            shown = {"spearman": "Spearman"}.get(name, f"{name} {'known' if group == 'labels' else 'judged'}")
            columns[shown] = partial(_percent, group, name)
    if any(row["setting"] for row in rows):
        columns["setting"] = lambda row: str(Setting(**row["setting"])) if row["setting"] else "–"
    return columns


def _lacking(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What could not be measured, and recalls that no setting reached."""
    failed = [f"{name_of(row)}: {row['reason']}" for row in rows if row["status"] != MEASURED]
    for row in rows:
        missed = [target for target in row.get("targets") or () if target > row["tuned_recall"]]
        if missed:
            shown = ", ".join(f"{target:g}" for target in missed)
            failed.append(
                f"{row['cut']} {row['index']}: no setting tried reaches a recall of {shown}; the best has "
                f"{row['tuned_recall']:.3f} on documents"
            )
    return failed


def _percent(group: str, name: str, row: dict[str, Any]) -> str:
    value = row[group].get(name)
    return "–" if value is None else f"{100 * value:.2f}"


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = " ".join(map(str, value)) if isinstance(value, list) else value
    return flat
