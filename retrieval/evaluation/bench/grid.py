"""What is combined: transforms x dimensions, and kinds of index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.errors import UsageError
from retrieval.index.spec import AUTO, KINDS, check_spec
from retrieval.index.vectors import check_factory
from retrieval.transforms.base import Transform
from retrieval.transforms.moments import Moments
from retrieval.transforms.spec import TransformSpec, parse_transform
from retrieval.transforms.whitening import Whitening

CUT = "cut"
TRANSFORMS = (CUT, "rotate", "soft", "whiten")
DIMENSIONS = (256, 128, 64)


@dataclass(frozen=True)
class Cut:
    """A transform to m dimensions; `cut` keeps the first m of the raw vectors as they are."""

    transform: str
    m: int

    def __str__(self) -> str:
        return f"{self.transform}-{self.m}"

    def exact(self, dimension: int) -> bool:
        """Whether it is fitted on products in float64 alone."""
        return self.transform != CUT and self.m == dimension

    def fit(self, moments: Moments) -> Transform:
        """All d dimensions are those of eps=0, with the one that a layer norm leaves to rounding.

        Raises
        ------
        TransformError
            The vectors do not carry m dimensions.
        """
        if self.transform == CUT:
            d = moments.dimension
            zeros, ones = np.zeros(d, np.float32), np.ones(self.m, np.float32)
            return Whitening(zeros, np.eye(d, self.m, dtype=np.float32), ones, gamma=0.0)
        spec = parse_transform(f"{self}:eps=0" if self.m == moments.dimension else str(self))
        assert isinstance(spec, TransformSpec)  # the names are checked
        return Whitening.fit(moments, spec.m, beta=spec.beta, gamma=spec.gamma, eps=spec.eps)[0]


def parse_cuts(transforms: str, dims: str | None, dimension: int) -> list[Cut]:
    """`whiten,rotate` and `256,128` -> their combinations, transform by transform.

    Parameters
    ----------
    dims : None for d and those of DIMENSIONS below it.
    dimension : d

    Raises
    ------
    UsageError
        An unknown transform, or a dimension that is no number from 1 to d.
    """
    names = parse_names(transforms, TRANSFORMS, "transform")
    if dims is None:
        wanted = [dimension, *(m for m in DIMENSIONS if m < dimension)]
    else:
        wanted = []
        for part in _parts(dims, "--dims"):
            m = int(part) if part.isascii() and part.isdigit() else 0
            if not 1 <= m <= dimension:
                raise UsageError(f"--dims {part}: expected a number from 1 to {dimension}, which the vectors have")
            wanted.append(m)
    return [Cut(name, m) for name in names for m in dict.fromkeys(wanted)]


def parse_kinds(texts: Sequence[str]) -> list[str]:
    """Kinds of index, each once.

    Parameters
    ----------
    texts : names apart by commas, such as `flat,hnsw`, or a FAISS factory string, whose commas are its own.

    Raises
    ------
    UsageError
        One is neither.
    """
    kinds = []
    for text in texts:
        names = _parts(text, "--index")
        unknown = [name for name in names if name not in KINDS]
        if not unknown:
            kinds += names
            continue
        try:
            if AUTO in names:
                raise UsageError("it is not one kind")
            check_spec(text)
            check_factory(text)
        except UsageError:
            name = text if len(unknown) == len(names) else unknown[0]
            raise UsageError(
                f"unknown index {name!r}: expected some of {', '.join(KINDS)}, apart by commas, or one FAISS factory "
                f"string, each with an --index of its own"
            ) from None
        kinds.append(text)
    return list(dict.fromkeys(kinds))


def parse_names(text: str, known: Sequence[str], option: str) -> list[str]:
    """Names apart by commas, each once."""
    for name in _parts(text, f"--{option}"):
        if name not in known:
            raise UsageError(f"unknown {option} {name!r}: expected some of {', '.join(known)}, apart by commas")
    return list(dict.fromkeys(_parts(text, f"--{option}")))


def parse_recalls(text: str) -> list[float]:
    """`0.9,0.95` -> recalls that a search is set to reach, rising."""
    recalls = []
    for part in _parts(text, "--recall"):
        try:
            recalls.append(float(part))
        except ValueError:
            recalls.append(0.0)
        if not 0 < recalls[-1] <= 1:
            raise UsageError(f"--recall {part}: expected numbers above 0, at most 1, apart by commas")
    return sorted(set(recalls))


def _parts(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UsageError(f"{option} {text!r} has an empty part: expected names or numbers apart by commas")
    return parts
