"""Text normalisation before encoding: `nfkc,t2s,lower`, in the order given."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import Encoder, EncoderCounts, EncoderSettings, Family, TextKind
from retrieval.errors import EncoderError, UsageError

Step = Callable[[str], str]


def parse_normalization(text: str) -> tuple[str, ...]:
    """The names of the steps in `nfkc,t2s,lower`, in the order given; none for an empty text.

    Raises
    ------
    UsageError
        A name is unknown.
    """
    if not text.strip():
        return ()
    steps = tuple(name.strip() for name in text.split(","))
    for name in steps:
        _check(name)
    return steps


class Normalizer:
    """A text -> the text that is encoded.

    Parameters
    ----------
    steps : names out of `nfkc` (Unicode's compatibility form: full-width letters become ASCII), `t2s` (traditional to
        simplified Chinese, character by character and phrase by phrase, with OpenCC) and `lower` (str.lower), applied
        in this order. `nfkc` and `lower` change nothing the second time; `t2s` does for a handful of rare characters.

    Raises
    ------
    UsageError
        An unknown step; when called, a text that is not Unicode.
    EncoderError
        `t2s` without OpenCC.
    """

    def __init__(self, steps: Sequence[str]) -> None:
        self.steps = tuple(steps)
        self._steps = [_STEPS[_check(name)]() for name in self.steps]

    def __call__(self, text: str) -> str:
        for step in self._steps:
            text = step(text)
        return text


class NormalizingEncoder:
    """An encoder that is given the texts normalised, as its settings say.

    Parameters
    ----------
    inner : its settings name the steps.
    """

    def __init__(self, inner: Encoder) -> None:
        self.inner = inner
        self._normalizer = Normalizer(parse_normalization(inner.settings.normalize))

    @property
    def settings(self) -> EncoderSettings:
        return self.inner.settings

    @property
    def dimension(self) -> int:
        return self.inner.dimension

    @property
    def family(self) -> Family:
        return self.inner.family

    @property
    def backend(self) -> str:
        return self.inner.backend

    @property
    def precision(self) -> str:
        return self.inner.precision

    @property
    def counts(self) -> EncoderCounts:
        return self.inner.counts

    @property
    def fingerprint(self) -> str:
        """The inner one's, which holds the steps; with `t2s`, OpenCC's version too: its dictionaries change."""
        if "t2s" not in self._normalizer.steps:
            return self.inner.fingerprint
        import importlib.metadata

        content = f"{self.inner.fingerprint} opencc {importlib.metadata.version('opencc')}"
        return hashlib.sha256(content.encode()).hexdigest()

    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """See Encoder.encode."""
        return self.inner.encode(self.normalized(texts), kind, on_batch)

    def normalized(self, texts: Sequence[str]) -> list[str]:
        """What the inner encoder is given."""
        return [self._normalizer(text) for text in texts]


def _nfkc() -> Step:
    return lambda text: unicodedata.normalize("NFKC", text)


def _t2s() -> Step:
    try:
        from opencc import OpenCC
    except ImportError:
        raise EncoderError(
            "the normalisation t2s needs the package opencc, which is not installed: pip install 'retr[t2s]'"
        ) from None
    converter = OpenCC("t2s")

    def convert(text: str) -> str:
        try:
            return str(converter.convert(text))
        except UnicodeEncodeError as error:
            raise UsageError(f"a text holds half a surrogate pair, which is not a character: {error}") from None

    return convert


def _lower() -> Step:
    return str.lower


_STEPS: dict[str, Callable[[], Step]] = {"nfkc": _nfkc, "t2s": _t2s, "lower": _lower}
STEPS = tuple(_STEPS)


def _check(name: str) -> str:
    if name not in _STEPS:
        raise UsageError(f"unknown normalisation {name!r}: expected one or more of {', '.join(STEPS)}")
    return name
