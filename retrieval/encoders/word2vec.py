"""Word vectors: a text's vector is the mean of those of its words. Mikolov et al. 2013, arXiv:1301.3781 and 1310.4546.

Both of word2vec's formats begin with a line "count dimension". In a text file a line follows for each word: the word
and its values, each after one space. In a binary file it is the word, a space and the values as little-endian float32,
with or without a newline. Either may be gzipped. gensim reads the file once; from then on a copy of it in the user's
cache is mapped into memory, which takes no time, and which processes share.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import EncoderCounts, EncoderSettings, Family, TextKind, settings_fingerprint
from retrieval.encoders.words import segment, segmenter_version
from retrieval.errors import EncoderError, UsageError
from retrieval.storage import cache_directory, cached_sha256, damaged_file, replace_folder, sync_tree, write_hashes

LIMIT = 500_000
"""Words that are read; files list the frequent ones first."""

POOLINGS = ("average",)
VECTORS, VOCABULARY = "vectors.npy", "vocabulary.json"
_INSTALL = "pip install 'retr[word2vec]'"
_BATCH_TEXTS = 256
_PART_ROWS = 4096
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_LFS = b"version https://git-lfs.github.com/spec/"
_LONGEST_HEADER = 256
_MOST_DIMENSIONS = 100_000
_MOST_BAD_WORDS = 0.01
_HEADER = re.compile(rb"\s*(\d+)\s+(\d+)\s*")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")

Note = Callable[[str], None]


class Word2VecEncoder:
    """Word vectors, averaged over the words that jieba finds in a text.

    Parameters
    ----------
    path : a word2vec file: text or binary, gzipped or not. Its name does not matter.
    settings : pooling `average`; max_length is in words, and 0 stands for all of them.
    note : called with one line before a file is read for the first time, which takes up to minutes.

    Raises
    ------
    EncoderError
        The file is missing or not a whole word2vec file, or gensim or jieba is not installed.
    UsageError
        Another pooling, or a negative max_length.
    """

    backend, precision = "numpy", "float32"

    def __init__(self, path: Path, settings: EncoderSettings, note: Note = lambda message: None) -> None:
        if settings.pooling not in POOLINGS:
            raise UsageError(f"unknown pooling {settings.pooling!r} for word vectors: expected {' or '.join(POOLINGS)}")
        if settings.max_length < 0:
            raise UsageError(f"max length {settings.max_length} is negative: expected a number of words, or 0 for all")
        self.family: Family = "raw"
        self.settings = settings
        self.counts = EncoderCounts()
        with _readable(path):
            self._sha256 = cached_sha256(path)
        segmenter_version()  # so that a package that is not installed is missed now, not after the corpus was read
        self._vectors, words = _open_vectors(path, self._sha256, note)
        self._row_of = dict(zip(words, range(len(words)), strict=True))

    @property
    def dimension(self) -> int:
        return int(self._vectors.shape[1])

    @cached_property
    def fingerprint(self) -> str:
        segmentation = f"jieba {segmenter_version()}"
        return settings_fingerprint(
            self.settings, {"vectors": self._sha256, "limit": str(LIMIT), "segmentation": segmentation}
        )

    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """See Encoder.encode. A row is 0 where no word of the text has a vector, and never depends on other texts."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        prompt = self.settings.query_prompt if kind == "query" else self.settings.document_prompt
        for start in range(0, len(texts), _BATCH_TEXTS):
            batch = texts[start : start + _BATCH_TEXTS]
            truncated = tokens = unknown = without_vector = 0
            for row, text in enumerate(batch, start):
                found = segment(prompt + text)
                words = found[: self.settings.max_length or None]
                known = [place for word in words if (place := self._lookup(word)) is not None]
                truncated += len(words) < len(found)
                tokens += len(words)
                unknown += len(words) - len(known)
                without_vector += not known
                if known:
                    vectors[row] = self._mean(known)
            self.counts += EncoderCounts(truncated, tokens, unknown, without_vector)
            if on_batch is not None:
                on_batch(len(batch))
        return vectors

    def _lookup(self, word: str) -> int | None:
        place = self._row_of.get(word)
        return place if place is not None else self._row_of.get(word.lower())

    def _mean(self, rows: list[int]) -> NDArray[np.float64]:
        total = np.zeros(self.dimension)  # float64: no sum of finite float32 overflows
        for start in range(0, len(rows), _PART_ROWS):  # in parts: a book has more words than fit in memory
            total += self._vectors[rows[start : start + _PART_ROWS]].sum(axis=0, dtype=np.float64)  # (k, d) -> (d,)
        return total / len(rows)


def _open_vectors(path: Path, sha256: str, note: Note) -> tuple[NDArray[np.float32], list[str]]:
    """The vectors, mapped into memory, and their words; out of the cache, which is filled first where it must be."""
    folder = cache_directory() / "word2vec" / f"{sha256}-{LIMIT}"
    if not _is_whole(folder):
        note(f"reading {path} (once; from then on it is opened from {folder})")
        words, vectors = _read(path)
        try:
            _keep(folder, words, vectors)
        except OSError as error:
            raise EncoderError(
                f"the vectors of {path} cannot be kept in {folder.parent}: {error.strerror or error}. "
                f"Make room there, or set RETR_CACHE to a folder that can be written"
            ) from error
    mapped: NDArray[np.float32] = np.asarray(np.load(folder / VECTORS, mmap_mode="r"))
    return mapped, json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))


def _keep(folder: Path, words: list[str], vectors: NDArray[np.float32]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        np.save(building / VECTORS, vectors)
        (building / VOCABULARY).write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
        write_hashes(building)
        sync_tree(building)
        try:
            replace_folder(building, folder)
        except OSError:  # another process was faster: its folder is as good, if it is whole
            if not _is_whole(folder):
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)  # or a damaged folder that had the name before


def _is_whole(folder: Path) -> bool:
    return all((folder / name).exists() for name in (VECTORS, VOCABULARY)) and damaged_file(folder) is None


def _read(path: Path) -> tuple[list[str], NDArray[np.float32]]:
    """The first LIMIT words of a file and their vectors. gensim reads them; what it lets pass is checked before."""
    with _readable(path), _open(path) as file:
        count, dimension = _read_header(file, path)
        is_text = _is_text(file.read(max(_CHUNK, 32 * dimension)), dimension)
    try:
        from gensim.models import KeyedVectors
    except ImportError as error:
        raise EncoderError(f"word vectors need gensim to read {path}, but: {error}. {_INSTALL}") from error
    with _readable(path), _open(path) as file:
        file.readline()
        found = (_text_words if is_text else _binary_words)(file, count, dimension, path)
    _check_encoding(found, dimension, path)
    repeated = len({word.lstrip(b"\n").decode("utf-8", "replace") for word in found}) < len(found)
    with tempfile.TemporaryDirectory() as scratch:
        # gensim goes by the file's name, and this module by its content: this name says what the content is.
        source = Path(scratch) / f"vectors{'.txt' if is_text else '.bin'}"
        if count > LIMIT and repeated and not is_text:
            # After a repeated word gensim 4.4 takes rows beyond the limit, and then says "unexpected end of input".
            with _readable(path):
                _copy_rows(path, source, found, dimension)
        else:
            source = source.with_suffix(f"{source.suffix}.gz") if _is_gzip(path) else source
            source.symlink_to(path.resolve())
        try:
            with np.errstate(over="ignore"):  # 1e60 becomes infinity, which is refused below
                loaded: Any = KeyedVectors.load_word2vec_format(
                    str(source), binary=not is_text, limit=LIMIT, unicode_errors="replace"
                )
        except (ValueError, EOFError) as error:
            raise _bad_value(path, error) from error
    words = list(loaded.key_to_index)  # fewer than the rows where a word is repeated: its first vector counts
    vectors = loaded.vectors[: len(words)]
    _check_finite(words, vectors, path)
    return words, vectors


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Failures of the file system and of gzip as an EncoderError."""
    try:
        yield
    except FileNotFoundError:
        raise EncoderError(f"no file {str(path)!r}: expected word vectors in word2vec's format") from None
    except IsADirectoryError:
        raise EncoderError(f"{path} is a folder: expected a file of word vectors in word2vec's format") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise EncoderError(f"{path} cannot be read ({reason}): see whether you may, or download it again") from error


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_GZIP)) == _GZIP


def _open(path: Path) -> io.BufferedIOBase:
    return gzip.open(path) if _is_gzip(path) else path.open("rb")


def _read_header(file: io.BufferedIOBase, path: Path) -> tuple[int, int]:
    line = file.readline(_LONGEST_HEADER)
    if not line:
        raise EncoderError(f"{path} is empty: expected word vectors in word2vec's format. Download or copy it again")
    if line.startswith(_LFS):
        raise EncoderError(f"{path} is a pointer of git-lfs, not the vectors that it stands for: run git lfs pull")
    match = _HEADER.fullmatch(line)
    if match is None and _CONTROL.search(line):
        raise EncoderError(
            f"{path} is a binary file of another format, it begins with {line[:16]!r}: expected word2vec's, "
            f"which gensim writes with save_word2vec_format"
        )
    count, dimension = (int(match[1]), int(match[2])) if match else (0, 0)
    if count == 0 or not 1 <= dimension <= _MOST_DIMENSIONS:
        shown = line.decode("utf-8", errors="replace").strip()
        raise EncoderError(
            f"the first line of {path} is {shown if len(shown) <= 60 else shown[:60] + '...'!r}: expected "
            f"'count dimension', such as '{LIMIT} 300'. Put that line before the rows if it is missing"
        )
    return count, dimension


def _is_text(sample: bytes, dimension: int) -> bool:
    """Whether what follows the first line is text; a text with an error in it is still text."""
    row = sample.partition(b"\n")[0].rstrip().split(b" ")
    with contextlib.suppress(ValueError):
        if len([float(value) for value in row[1:]]) == dimension:
            return True
    with contextlib.suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(sample)  # incremental: the sample may end within a character
        return _CONTROL.search(sample) is None
    return False


def _text_words(file: io.BufferedIOBase, count: int, dimension: int, path: Path) -> list[bytes]:
    """The words of the first LIMIT rows. gensim would take a row of one value for a row of d equal ones."""
    words: list[bytes] = []
    for number in range(2, min(count, LIMIT) + 2):
        if not (line := file.readline()):
            raise _ends_early(path, len(words), count)
        row = line.rstrip()
        if (values := row.count(b" ")) != dimension:
            raise EncoderError(
                f"{path}, line {number}: {values} values after the word, expected the {dimension} of the first line, "
                f"each after one space. Correct that line or the first"
            )
        words.append(row[: row.find(b" ")])
    if count <= LIMIT:
        _check_end(file.read(_CHUNK), count, dimension, path)
    return words


def _binary_words(file: io.BufferedIOBase, count: int, dimension: int, path: Path) -> list[bytes]:
    """The words of the first LIMIT rows, with the newlines before them."""
    words: list[bytes] = []
    size = 4 * dimension
    buffer, at = b"", 0
    while len(words) < min(count, LIMIT):
        space = buffer.find(b" ", at)
        if 0 <= space < len(buffer) - size:
            words.append(buffer[at:space])
            at = space + 1 + size
        elif more := file.read(max(_CHUNK, size)):
            buffer, at = buffer[at:] + more, 0
        else:
            raise _ends_early(path, len(words), count)
    if count <= LIMIT:
        _check_end(buffer[at:] + file.read(_CHUNK), count, dimension, path)
    return words


def _copy_rows(path: Path, target: Path, words: list[bytes], dimension: int) -> None:
    """A binary file of the first rows alone."""
    left = sum(map(len, words)) + len(words) * (1 + 4 * dimension)
    with _open(path) as file, target.open("wb") as copy:
        file.readline()
        copy.write(f"{len(words)} {dimension}\n".encode())
        while left and (part := file.read(min(_CHUNK, left))):
            copy.write(part)
            left -= len(part)


def _ends_early(path: Path, rows: int, count: int) -> EncoderError:
    return EncoderError(
        f"{path} ends after {rows:,} rows, expected the {count:,} of its first line: "
        f"download or copy it again, or correct the first line"
    )


def _check_end(rest: bytes, count: int, dimension: int, path: Path) -> None:
    if rest.strip():
        raise EncoderError(
            f"{path} goes on after the {count:,} rows of {dimension} values that its first line promises: "
            f"correct that line, or download the file again"
        )


def _check_encoding(words: list[bytes], dimension: int, path: Path) -> None:
    """word2vec.c cuts long words within a character, so a few that are not UTF-8 are as they should be."""
    bad = [row for row, word in enumerate(words, start=1) if not _is_utf8(word)]
    if len(bad) > len(words) * _MOST_BAD_WORDS:
        raise EncoderError(
            f"{path}: {len(bad):,} of {len(words):,} words are not UTF-8, the first in row {bad[0]:,}: expected UTF-8, "
            f"and rows of {dimension} values. Convert the words, or correct the first line"
        )


def _is_utf8(word: bytes) -> bool:
    try:
        word.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _bad_value(path: Path, error: Exception) -> EncoderError:
    """gensim says what is not a number, and this where it is."""
    with _open(path) as file:
        file.readline()
        for number, line in enumerate(file, start=2):
            for value in line.rstrip().split(b" ")[1:]:
                try:
                    float(value)
                except ValueError:
                    shown = value.decode("utf-8", errors="replace")
                    return EncoderError(f"{path}, line {number}: expected a number, not {shown!r}: correct that line")
    return EncoderError(f"gensim cannot read {path}: {error}")


def _check_finite(words: list[str], vectors: NDArray[np.float32], path: Path) -> None:
    for start in range(0, len(words), _PART_ROWS):
        finite = np.isfinite(vectors[start : start + _PART_ROWS]).all(axis=1)
        if not finite.all():
            raise EncoderError(
                f"{path}: the vector of {words[start + int(finite.argmin())]!r} holds NaN or infinity: expected finite "
                f"float32 values. Train or download the vectors again"
            )
