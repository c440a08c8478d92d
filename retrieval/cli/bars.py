"""Progress bars on a terminal. A module of their own: loading rich costs a query more than its search."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Rate(ProgressColumn):
    """Units a second since this run began, not counting what was there before."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        done = task.completed - float(task.fields.get("start_at", 0))
        return Text(f"{done / elapsed:,.0f} {self._unit}/s" if elapsed > 0 and done > 0 else f"- {self._unit}/s")


def progress_bars(unit: str) -> Progress:
    """Bars on standard error, with the rate in units a second."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=Console(stderr=True, highlight=False),
        transient=True,
        speed_estimate_period=60,
    )
