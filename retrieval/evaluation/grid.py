"""What a sweep tries: poolings, and transforms with dimensions, from what the user wrote or from good defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from retrieval.encoders.pooling import check_pooling
from retrieval.errors import UsageError
from retrieval.transforms.spec import AUTO, FLOW, NONE, AutoSpec, FlowSpec, TransformSpec, parse_transform

Spec = TransformSpec | FlowSpec | None
USUAL_POOLINGS = ("last-avg", "last2-avg", "first-last-avg", "cls", "layers-0")
"""The article's four and the embedding layer: all from one pass over a transformer."""
_DIMENSIONS = (256, 128, 64)
_KINDS = ("whiten", "soft", "rotate")
_LEAST_SOFT = 128
ALL = "all"


@dataclass(frozen=True)
class Transforms:
    """Transforms as they were asked for; what stands open, the encoder's dimension decides.

    Parameters
    ----------
    names : `none`, `flow`, full specs as `whiten-256` or `whiten-all`, and kinds without a number, which take each of
        `dimensions`. Empty: none, whiten, soft and rotate.
    dimensions : numbers or `all`; empty: all, 256, 128 and 64.
    """

    names: tuple[str, ...] = ()
    dimensions: tuple[int | str, ...] = ()

    @property
    def need_fit(self) -> bool:
        """Whether anything but `none` is among them."""
        return set(self.names) != {NONE}

    def specs(self, dimension: int) -> dict[str, Spec]:
        """By name, in the order in which they were asked for; those of `all` keep d dimensions: see `keeps_all`.

        Parameters
        ----------
        dimension : d of the encoder.
        """
        wanted: dict[str, Spec] = {}
        for name in self.names or (NONE, *_KINDS):
            kind, m, parts = _parts(name)
            if kind is None:
                spec = _parse(name)
                wanted[str(spec) if spec else NONE] = spec
                continue
            for kept in (m,) if m else self.dimensions or self._usual(kind, dimension):
                spec = _parse(f"{kind}-{dimension if kept == ALL else kept}{parts}")
                _, _, numbers = str(spec).partition(":")
                wanted[f"{kind}-{kept}" + (f":{numbers}" if numbers else "")] = spec
        return wanted

    def _usual(self, kind: str, dimension: int) -> Iterator[int | str]:
        """All dimensions only where that changes more than the axes; soft not where it was never best."""
        if kind == "whiten":
            yield ALL
        least = _LEAST_SOFT if kind == "soft" and not self.names else 1
        cuts = [m for m in _DIMENSIONS if least <= m < dimension]
        yield from cuts or [max(1, dimension // 2)]


def keeps_all(name: str) -> bool:
    """Whether a transform keeps as many dimensions as the vectors turn out to have.

    The layer norm at the end of a model leaves one direction empty but for rounding. Whitening would make that as long
    as any other, and the figure would change with the processor.
    """
    return name.partition(":")[0].endswith(f"-{ALL}")


def _parts(name: str) -> tuple[str | None, str, str]:
    """`whiten-all:eps=0` -> whiten, all, :eps=0; whiten -> whiten and two empty texts; None for all others."""
    head, colon, numbers = name.partition(":")
    kind = head.removesuffix(f"-{ALL}")
    return (kind, ALL if head != kind else "", colon + numbers) if kind in _KINDS else (None, "", "")


def parse_transforms(transforms: str | None, dimensions: str | None) -> Transforms:
    """`none,whiten,soft-128:beta=1,gamma=.8` and `256,128` -> Transforms.

    Raises
    ------
    UsageError
        A transform or a number that cannot be read, or numbers that no transform takes.
    """
    names: list[str] = []
    for piece in (transforms or "").split(",") if transforms is not None else ():
        if "=" in piece and ":" not in piece and names:  # a further part of the spec before
            names[-1] += f",{piece.strip()}"
        else:
            names.append(piece.strip())
    kept: list[int | str] = []
    for piece in dimensions.split(",") if dimensions is not None else ():
        number = piece.strip()
        if number != ALL and (not re.fullmatch(r"[0-9]+", number) or int(number) == 0):
            raise UsageError(f"dimensions {dimensions!r}: expected {ALL} or numbers from 1, as in {ALL},256,128")
        kept.append(ALL if number == ALL else int(number))
    for name in names:
        if name == AUTO:
            raise UsageError(f"transform {AUTO} sees a corpus; a sweep tries them all: name some, or leave it out")
        kind, _, parts = _parts(name)
        _parse(f"{kind}-1{parts}" if kind else name)
    if kept and names and not any(name.partition(":")[0] in _KINDS for name in names):
        raise UsageError(
            f"dimensions {dimensions!r} are for transforms without a number of their own: {', '.join(_KINDS)}"
        )
    return Transforms(tuple(dict.fromkeys(names)), tuple(dict.fromkeys(kept)))


def _parse(name: str) -> Spec:
    spec = parse_transform(name)
    if isinstance(spec, AutoSpec):
        raise UsageError(f"transform {name!r} chooses one dimension; a sweep tries several: give {spec.kind}, --dims")
    return spec


def parse_poolings(poolings: str) -> tuple[str, ...]:
    """`cls,layers-0,12` -> `cls` and `layers-0,12`. Raises UsageError for one that is unknown."""
    found: list[str] = []
    for piece in poolings.split(","):
        if piece.strip().isdigit() and found and found[-1].startswith("layers-"):
            found[-1] += f",{piece.strip()}"
        else:
            found.append(piece.strip())
    return tuple(dict.fromkeys(check_pooling(pooling) for pooling in found))


def is_flow(spec: Spec) -> bool:
    """Whether it takes minutes to fit."""
    return str(spec) == FLOW
