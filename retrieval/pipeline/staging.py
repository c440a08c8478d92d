"""One change of an index at a time: made in a hidden folder beside it, which then takes its name in one step.

`.NAME.building` beside the index NAME holds the lock of all who write it, and a folder for each kind of change. What is
encoded in there is kept where a build or an addition is broken off, whatever other change comes in between.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from retrieval.errors import BuildError, UsageError
from retrieval.index import folder as layout
from retrieval.storage import link_or_copy, remember_sha256, replace_folder, sync_tree
from retrieval.types import Progress

BUILD, ADD, DELETE, REINDEX = "index", "add", "delete", "reindex"


@dataclass
class Stages:
    """Seconds that the stages of a change took."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)


def resolved(folder: Path) -> Path:
    """Where an index really is: a link to one stays a link. Raises UsageError for the current folder and above."""
    folder = folder.expanduser().resolve()
    if folder == Path.cwd() or folder in Path.cwd().parents:
        raise UsageError(f"'{folder}' is the current folder or holds it, and cannot be replaced: give another with -o")
    return folder


@contextmanager
def locked(index: Path) -> Iterator[Path]:
    """The hidden folder beside an index, for one writer at a time; it goes when nothing is left in it.

    Raises
    ------
    BuildError
        Another process, or another thread, is writing this index.
    """
    building = index.with_name(f".{index.name}.building")
    lock = _lock(building, index)
    try:
        yield building
    finally:
        if not any(path.name != lock_name for path in building.iterdir()):
            shutil.rmtree(building, ignore_errors=True)
        lock.release()


lock_name = "lock"


def _lock(building: Path, index: Path) -> FileLock:
    while True:
        building.mkdir(parents=True, exist_ok=True)
        lock = FileLock(building / lock_name)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BuildError(
                f"another command is writing '{index}' (index, add, delete or reindex): give this one again when that "
                f"one is done"
            ) from None
        if (building / lock_name).exists():
            return lock
        lock.release()  # whoever held it has taken the folder away meanwhile


@contextmanager
def staged(index: Path, kind: str, progress: Progress) -> Iterator[Path]:
    """The folder in which a change of an index is made, for one writer at a time.

    It begins empty, but for what a broken-off build or addition left. It is taken away at the end, but for finished
    shards of new embeddings where the change fails.

    Parameters
    ----------
    kind : BUILD, ADD, DELETE or REINDEX.
    """
    with locked(index) as building:
        for other in (BUILD, ADD, DELETE, REINDEX):
            if not _is_worth_keeping(building / other, other):
                shutil.rmtree(building / other, ignore_errors=True)
        folder = building / kind
        folder.mkdir(exist_ok=True)
        try:
            yield folder
        except BaseException:
            if _is_worth_keeping(folder, kind):
                progress.note("what is encoded so far is kept: the same command goes on from there")
            else:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _is_worth_keeping(folder: Path, kind: str) -> bool:
    """Whether a folder holds embeddings that were made and not merely taken over."""
    if kind not in (BUILD, ADD):
        return False
    where = folder if kind == BUILD else folder / layout.ADDED
    return any(where.glob(f"{'' if kind == BUILD else '*/'}{layout.EMBEDDINGS}/*.safetensors"))


def link_files(index: Path, folder: Path, names: Iterable[str]) -> None:
    """Take files of an index over, without copying them where the file system allows it."""
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(index / name, target)


def commit(folder: Path, index: Path, manifest: layout.Manifest) -> None:
    """Complete a folder with its manifest, make it durable, and let it take the index's name in one step."""
    layout.write_manifest(folder, manifest)
    sync_tree(folder)
    replace_folder(folder, index)
    for name, entry in manifest.files.items():
        remember_sha256(index / name, entry["sha256"])


def how_made(kind: str, stages: Stages, **more: Any) -> dict[str, Any]:
    """The manifest's `build`: what was done last, where, and in how many seconds."""
    return {
        "by": kind,
        "seconds": dict(stages.seconds),
        **more,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "python": platform.python_version(),
    }
