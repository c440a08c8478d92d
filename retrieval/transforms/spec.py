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
DEFAULT_OVERLAP = 0.8
"""Of the neighbours in all dimensions, what `whiten-auto` and its kin keep. On the sentences of LCQMC dev and
multilingual-e5-small: rotate-auto keeps 188 of 384 dimensions, where their Spearman is at its highest (68.8; all
68.2), soft-auto 211 (66.3; all 63.8), whiten-auto 277 (63.0; all 60.5). Labels would keep fewer of the last two."""
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
        return _text(self, str(self.m), {**_KINDS[self.kind], "eps": DEFAULT_EPS})


@dataclass(frozen=True)
class AutoSpec:
    """A general whitening whose m `choice.choose_m` finds: the smallest that keeps `overlap` of the neighbours."""

    kind: str
    beta: float
    gamma: float
    eps: float = DEFAULT_EPS
    overlap: float = DEFAULT_OVERLAP

    def __str__(self) -> str:
        return _text(self, AUTO, {**_KINDS[self.kind], "eps": DEFAULT_EPS, "overlap": DEFAULT_OVERLAP})

    def at(self, m: int) -> TransformSpec:
        """The whitening that keeps m dimensions."""
        return TransformSpec(self.kind, m, self.beta, self.gamma, self.eps)


@dataclass(frozen=True)
class FlowSpec:
    """A flow to be fitted; it keeps all dimensions."""

    def __str__(self) -> str:
        return FLOW


Spec = TransformSpec | AutoSpec | FlowSpec


def _text(spec: TransformSpec | AutoSpec, m: str, usual: dict[str, float]) -> str:
    own = {name: float(getattr(spec, name)) for name in usual}
    parts = [f"{name}={repr(value).removesuffix('.0')}" for name, value in own.items() if value != usual[name]]
    return f"{spec.kind}-{m}" + (f":{','.join(parts)}" if parts else "")


def parse_transform(text: str) -> Spec | None:
    """`whiten-M`, `rotate-M`, `soft-M` (M a number or `auto`) or `flow` -> the spec; `none` -> None.

    `whiten-384:beta=1,gamma=0.8,eps=0` says some or all of the numbers that the kind stands for, and
    `whiten-auto:overlap=0.9` the share of the neighbours to keep.

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
    match = re.fullmatch(rf"([a-z]+)-(\d+|{AUTO})", name)
    if match is None or match[1] not in _KINDS or (match[2] != AUTO and int(match[2]) == 0):
        kinds = ", ".join(f"{kind}-M" for kind in _KINDS)
        raise UsageError(
            f"unknown transform {text!r}: expected {AUTO}, {NONE}, {kinds}, {FLOW}, for example whiten-256, "
            f"whiten-auto or whiten-256:beta=1,gamma=0.8,eps=0"
        )
    ranges = {**_RANGES, "overlap": 1.0} if match[2] == AUTO else _RANGES
    numbers: dict[str, float] = {}
    for part in parts.split(",") if colon else []:
        key, value = _number(part.strip(), text, ranges)
        if key in numbers:
            raise UsageError(f"transform {text!r} says {key} twice: give it once")
        numbers[key] = value
    numbers = {**_KINDS[match[1]], **numbers}
    return AutoSpec(match[1], **numbers) if match[2] == AUTO else TransformSpec(match[1], int(match[2]), **numbers)


def _number(part: str, text: str, ranges: dict[str, float]) -> tuple[str, float]:
    name, _, digits = part.partition("=")
    if name not in ranges:
        raise UsageError(f"unknown part {part!r} of transform {text!r}: expected {', '.join(f'{n}=X' for n in ranges)}")
    try:
        value = float(digits)
    except ValueError:
        value = math.nan
    if not 0 <= value <= ranges[name]:
        raise UsageError(f"part {part!r} of transform {text!r}: expected {name} from 0 to {ranges[name]:g}")
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
