"""Charts of measured figures: lines, heat maps, bars, Pareto fronts. Series differ by marker as well as by colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retrieval.evaluation.drawing import LIGHT, Chart, check_chart_file, fix_layout, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Chart",
    "Point",
    "Series",
    "check_chart_file",
    "grouped_bars",
    "heat_map",
    "line_chart",
    "pareto_chart",
    "pareto_front",
]

_SERIES = [colour for name, colour in LIGHT.items() if name.startswith("series")]
_MARKERS = "osD^vP"
_PLACES = ((7, -3), (-7, -3), (0, 7), (-7, 6), (-7, -12), (7, 6), (0, -13), (7, -12))  # of a label, in points


@dataclass(frozen=True)
class Series:
    """One line: a value of y at each x."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Point:
    """One choice: what it costs (x, less is better), what it gives (y, more is better), and the group it belongs to."""

    label: str
    x: float
    y: float
    group: str = ""


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    ticks: Sequence[float] = (),
) -> Chart:
    """Several series over one x.

    Parameters
    ----------
    ticks : where the x axis has its numbers; empty: chosen.
    """
    with new_axes(title) as (figure, axes):
        for number, line in enumerate(series):
            axes.plot(line.x, line.y, label=line.label, **_style(number), linewidth=1.8, markersize=5)
        _finish(axes, x_label, y_label, log_x, log_y, len(series) > 1)
        if ticks:
            axes.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])
            axes.set_xticks([], minor=True)
    return Chart(title, figure)


def heat_map(
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    form: str = ".2f",
    marked: tuple[int, int] | None = None,
    missing: Mapping[tuple[int, int], str] | None = None,
) -> Chart:
    """A table in which more colour is a larger value.

    Parameters
    ----------
    values : a list a row; None or NaN where there is no value.
    form : how a value is written.
    marked : row and column of the cell with a frame.
    missing : what cells without a value say.
    """
    cells = {
        (row, column): float(value)
        for row, line in enumerate(values)
        for column, value in enumerate(line)
        if value is not None and math.isfinite(value)
    }
    low, high = min(cells.values(), default=0.0), max(cells.values(), default=0.0)
    width = 1.6 + 0.09 * max((len(name) for name in rows), default=0) + 0.82 * len(columns)
    with new_axes(title, width, 1.3 + 0.42 * len(rows)) as (figure, axes):
        from matplotlib.patches import Rectangle

        for row in range(len(rows)):
            for column in range(len(columns)):
                value = cells.get((row, column))
                if value is None:
                    text = (missing or {}).get((row, column), "–")
                    axes.text(column, row, text, ha="center", va="center", color=LIGHT["muted"], fontsize=8)
                    continue
                # Colour over the ground, not mixed with it: the same ink reads on it in light and dark.
                share = (value - low) / (high - low) if high > low else 0.5
                place, best = (column - 0.48, row - 0.46), (row, column) == marked
                axes.add_patch(
                    Rectangle(place, 0.96, 0.92, facecolor=LIGHT["series-1"], alpha=0.06 + 0.5 * share, linewidth=0)
                )
                if best:
                    axes.add_patch(Rectangle(place, 0.96, 0.92, fill=False, edgecolor=LIGHT["ink"], linewidth=1.6))
                weight = "bold" if best else "normal"
                axes.text(column, row, format(value, form), ha="center", va="center", fontsize=9, fontweight=weight)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks(range(len(columns)), columns, fontsize=8)
        axes.set_yticks(range(len(rows)), rows)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return Chart(title, figure)


def grouped_bars(
    names: Sequence[str],
    groups: Mapping[str, Sequence[float | None]],
    *,
    title: str,
    x_label: str,
    form: str = ".2f",
    start: float | None = None,
) -> Chart:
    """Horizontal bars beside one another: for each name, a bar a group.

    Parameters
    ----------
    names : from the top to the bottom.
    groups : label -> a value a name; None where there is none.
    start : where the x axis begins; None: at 0, or below it where a value is negative.
    """
    thick = 0.8 / max(len(groups), 1)
    with new_axes(title, 7.2, 1.2 + (0.22 * len(groups) + 0.12) * len(names)) as (figure, axes):
        for number, (label, values) in enumerate(groups.items()):
            known = [(row, value) for row, value in enumerate(values) if value is not None and math.isfinite(value)]
            places = [row + (number - (len(groups) - 1) / 2) * thick for row, _ in known]
            widths = [value for _, value in known]
            drawn = axes.barh(places, widths, thick * 0.9, color=_SERIES[number % len(_SERIES)], label=label)
            axes.bar_label(drawn, [format(value, form) for value in widths], padding=3, fontsize=8)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.margins(x=0.12)
        _finish(axes, x_label, "", False, False, len(groups) > 1)
        axes.grid(visible=False, axis="y")
        if start is not None:
            axes.set_xlim(left=start)
    return Chart(title, figure)


def pareto_chart(
    points: Sequence[Point], *, title: str, x_label: str, y_label: str, log_x: bool = False, log_y: bool = False
) -> Chart:
    """Choices by what they cost and what they give, those that no other beats in both joined.

    Choices on the front are always labelled, the others where there is room.
    """
    with new_axes(title, 7.2, 4.6) as (figure, axes):
        front = pareto_front(points)
        axes.plot([points[i].x for i in front], [points[i].y for i in front], color=LIGHT["muted"], linewidth=1.2)
        groups = list(dict.fromkeys(point.group for point in points))
        for number, group in enumerate(groups):
            own = [point for point in points if point.group == group]
            style = {**_style(number), "linestyle": "none"}
            axes.plot([point.x for point in own], [point.y for point in own], label=group, **style, markersize=6)
        axes.margins(0.12)
        _finish(axes, x_label, y_label, log_x, log_y, len(groups) > 1)
        _label_points(figure, axes, points, front)
    return Chart(title, figure)


def pareto_front(points: Sequence[Point]) -> list[int]:
    """The points that no other beats: none has as little x with more y, or as much y with less x; in rising x."""
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i].x, -points[i].y)):
        if not front or points[i].y > points[front[-1]].y:
            front.append(i)
    return front


def _label_points(figure: Figure, axes: Axes, points: Sequence[Point], front: Sequence[int]) -> None:
    """Write the labels beside their points, over no other label or point."""
    fix_layout(figure)
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    places: Any = axes.transData.transform([(point.x, point.y) for point in points]) if points else []
    taken: list[Any] = []
    for i in [*front, *(i for i in range(len(points)) if i not in front)]:
        colour = LIGHT["ink"] if i in front else LIGHT["muted"]
        for dx, dy in _PLACES if i not in front else _PLACES[::-1]:  # the front's line is above and to the left
            side = "left" if dx > 0 else "right" if dx < 0 else "center"
            at = (points[i].x, points[i].y)
            text = axes.annotate(
                points[i].label, at, (dx, dy), textcoords="offset points", ha=side, fontsize=8, color=colour
            )
            text.set_in_layout(False)
            box = text.get_window_extent(renderer)
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and axes.bbox.y0 <= box.y0 <= axes.bbox.y1
            others = (place for j, place in enumerate(places) if j != i)
            if inside and not any(box.overlaps(other) for other in taken) and not any(box.contains(*p) for p in others):
                taken.append(box)
                break
            text.remove()
        else:
            if i in front:
                axes.annotate(points[i].label, at, (7, -12), textcoords="offset points", fontsize=8, color=colour)


def _style(number: int) -> dict[str, Any]:
    return {"color": _SERIES[number % len(_SERIES)], "marker": _MARKERS[number % len(_MARKERS)]}


def _finish(axes: Axes, x_label: str, y_label: str, log_x: bool, log_y: bool, legend: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis, log in ((axes.xaxis, log_x), (axes.yaxis, log_y)):
        if log:
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
            low, high = axis.get_view_interval()
            if high < 100 * low:  # powers of ten alone would be one number, or two
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))  # 1,000 and not 10^3
            axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(visible=True, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
