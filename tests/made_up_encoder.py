"""An encoder that needs no model: a text's vector is the sum of its characters' random ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import EncoderCounts, EncoderSettings, Family, TextKind

UNKNOWN = "？"
"""A text that begins with it has no vector."""


class MadeUpEncoder:
    """Deterministic, quick, and counting what it is asked."""

    family: Family = "tuned"
    backend, precision = "torch", "float32"

    def __init__(self, dimension: int = 16) -> None:
        self.dimension = dimension
        self.settings = EncoderSettings("made-up", "average", "", "", 512)
        self.fingerprint = hashlib.sha256(f"made up {dimension}".encode()).hexdigest()
        self.counts = EncoderCounts()
        self.texts: list[str] = []
        self._characters: dict[str, NDArray[np.float32]] = {}

    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            if not text.startswith(UNKNOWN):
                vectors[row] = np.sum([self._character(character) for character in text], axis=0) + 0.3
        self.texts += texts if kind == "document" else []
        unknown = int((~vectors.any(axis=1)).sum())
        self.counts += EncoderCounts(tokens=sum(map(len, texts)), without_vector=unknown)
        if on_batch is not None:
            on_batch(len(texts))
        return vectors

    def _character(self, character: str) -> NDArray[np.float32]:
        if character not in self._characters:
            random = np.random.default_rng(ord(character))
            self._characters[character] = random.normal(size=self.dimension).astype(np.float32)
        return self._characters[character]
