"""What the commands print: data on stdout, all else on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from retrieval.types import Advance

_SECONDS_BETWEEN_LINES = 10.0
_JOINERS = "\u200c\u200d"  # inside emoji and words


def print_line(*cells: str) -> None:
    """One plain line on stdout, cells apart by tabs, with the tabs and line breaks inside a cell made spaces."""
    sys.stdout.write("\t".join(" ".join(cell.split()) if _breaks(cell) else cell for cell in cells) + "\n")


def print_json(record: dict[str, Any]) -> None:
    """One JSON object on a line of stdout; what some readers take for a line's end is escaped inside it."""
    line = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False, default=_json_value)
    for separator in "\x85\u2028\u2029":
        line = line.replace(separator, f"\\u{ord(separator):04x}")
    sys.stdout.write(line + "\n")


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _json_value(value: Any) -> str:
    """Dates and times as ISO 8601; anything else as Python prints it."""
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def _breaks(cell: str) -> bool:
    return any(character in cell for character in "\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")


def counted(number: int, thing: str) -> str:
    """`1 document`, `1,205 documents`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def visible(value: Any) -> str:
    """A value for a table's cell: one line, control characters shown as escapes, so that a terminal stays whole."""
    text = " ".join(str(value).split())
    return "".join(c if c.isprintable() or c in _JOINERS else c.encode("unicode_escape").decode() for c in text)


def shortened(value: Any, limit: int) -> str:
    """`visible`, cut at a number of characters."""
    text = str(value)
    return visible(text if len(text) <= limit else text[:limit] + "...")


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class TerminalProgress:
    """Bars on a terminal, a line now and then elsewhere; with `quiet`, nothing."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet

    def note(self, message: str) -> None:
        if not self._quiet:
            _tell(message)

    @contextmanager
    def stage(self, name: str, unit: str, total: int | None, done: int = 0) -> Iterator[Advance]:
        if self._quiet or total == done:
            yield lambda units: None
        elif sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
            from retrieval.cli.bars import progress_bars

            with progress_bars(unit) as bars:
                task = bars.add_task(name, total=total, completed=done, start_at=done)
                yield lambda units: bars.advance(task, units)
        else:
            yield _Lines(name, unit, total, done).advance


class _Lines:
    """Progress as plain lines, at most one every ten seconds."""

    def __init__(self, name: str, unit: str, total: int | None, done: int) -> None:
        self._name, self._unit, self._total, self._done, self._begun_at = name, unit, total, done, done
        self._started = self._last = time.monotonic()

    def advance(self, units: int) -> None:
        self._done += units
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        rate = (self._done - self._begun_at) / (now - self._started)
        of = f" of {self._total:,}" if self._total is not None else ""
        left = f", {_duration((self._total - self._done) / rate)} left" if self._total is not None and rate > 0 else ""
        line = f"{self._name}: {self._done:,}{of} {self._unit}, {rate:,.0f} {self._unit}/s{left}"
        _tell(line)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
