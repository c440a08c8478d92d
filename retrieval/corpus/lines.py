"""Bytes -> lines of text, with the place of the first byte that is not text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import IO

from retrieval.errors import CorpusError, UsageError

# White space, control characters, and format characters that show nothing (U+200B, U+FEFF and their like).
_VISIBLE = re.compile(
    "[^\\s\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]"
)


def is_blank(text: str | None) -> bool:
    """Whether a text shows nothing: null, empty, or only white space, control and invisible format characters."""
    return text is None or _VISIBLE.search(text) is None


_CHUNK = 1 << 20


def check_encoding(encoding: str) -> str:
    """The encoding itself; UsageError where Python knows none of that name."""
    try:
        if not codecs.lookup(encoding)._is_text_encoding:
            raise LookupError
    except LookupError:
        raise UsageError(f"unknown encoding {encoding!r}: expected a name such as utf-8, gb18030 or big5") from None
    return encoding


def decoded_lines(stream: IO[bytes], name: str, encoding: str = "utf-8", option: str = "--encoding") -> Iterator[str]:
    r"""Lines with their `\n`, split there only: U+2028 and the like stay inside a line. A leading BOM is dropped.

    Parameters
    ----------
    option : what the user can give another encoding with; empty where nothing can.

    Raises
    ------
    CorpusError
        Bytes that are not of this encoding, named by file, line and byte.
    """
    decoder = codecs.getincrementaldecoder(check_encoding(encoding))()
    rest, line, consumed = "", 1, 0
    at_end = False
    while not at_end:
        chunk = stream.read(_CHUNK)
        at_end = not chunk
        consumed += len(chunk)
        try:
            text = decoder.decode(chunk, final=at_end)
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode(encoding, errors="replace")
            raise _not_text(name, line + before.count("\n"), consumed - len(error.object), error, option) from None
        if rest == "" and line == 1:
            text = text.removeprefix("\ufeff")
        parts = (rest + text).split("\n")
        rest = parts.pop()
        line += len(parts)
        for part in parts:
            yield part + "\n"
    if rest:
        yield rest


def _not_text(name: str, line: int, offset: int, error: UnicodeDecodeError, option: str) -> CorpusError:
    wrong = error.object[error.start : error.end].hex(" ")
    looks_utf16 = offset == 0 and error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    other = "utf-16" if looks_utf16 else "gb18030" if "utf" in error.encoding.replace("-", "").lower() else "utf-8"
    return CorpusError(
        f"{name} line {line}: byte {offset + error.start:,} (0x{wrong}) is not {error.encoding}: "
        + (f"if it has another encoding, give it, for example {option} {other}" if option else "expected UTF-8")
    )
