"""What every encoder is: texts in, float32 (n, d) out, and a fingerprint that says which encoder it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

TextKind = Literal["document", "query"]
Family = Literal["raw", "tuned"]
"""`raw`: a language model never trained on sentence similarity; `tuned`: trained on it."""


@dataclass(frozen=True)
class EncoderSettings:
    """All that is needed to load an encoder again; stored in an index's manifest."""

    source: str
    """A name of the catalog, a folder or a hub id."""
    pooling: str
    query_prompt: str
    document_prompt: str
    max_length: int
    """Tokens, special tokens included; what is beyond is cut off."""
    normalize: str = ""
    """Steps that change a text before it is encoded, apart by commas: nfkc, t2s, lower."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class EncoderCounts:
    """What an encoder met in the texts it was given."""

    truncated: int = 0
    """Texts cut off at max_length."""
    tokens: int = 0
    unknown: int = 0
    """Tokens that the vocabulary does not hold ([UNK], or words without a vector)."""
    without_vector: int = 0
    """Texts of which nothing is known: their vector is 0."""

    def __add__(self, other: EncoderCounts) -> EncoderCounts:
        return EncoderCounts(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: EncoderCounts) -> EncoderCounts:
        return EncoderCounts(*(one - less for one, less in zip(astuple(self), astuple(other), strict=True)))


class Encoder(Protocol):
    """Texts to vectors."""

    @property
    def settings(self) -> EncoderSettings: ...

    @property
    def dimension(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """sha256 over weights, tokenizer, pooling, prompts and length: equal fingerprints, equal vectors."""
        ...

    @property
    def family(self) -> Family: ...

    @property
    def backend(self) -> str:
        """What computes the vectors: torch, openvino, onnx (ONNX Runtime), or a package of the model's own."""
        ...

    @property
    def precision(self) -> str:
        """float32, bf16 or int8."""
        ...

    @property
    def counts(self) -> EncoderCounts:
        """What was met since this encoder was loaded."""
        ...

    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Raw embeddings, not of unit length, in the order of the texts.

        Parameters
        ----------
        kind : which of the two prompts is put before each text.
        on_batch : called after each batch with its number of texts.

        Returns
        -------
        float32, shape (n, d); (0, d) for no text. A row does not depend on the other texts, but for
        rounding: of unit vectors 1e-5 in float32, 1e-3 in bf16, 2e-3 in int8.
        """
        ...


def settings_fingerprint(settings: EncoderSettings, file_hashes: dict[str, str]) -> str:
    """One sha256 over the settings that shape a vector and over the model's files; where the files lie is left out."""
    shaping = {name: value for name, value in settings.to_json().items() if name != "source"}
    if not settings.normalize:
        del shaping["normalize"]
    content = json.dumps({"settings": shaping, "files": file_hashes}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8")).hexdigest()
