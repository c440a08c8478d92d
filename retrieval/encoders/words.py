"""A Chinese text -> its words, for the encoders whose vocabulary is words."""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

from retrieval.errors import EncoderError
from retrieval.storage import cache_directory


def segment(text: str) -> list[str]:
    """The words of a text, as jieba.lcut finds them, without those that are white space.

    Raises
    ------
    EncoderError
        jieba is not installed.
    """
    return [word for word in _segmenter()[0](text) if not word.isspace()]


def segmenter_version() -> str:
    """jieba's version, which is part of what shapes a vector. Raises EncoderError where jieba is not installed."""
    return _segmenter()[1]


@functools.cache
def _segmenter() -> tuple[Callable[[str], list[str]], str]:
    """jieba's lcut with its own dictionary, and jieba's version.

    A tokenizer of our own: words that other code adds to jieba's global one would change vectors under the same
    fingerprint, and so could /tmp/jieba.cache, the dictionary that jieba takes whoever or whichever version wrote it.
    """
    with warnings.catch_warnings():
        # jieba 0.42.1 (2020) has "\." in plain strings, which Python reports when it compiles them, and imports
        # pkg_resources where setuptools is installed, which reports its own end.
        warnings.filterwarnings("ignore", message=".*invalid escape sequence")
        warnings.filterwarnings("ignore", message=".*pkg_resources")
        try:
            import jieba
        except ImportError as error:
            raise EncoderError(
                f"jieba is needed to find words, but: {error}. pip install jieba, or 'retr[word2vec]' or 'retr[elmo]'"
            ) from error
    tokenizer: Any = jieba.Tokenizer()
    folder = cache_directory() / "jieba" / str(jieba.__version__)
    with contextlib.suppress(OSError):  # without it jieba reads its dictionary as text, a second slower
        folder.mkdir(parents=True, exist_ok=True)
    tokenizer.tmp_dir = str(folder)
    level = jieba.default_logger.level
    jieba.setLogLevel(logging.CRITICAL + 1)  # it prints its progress to stderr
    try:
        tokenizer.initialize()
    finally:
        jieba.setLogLevel(level)
    return tokenizer.lcut, str(jieba.__version__)
