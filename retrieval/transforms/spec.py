"""What the user writes (`whiten-256`) -> which transform is fitted."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from retrieval.errors import UsageError
from retrieval.transforms.whitening import DEFAULT_EPS

AUTO, NONE, FLOW = "auto", "none", "flow"
_KINDS = {
    "whiten": {"beta": 1.0, "gamma": 1.0},
    "rotate": {"beta": 0.0, "gamma": 0.0},
    "soft": {"beta": 1.0, "gamma": 0.5},
}
_RANGES = {"beta": 1.0, "gamma": 1.0, "eps": 0.1}
"""From 0 to this: between no centring and scaling, and all of it; a floor of more would cut what is kept."""
AUTO_DIMENSIONS = 256
AUTO_ROWS_A_DIMENSION = 4
"""`auto` fits no transform on fewer rows a kept dimension: directions that the rows do not show would be lost."""


@dataclass(frozen=True)
class TransformSpec:
    """A general whitening to be fitted: kind, m, beta, gamma, and eps, its relative floor of eigenvalues.

    As text it is the shortest that is parsed to the same.
    """

    kind: str
    m: int
    beta: float
    gamma: float
    eps: float = DEFAULT_EPS

    def __str__(self) -> str:
        usual = {**_KINDS[self.kind], "eps": DEFAULT_EPS}
        own = {name: float(getattr(self, name)) for name in usual}
        parts = [f"{name}={repr(value).removesuffix('.0')}" for name, value in own.items() if value != usual[name]]
        return f"{self.kind}-{self.m}" + (f":{','.join(parts)}" if parts else "")


@dataclass(frozen=True)
class FlowSpec:
    """A flow to be fitted; it keeps all dimensions."""

    def __str__(self) -> str:
        return FLOW


def parse_transform(text: str) -> TransformSpec | FlowSpec | None:
    """`whiten-M`, `rotate-M`, `soft-M` or `flow` -> the spec; `none` -> None.

    `whiten-384:beta=1,gamma=0.8,eps=0` says some or all of the numbers that the kind stands for.

    Raises
    ------
    UsageError
        Anything else, the wrong part is named; `auto` is for `auto_transform`, which sees the corpus.
    """
    if text == NONE:
        return None
    if text == FLOW:
        return FlowSpec()
    name, colon, parts = text.partition(":")
    match = re.fullmatch(r"([a-z]+)-(\d+)", name)
    if match is None or match[1] not in _KINDS or int(match[2]) == 0:
        kinds = ", ".join(f"{kind}-M" for kind in _KINDS)
        raise UsageError(
            f"unknown transform {text!r}: expected {AUTO}, {NONE}, {kinds}, {FLOW}, for example whiten-256 or "
            f"whiten-256:beta=1,gamma=0.8,eps=0"
        )
    numbers: dict[str, float] = {}
    for part in parts.split(",") if colon else []:
        key, value = _number(part.strip(), text)
        if key in numbers:
            raise UsageError(f"transform {text!r} says {key} twice: give it once")
        numbers[key] = value
    return TransformSpec(match[1], int(match[2]), **{**_KINDS[match[1]], **numbers})


def _number(part: str, text: str) -> tuple[str, float]:
    name, _, digits = part.partition("=")
    if name not in _RANGES:
        raise UsageError(
            f"unknown part {part!r} of transform {text!r}: expected {', '.join(f'{n}=X' for n in _RANGES)}"
        )
    try:
        value = float(digits)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _RANGES[name]:
        raise UsageError(f"part {part!r} of transform {text!r}: expected {name} from 0 to {_RANGES[name]:g}")
    return name, value


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
