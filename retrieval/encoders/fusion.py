"""Several encoders as one: their unit vectors side by side, each times its weight: `a+0.3*b`, `a+0.3*center(b)`.

The inner product of two such vectors is the sum of weight^2 x cosine over the parts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import Encoder, EncoderCounts, EncoderSettings, Family, TextKind
from retrieval.errors import DimensionError, EncoderError, UsageError

FORM = "MODEL+MODEL, each with an optional weight > 0 and centring, such as a+0.3*b or a+0.3*center(b)"
POOLING = "fusion"
MEAN_TEXTS = 10_000
BATCH_TEXTS = 1024
"""Texts that all the parts encode before the next ones; the parts have smaller batches of their own."""

_NOISE = 1e-5  # what other texts in the batch may change: a vector this close to its mean has no direction of its own
_WEIGHTS = (1e-15, 1e15)  # so that products of two stay within float32
_PART = re.compile(r"(?:(?P<weight>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*\*\s*)?(?P<rest>[^*]+)")
_CENTRED = re.compile(r"center\((?P<model>[^()]+)\)")


class FusionTerm(NamedTuple):
    """One part of a fusion's text."""

    weight: float
    model: str
    """A name of the catalog, a folder or a hub id."""
    centred: bool = False


def parse_fusion(text: str) -> list[FusionTerm] | None:
    """The parts of `a+0.3*center(b)`; None where the text is one model: without a plus sign, or an existing folder.

    A folder with a plus sign in its name can stand alone, but cannot be a part.

    Raises
    ------
    UsageError
        A part is empty, or its weight is not a decimal number > 0.
    """
    if "+" not in text or _is_folder(text):
        return None
    return [_parse_term(part.strip(), text) for part in text.split("+")]


def fusion_text(terms: Sequence[FusionTerm]) -> str:
    """The text that parse_fusion reads as these parts."""
    return "+".join(
        ("" if weight == 1 else f"{np.format_float_positional(weight, trim='-')}*")
        + (f"center({model})" if centred else model)
        for weight, model, centred in terms
    )


@dataclass(frozen=True, eq=False)
class FusionPart:
    """An encoder in a fusion.

    Parameters
    ----------
    weight : > 0; from 1e-15 to 1e15.
    centred : whether a mean is taken off; without `mean`, FusionEncoder.fit_means finds it.
    mean : float32, shape (d,); the mean of the encoder's raw vectors.

    Raises
    ------
    UsageError
        The weight is not one, or there is a mean and no centring.
    DimensionError
        The mean is not of the encoder's dimension.
    """

    encoder: Encoder
    weight: float = 1.0
    centred: bool = False
    mean: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        if not _is_weight(self.weight):
            raise UsageError(f"weight {self.weight!r} of {self.source}: expected one > 0, from 1e-15 to 1e15")
        if self.mean is None:
            return
        if not self.centred:
            raise UsageError(f"{self.source} has a mean and is not centred: give centred=True, or no mean")
        if self.mean.shape != (self.encoder.dimension,):
            raise DimensionError(
                f"the mean of {self.source} has shape {self.mean.shape}, expected ({self.encoder.dimension},)"
            )

    @property
    def source(self) -> str:
        return self.encoder.settings.source


class FusionEncoder:
    """The vectors of several encoders side by side: weight x unit(vector - mean) each.

    A part that knows nothing of a text (its vector is 0) is 0 there, centred or not.

    Parameters
    ----------
    parts : one or more, in the order in which their vectors stand.

    Raises
    ------
    UsageError
        No part.
    """

    def __init__(self, parts: Sequence[FusionPart]) -> None:
        if not parts:
            raise UsageError("a fusion needs at least one part, got none")
        self.parts = tuple(parts)
        self.counts = EncoderCounts()

    @property
    def settings(self) -> EncoderSettings:
        """The fusion's text as the source; the parts keep their own poolings and prompts, and `save` writes them.

        max_length is the parts' smallest.
        """
        terms = [FusionTerm(float(part.weight), part.source, part.centred) for part in self.parts]
        lengths = [length for part in self.parts if (length := part.encoder.settings.max_length)]
        return EncoderSettings(fusion_text(terms), POOLING, "", "", min(lengths, default=0))

    @property
    def dimension(self) -> int:
        return sum(part.encoder.dimension for part in self.parts)

    @property
    def family(self) -> Family:
        """`tuned` if any part is."""
        return "tuned" if any(part.encoder.family == "tuned" for part in self.parts) else "raw"

    @property
    def backend(self) -> str:
        """The parts', in their order."""
        return "+".join(part.encoder.backend for part in self.parts)

    @property
    def precision(self) -> str:
        return "+".join(part.encoder.precision for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """Over the parts' fingerprints, weights and means. Raises EncoderError before the means are there."""
        content = [
            [
                part.encoder.fingerprint,
                float(part.weight),
                None if (mean := self._mean(part)) is None else hashlib.sha256(mean.tobytes()).hexdigest(),
            ]
            for part in self.parts
        ]
        return hashlib.sha256(json.dumps({"fusion": content}).encode()).hexdigest()

    def fit_means(self, texts: Sequence[str], on_batch: Callable[[int], None] | None = None) -> None:
        """Find the mean of each centred part anew; it is part of the state, so this comes before `encode`.

        A part's mean is that of its raw vectors over at most MEAN_TEXTS texts, spread evenly over those given.
        Vectors of 0 do not count: they are not centred either.

        Parameters
        ----------
        texts : one or more, of the corpus; they are not in `counts`.
        on_batch : called after each batch of each centred part with its number of texts.

        Raises
        ------
        UsageError
            No text, and a part to be centred.
        """
        if not any(part.centred for part in self.parts):
            return
        if not texts:
            raise UsageError("the mean of a centred part needs texts, got none")
        size = min(len(texts), MEAN_TEXTS)
        sample = [texts[i * len(texts) // size] for i in range(size)]
        self.parts = tuple(
            replace(part, mean=_mean_vector(part.encoder, sample, on_batch)) if part.centred else part
            for part in self.parts
        )

    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """See Encoder.encode. Each part puts its own prompt before a text.

        `counts` then holds the sums of the parts' tokens and unknown ones. A text cut off by two parts is one text:
        of each batch it holds the largest number that a part cut off. Texts without a vector are those of which no
        part knows anything.

        Raises
        ------
        EncoderError
            A centred part has no mean.
        """
        means = [self._mean(part) for part in self.parts]
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for start in range(0, len(texts), BATCH_TEXTS):
            batch = texts[start : start + BATCH_TEXTS]
            target = vectors[start : start + len(batch)]
            met: list[EncoderCounts] = []
            column = 0
            for part, mean in zip(self.parts, means, strict=True):
                before = part.encoder.counts
                raw = part.encoder.encode(batch, kind)
                met.append(part.encoder.counts - before)
                target[:, column : column + raw.shape[1]] = part.weight * _unit(raw, mean)
                column += raw.shape[1]
            self.counts += EncoderCounts(
                truncated=max(counts.truncated for counts in met),
                tokens=sum(counts.tokens for counts in met),
                unknown=sum(counts.unknown for counts in met),
                without_vector=int((~target.any(axis=1)).sum()),
            )
            if on_batch is not None:
                on_batch(len(batch))
        return vectors

    def save(self, path: Path) -> None:
        """Write a safetensors file: the means, and in its metadata the parts' settings, fingerprints and weights."""
        from safetensors.numpy import save

        means: dict[str, NDArray[np.float32]] = {}
        parts: list[dict[str, Any]] = []
        for i, part in enumerate(self.parts):
            if (mean := self._mean(part)) is not None:
                means[_mean_name(i)] = mean
            parts.append(
                {
                    "settings": part.encoder.settings.to_json(),
                    "fingerprint": part.encoder.fingerprint,
                    "weight": float(part.weight),
                    "centred": part.centred,
                }
            )
        path.write_bytes(save(means, metadata={"fusion": json.dumps(parts, ensure_ascii=False)}))

    @classmethod
    def load(cls, path: Path, load_part: Callable[[EncoderSettings], Encoder]) -> FusionEncoder:
        """Read what `save` wrote.

        Parameters
        ----------
        load_part : settings -> the encoder; called once a part.

        Raises
        ------
        EncoderError
            The file is not that, or a part is another encoder than it was.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                records = [
                    (
                        EncoderSettings(**record["settings"]),
                        str(record["fingerprint"]),
                        float(record["weight"]),
                        file.get_tensor(_mean_name(i)) if record["centred"] else None,
                    )
                    for i, record in enumerate(json.loads(file.metadata()["fusion"]))
                ]
            if not records:
                raise ValueError("it has no parts")
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise EncoderError(f"{path} is not a saved fusion: {type(error).__name__}: {error}") from None
        parts = []
        for settings, fingerprint, weight, mean in records:
            encoder = load_part(settings)
            if encoder.fingerprint != fingerprint:
                raise EncoderError(
                    f"{settings.source} is another encoder than the fusion in {path} was saved with (fingerprint "
                    f"{fingerprint[:12]}, now {encoder.fingerprint[:12]}): its files, pooling, prompts or length differ"
                )
            parts.append(FusionPart(encoder, weight, mean is not None, mean))
        return cls(parts)

    def adopt_means(self, path: Path) -> None:
        """Take the means that `save` wrote where they differ from the fitted ones by rounding alone."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                names = set(file.keys())
                saved = [
                    file.get_tensor(name) if (name := _mean_name(i)) in names else None for i in range(len(self.parts))
                ]
        except (SafetensorError, OSError):
            return
        adopted = []
        for part, mean in zip(self.parts, saved, strict=True):
            if part.mean is not None and mean is not None and mean.shape == part.mean.shape:
                close = np.linalg.norm(mean - part.mean) <= _NOISE * np.linalg.norm(part.mean)
                part = replace(part, mean=mean) if close else part
            adopted.append(part)
        self.parts = tuple(adopted)

    def _mean(self, part: FusionPart) -> NDArray[np.float32] | None:
        if part.centred and part.mean is None:
            raise EncoderError(f"{part.source} is to be centred and has no mean yet: call fit_means with the corpus")
        return part.mean


def _unit(vectors: NDArray[np.float32], mean: NDArray[np.float32] | None) -> NDArray[np.float64]:
    """Rows less the mean, of unit length; 0 where the row is 0 or no more than noise is left of it."""
    rows = vectors.astype(np.float64)  # squares of float32 may overflow
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)  # (n, 1)
    rest = rows if mean is None else rows - mean
    left = np.linalg.norm(rest, axis=1, keepdims=True)
    known = (lengths > 0) & (left > _NOISE * lengths)
    unit = np.zeros_like(rest)
    np.divide(rest, left, out=unit, where=known)
    return unit


def _mean_vector(encoder: Encoder, texts: Sequence[str], on_batch: Callable[[int], None] | None) -> NDArray[np.float32]:
    total = np.zeros(encoder.dimension, dtype=np.float64)
    known = 0
    for start in range(0, len(texts), BATCH_TEXTS):
        vectors = encoder.encode(texts[start : start + BATCH_TEXTS], "document", on_batch)
        total += vectors.sum(axis=0, dtype=np.float64)
        known += int(vectors.any(axis=1).sum())
    return (total / max(1, known)).astype(np.float32)


def _parse_term(part: str, text: str) -> FusionTerm:
    if (match := _PART.fullmatch(part)) is not None:
        weight = float(match["weight"] or 1)
        model = match["rest"].strip()
        if centred := _CENTRED.fullmatch(model):
            model = centred["model"].strip()
        if model and _is_weight(weight) and not model.startswith("center("):
            return FusionTerm(weight, model, centred is not None)
    raise UsageError(f"{part!r} in {text!r} is no part of a fusion, and {text!r} is no folder: expected {FORM}")


def _is_weight(weight: float) -> bool:
    least, most = _WEIGHTS
    return least <= weight <= most


def _is_folder(text: str) -> bool:
    try:
        return Path(text).expanduser().is_dir()
    except (OSError, RuntimeError):  # longer than a name may be; no such user
        return False


def _mean_name(part: int) -> str:
    return f"mean.{part}"
