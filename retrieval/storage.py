"""Files that survive a power cut: written beside, synced, then renamed; and their hashes."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

HASHES = "sha256.json"
_LEFT_SECONDS = 86400  # no folder is filled for longer
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h
_RENAME_SWAP = 2  # sys/stdio.h of macOS


def cache_directory() -> Path:
    """Where unpacked models and remembered hashes live: $RETR_CACHE, or the user's cache directory."""
    if configured := os.environ.get("RETR_CACHE"):
        return Path(configured)
    from platformdirs import user_cache_path

    return user_cache_path("retr", appauthor=False)


def sha256_file(path: Path) -> str:
    """The file's sha256 as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_sha256(path: Path) -> str:
    """sha256_file, remembered under the file's path, size, inode and modification time."""
    memory, key = _memory(path)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        remembered = json.loads(memory.read_text(encoding="utf-8"))
        if remembered["key"] == key:
            return str(remembered["sha256"])
    digest = sha256_file(path)
    remember_sha256(path, digest)
    return digest


def tree_sha256(path: Path) -> str:
    """Of a file's content, or of the names and contents of all files below a folder but hidden ones; remembered."""
    if path.is_file():
        return cached_sha256(path)
    files = {
        file.relative_to(path).as_posix(): cached_sha256(file)
        for file in sorted(path.rglob("*"))
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    }
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def remember_sha256(path: Path, sha256: str) -> None:
    """Let cached_sha256 answer for the file as it is now without reading it."""
    memory, key = _memory(path)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
        memory.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(memory, durable=False) as file:
            file.write(json.dumps({"path": str(path.resolve()), "key": key, "sha256": sha256}).encode())


def _memory(path: Path) -> tuple[Path, list[int]]:
    """Where a file's hash is remembered, and what tells that the file is still the same."""
    path = path.resolve()
    stat = path.stat()
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    return cache_directory() / "hashes" / f"{name}.json", [stat.st_size, stat.st_mtime_ns, stat.st_ino]


@contextlib.contextmanager
def atomic_file(path: Path, durable: bool = True) -> Iterator[IO[bytes]]:
    """A file that appears under its name whole, or not at all; `durable`: even after a power cut."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        make_readable(temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def link_or_copy(path: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system does not allow that. `target` is replaced."""
    target.unlink(missing_ok=True)
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def copy_file(path: Path, target: Path) -> None:
    """Copy a file's content; where the file system can, the copies share their blocks until one is changed."""
    with path.open("rb") as source, target.open("wb") as copy:
        left = os.fstat(source.fileno()).st_size
        with contextlib.suppress(AttributeError, OSError):  # another system than Linux, or two file systems
            while left > 0 and (copied := os.copy_file_range(source.fileno(), copy.fileno(), left)):
                left -= copied
        if left > 0:
            source.seek(copy.seek(0, os.SEEK_END))
            shutil.copyfileobj(source, copy, 1 << 20)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to be filled, which then appears under its name whole and synced, or not at all.

    Where another process was faster, its folder stays.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{folder.name}.*"):  # by a process that was killed, if it is not at work any more
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _LEFT_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield building
        building.chmod(0o755)
        sync_tree(building)
        try:
            building.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """As `new_folder`, but a folder that stands there is replaced at once, and deleted."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield building
        building.chmod(0o755)
        sync_tree(building)
        replace_folder(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def write_hashes(folder: Path) -> None:
    """Let the folder say itself what it holds, for `damaged_file`."""
    hashes = {path.name: [path.stat().st_size, sha256_file(path)] for path in sorted(folder.iterdir())}
    (folder / HASHES).write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")


def damaged_file(folder: Path) -> str | None:
    """The first file that is not what `write_hashes` saw; None where all are."""
    try:
        hashes = json.loads((folder / HASHES).read_text(encoding="utf-8"))
        for name, (size, sha256) in hashes.items():
            path = folder / name
            if path.stat().st_size != size or cached_sha256(path) != sha256:
                return str(name)
    except (OSError, ValueError, TypeError, AttributeError):
        return HASHES
    return None


def make_readable(path: Path) -> None:
    """Give a file the permissions that the user's umask allows; some libraries make their files private."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def sync_directory(path: Path) -> None:
    """Make the directory's own entries durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make every file below `folder` durable, and the directories that name them."""
    for directory, _, names in os.walk(folder):
        for name in names:
            with (Path(directory) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(directory))


def replace_folder(new: Path, standing: Path) -> None:
    """Give `new` the name `standing`, at once; a folder that stood there is then named `new`.

    There is no moment at which `standing` names nothing or half a folder: Linux and macOS exchange two names in one
    system call. Elsewhere, or on a file system without it, the old folder is moved aside first, and back on failure.
    """
    if not standing.exists():
        new.rename(standing)
    elif not _exchange(new, standing):
        aside = new.with_name(f"{new.name}.old")
        standing.rename(aside)
        try:
            new.rename(standing)
        except OSError:
            aside.rename(standing)
            raise
        aside.rename(new)
    sync_directory(standing.parent)
    sync_directory(new.parent)


def _exchange(one: Path, other: Path) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    if sys.platform.startswith("linux") and hasattr(libc, "renameat2"):
        return bool(libc.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE) == 0)
    if sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        return bool(libc.renamex_np(first, second, _RENAME_SWAP) == 0)
    return False
