"""What the user names -> the corpus files, each with its format: files, folders, globs and standard input."""

from __future__ import annotations

import glob
import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from retrieval.errors import CorpusError, UsageError

STANDARD_INPUT = "-"
FORMATS = ("parquet", "csv", "tsv", "jsonl", "text")
_FORMAT_OF_SUFFIX = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
}
_COMPRESSION_SUFFIXES = (".gz", ".zst")
_GZIP_MAGIC, _ZSTD_MAGIC, _PARQUET_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus; `path` is None for standard input."""

    path: Path | None
    format: str

    @property
    def name(self) -> str:
        """To be printed: bytes of the path that are no characters are replaced."""
        if self.path is None:
            return "standard input"
        return str(self.path).encode("utf-8", errors="replace").decode("utf-8")

    @property
    def size(self) -> int | None:
        """Bytes on disk; None for standard input."""
        return None if self.path is None else self.path.stat().st_size

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The file's bytes, decompressed. Raises CorpusError where they cannot be read to the end."""
        try:
            if self.path is None:
                yield cast(IO[bytes], _decompressed(_peekable(sys.stdin.buffer)))
            else:
                with self.path.open("rb") as file:
                    yield cast(IO[bytes], _decompressed(_peekable(file)))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise CorpusError(f"{self.name}: the compressed data is damaged or cut short ({error})") from None
        except OSError as error:
            if error.errno is None:  # Arrow's zstd
                raise CorpusError(f"{self.name}: the compressed data is damaged or cut short ({error})") from None
            raise CorpusError(f"{self.name}: {error.strerror}") from None


def find_files(sources: Sequence[str | os.PathLike[str]], format: str | None = None) -> list[CorpusFile]:
    """The corpus files that `sources` name, in the order given; folders and globs in natural order (2 before 10).

    Parameters
    ----------
    sources : paths of files and folders, globs, or `-` for standard input.
    format : one of FORMATS, for files whose names do not tell.

    Raises
    ------
    CorpusError
        Nothing is there, or nothing that is a corpus.
    UsageError
        An unknown format, or standard input named twice.
    """
    if format is not None and format not in FORMATS:
        raise UsageError(f"unknown format {format!r}: expected one of {', '.join(FORMATS)}")
    names = [os.fspath(source) for source in sources]
    if names.count(STANDARD_INPUT) > 1:
        raise UsageError("standard input (-) can be read once, and is named twice")
    files = [file for name in names for file in _expand(name, format)]
    if not files:
        raise UsageError("no corpus: name at least one file, folder or glob, or - for standard input")
    return files


def _expand(name: str, format: str | None) -> list[CorpusFile]:
    if name == STANDARD_INPUT:
        return [CorpusFile(None, format or _sniff(_peekable(sys.stdin.buffer)))]
    path = Path(name).expanduser()
    if path.is_dir():
        found = [
            inner
            for inner in path.rglob("*")
            if inner.is_file()
            and (format is not None or _format_of(inner) is not None)
            and not any(part.startswith((".", "_")) for part in inner.relative_to(path).parts)
        ]
        if not found:
            raise CorpusError(f"folder {name!r} holds no corpus file: expected {_expected_suffixes()}")
        return [CorpusFile(inner, format or str(_format_of(inner))) for inner in sorted(found, key=natural_key)]
    if path.exists():
        return [CorpusFile(path, format or _format_or_error(path))]
    if matches := [Path(match) for match in glob.glob(str(path), recursive=True)]:  # noqa: PTH207 (absolute patterns too)
        files = sorted((match for match in matches if match.is_file()), key=natural_key)
        return [CorpusFile(match, format or _format_or_error(match)) for match in files]
    raise CorpusError(f"no such file or folder: {name!r}" if not glob.has_magic(name) else f"no file matches {name!r}")


def natural_key(path: Path) -> list[tuple[int, int, str]]:
    """A sort key that puts part-2 before part-10."""
    return [
        (0, int(part), part) if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", str(path)) if part
    ]


def corpus_name(sources: Sequence[str | os.PathLike[str]]) -> str:
    """What an index of this corpus is called: the name of the folder, or of the first file without its suffixes."""
    if os.fspath(sources[0]) == STANDARD_INPUT:
        return "stdin"
    path = Path(sources[0]).expanduser()
    if path.is_dir():
        return path.resolve().name or "root"
    if not path.exists():  # a glob
        path = find_files(sources[:1])[0].path or path
    path = Path(str(path).encode("utf-8", errors="replace").decode("utf-8"))  # Arrow opens no other names
    while path.suffix.lower() in (*_COMPRESSION_SUFFIXES, *_FORMAT_OF_SUFFIX):
        path = path.with_suffix("")
    return path.name


def _format_of(path: Path) -> str | None:
    if path.suffix.lower() in _COMPRESSION_SUFFIXES:
        inner = _FORMAT_OF_SUFFIX.get(path.with_suffix("").suffix.lower())
        return None if inner == "parquet" else inner
    return _FORMAT_OF_SUFFIX.get(path.suffix.lower())


def _format_or_error(path: Path) -> str:
    if format := _format_of(path):
        return format
    raise UsageError(
        f"{path}: the name does not tell the format: expected {_expected_suffixes()}; "
        f"or give --format {'|'.join(FORMATS)}"
    )


def _expected_suffixes() -> str:
    return ", ".join(_FORMAT_OF_SUFFIX) + " (all but Parquet also with .gz or .zst)"


def _sniff(stream: io.BufferedReader) -> str:
    """The format of standard input by its first bytes: Parquet, JSON objects, or else a document a line."""
    head = _decompressed_head(stream)
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    return "jsonl" if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{") else "text"


def _decompressed_head(stream: io.BufferedReader) -> bytes:
    head = stream.peek(1 << 12)
    if head.startswith(_GZIP_MAGIC):
        return zlib.decompressobj(wbits=31).decompress(head, 1 << 12)
    if head.startswith(_ZSTD_MAGIC):
        import pyarrow as pa

        with pa.CompressedInputStream(pa.BufferReader(head), "zstd") as inner:
            return bytes(inner.read(64))
    return head


def _peekable(stream: IO[bytes]) -> io.BufferedReader:
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, stream))


def _decompressed(stream: io.BufferedReader) -> object:
    head = stream.peek(4)
    if head.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=stream)
    if head.startswith(_ZSTD_MAGIC):
        import pyarrow as pa  # not at the top: the command line reads this module's names before every query

        return pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd")
    return stream
