"""The report's folder and results.json: what was measured so far, and whether a second run may go on with it."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from retrieval import __version__
from retrieval.errors import BuildError, RetrError, UsageError
from retrieval.storage import atomic_file

FORMAT, VERSION = "retr-bench", 1
RESULTS, TABLE, PAGE = "results.json", "results.csv", "index.html"
CHARTS = ("recall-latency.png", "recall-bytes.png")
_OWN = {RESULTS, TABLE, PAGE, *CHARTS}
_KILLED_AGAIN = 2


class Results:
    """results.json, written after every unit of work.

    Parameters
    ----------
    folder : of the report.
    content : what results.json holds.
    """

    def __init__(self, folder: Path, content: dict[str, Any]) -> None:
        self.folder, self.content = folder, content

    @classmethod
    def open(cls, folder: Path, inputs: Mapping[str, Any], about: Mapping[str, Any], fresh: bool) -> Results:
        """Go on with the results that are there, where they are of the same inputs.

        Parameters
        ----------
        inputs : what has to be the same.
        about : what is written beside it.

        Raises
        ------
        UsageError
            The results there are of other inputs: each is named.
        """
        found = None if fresh else read_results(folder)
        if found is not None:
            before = found["inputs"]
            changes = [
                f"{name} {before.get(name)!r} -> {inputs.get(name)!r}"
                for name in dict.fromkeys([*before, *inputs])
                if before.get(name) != inputs.get(name)
            ]
            if changes:
                raise UsageError(
                    f"'{folder}' holds results of other inputs ({'; '.join(changes)}): give another folder with -o, "
                    f"or measure anew with --fresh"
                )
        content = found or {"rows": [], "labels": {}, "begun": {}}
        head = {"format": FORMAT, "format_version": VERSION, **about, "inputs": dict(inputs)}
        return cls(folder, {**head, **{name: content[name] for name in ("labels", "begun", "rows")}})

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of the table, in the order that they were measured."""
        rows: list[dict[str, Any]] = self.content["rows"]
        return rows

    def has(self, cut: str, kind: str) -> bool:
        """Whether it was measured, or cannot be."""
        return any(row["cut"] == cut and row["index"] == kind for row in self.rows)

    def begin(self, unit: str) -> bool:
        """Note that a unit is at work. False where it killed the process twice before, out of memory most likely."""
        begun = self.content["begun"]
        if begun.get(unit, 0) >= _KILLED_AGAIN:
            return False
        begun[unit] = begun.get(unit, 0) + 1
        self.save()
        return True

    def end(self, unit: str) -> None:
        """It is not at work any more."""
        self.content["begun"].pop(unit, None)
        self.save()

    def save(self) -> None:
        """Write results.json, whole or not at all."""
        with atomic_file(self.folder / RESULTS) as file:
            text = json.dumps(self.content, indent=1, ensure_ascii=False, allow_nan=False)
            file.write((text + "\n").encode("utf-8"))


def read_results(folder: Path) -> dict[str, Any] | None:
    """What results.json holds; None where there is none. Raises RetrError where it is damaged."""
    path = folder / RESULTS
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if (content["format"], content["format_version"]) == (FORMAT, VERSION):
            _ = [(row["cut"], row["index"], row["status"]) for row in content["rows"]]
            _ = content["inputs"].keys() & content["labels"].keys() & content["begun"].keys()
            return content
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise RetrError(f"{path} is not what this retr bench wrote: give another folder with -o, or --fresh") from None


def check_folder(folder: Path) -> None:
    """Refuse a report's folder in which other things stand.

    Raises
    ------
    UsageError
        It is a file, or holds something that is not a report's.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"'{folder}' is a file: expected a folder or a new name; give another with -o")
    others = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    others = [name for name in others if name not in _OWN and not name.startswith(".")]
    if others:
        raise UsageError(f"'{folder}' holds other things ({', '.join(others[:3])}): give a new folder with -o")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder, made where there is none, for one run at a time. Raises BuildError where another has it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BuildError(f"another run writes to '{folder}': wait for it, or give another folder with -o") from None
    try:
        yield
    finally:
        lock.release()
        (folder / ".lock").unlink(missing_ok=True)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "date": datetime.date.today().isoformat(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "versions": {
            "retr": __version__,
            "python": platform.python_version(),
            **{name: version for name in ("faiss-cpu", "faiss-gpu", "numpy") if (version := _version(name))},
        },
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
