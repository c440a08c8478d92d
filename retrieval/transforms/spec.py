"""What the user writes (`whiten-256`) -> which transform is fitted."""

from __future__ import annotations

import re
from dataclasses import dataclass

from retrieval.errors import UsageError

AUTO, NONE, FLOW = "auto", "none", "flow"
_KINDS = {"whiten": (1.0, 1.0), "rotate": (0.0, 0.0), "soft": (1.0, 0.5)}
AUTO_DIMENSIONS = 256
AUTO_ROWS_A_DIMENSION = 4
"""`auto` fits no transform on fewer rows a kept dimension: directions that the rows do not show would be lost."""


@dataclass(frozen=True)
class TransformSpec:
    """A general whitening to be fitted: kind, m, beta and gamma."""

    kind: str
    m: int
    beta: float
    gamma: float

    def __str__(self) -> str:
        return f"{self.kind}-{self.m}"


@dataclass(frozen=True)
class FlowSpec:
    """A flow to be fitted; it keeps all dimensions."""

    def __str__(self) -> str:
        return FLOW


def parse_transform(text: str) -> TransformSpec | FlowSpec | None:
    """`whiten-M`, `rotate-M`, `soft-M` or `flow` -> the spec; `none` -> None.

    Raises
    ------
    UsageError
        Anything else; `auto` is for `auto_transform`, which sees the corpus.
    """
    if text == NONE:
        return None
    if text == FLOW:
        return FlowSpec()
    match = re.fullmatch(r"([a-z]+)-(\d+)", text)
    if match is None or match[1] not in _KINDS or int(match[2]) == 0:
        kinds = ", ".join(f"{kind}-M" for kind in _KINDS)
        raise UsageError(
            f"unknown transform {text!r}: expected {AUTO}, {NONE}, {kinds}, {FLOW}, for example whiten-256"
        )
    return TransformSpec(match[1], int(match[2]), *_KINDS[match[1]])


def auto_transform(kind: str, rows: int, dimension: int) -> tuple[str, str]:
    """The transform for a corpus, as text, and the reason in words.

    Parameters
    ----------
    kind : `whiten` or `rotate`: what suits the encoder's family.
    rows : distinct texts.
    dimension : d of the embeddings.
    """
    needed = AUTO_ROWS_A_DIMENSION * AUTO_DIMENSIONS
    if dimension <= AUTO_DIMENSIONS and kind == "rotate":
        return NONE, f"{dimension} dimensions need no cut"
    # Su et al. 2021 find whitening best near a third of the dimensions.
    m = min(AUTO_DIMENSIONS, dimension if kind == "rotate" else max(1, dimension // 3))
    if rows < needed:
        return NONE, f"{kind}-{m} wants {needed:,} distinct texts, the corpus has {rows:,}"
    return (
        f"{kind}-{m}",
        f"what suits {'an encoder never' if kind == 'whiten' else 'an encoder'} trained on sentence similarity",
    )
