"""The folder that `retr reproduce` writes: results.json, a record a row, and embeddings that rows still need."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from retrieval import __version__
from retrieval.errors import BuildError, UsageError
from retrieval.storage import atomic_file

RESULTS, EMBEDDINGS = "results.json", "embeddings"
_FORMAT = 1
_LOCK = ".lock"

Record = dict[str, Any]
"""Of one row, with what `Table.described` says of it. `status` is finished, waiting (`waits_for` says for what) or
failed (`error`). A finished one has `splits` (name, n, and pearson, spearman, share and auc, each with value, interval
and why it has none; the last is the one that is compared), `fitted_on`, `dimension`, `weights`, `encoder`,
`without_vector` (distinct sentences of which the encoder knows nothing), `seconds`, `at`, and the `key` that tells
whether it is still what would be measured."""


class Results:
    """The records of a folder, by row id; each change is on the disk at once, whole.

    Parameters
    ----------
    folder : exists.
    rows : the records that are there.
    """

    def __init__(self, folder: Path, rows: dict[str, Record]) -> None:
        self.folder, self.rows = folder, rows

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[Results]:
        """The results of a folder, for one run at a time; the folder is made where there is none.

        Raises
        ------
        UsageError
            It is a file, or a folder of something else.
        BuildError
            Another run has it, or its results.json is not what was written.
        """
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"'{folder}' is a file: give a folder with -o")
        if folder.is_dir() and not (folder / RESULTS).exists() and {path.name for path in folder.iterdir()} - {_LOCK}:
            raise UsageError(f"'{folder}' holds something else than results of retr reproduce: give another with -o")
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BuildError(f"another run writes to '{folder}': wait for it, or give another folder with -o") from None
        try:
            results = cls(folder, _read(folder / RESULTS))
            results.save()
            yield results
        finally:
            lock.release()

    def put(self, row: str, record: Record) -> None:
        """Keep the record of a row, on the disk too."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.rows[row] = json.loads(json.dumps({**record, "at": now}))  # as it will be read back
        self.save()

    def save(self) -> None:
        """Write results.json anew, in one step."""
        content = {"format": _FORMAT, "retr": __version__, "rows": self.rows}
        with atomic_file(self.folder / RESULTS) as file:
            file.write((json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())


def finished(record: Mapping[str, Any] | None) -> bool:
    """Whether a row has figures."""
    return record is not None and record.get("status") == "finished"


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names of what differs between two keys."""
    return [name for name, value in now.items() if before.get(name) != value]


def _read(path: Path) -> dict[str, Record]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] == _FORMAT:
            rows: dict[str, Record] = content["rows"]
            if all(isinstance(record["status"], str) for record in rows.values()):
                return rows
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise BuildError(f"{path} is not what this retr reproduce wrote: move it away, or give another folder with -o")
