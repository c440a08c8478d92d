"""Kinds of index by name -> what FAISS's factory builds, from how many rows on, and how a search is set."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from retrieval.errors import UsageError

_POINTS_PER_CENTROID = 39  # what FAISS's k-means wants at least, or it warns
_NIBBLE = 16  # centroids of a 4-bit code
TRAINING_POINTS_PER_LIST = 64  # k-means gains nothing that recall shows from more


@dataclass(frozen=True)
class Kind:
    """A kind of index.

    `factory` is FAISS's factory string with `{lists}` inverted lists and `{codes}` 4-bit codes a vector. Where it says
    Refine, a few times k candidates are scored again with the vectors themselves, kept in float16.
    """

    factory: str
    least_rows: int
    """Fewer cannot train it."""
    mapped: bool
    """Whether FAISS can open it memory-mapped instead of reading it."""
    what: str


_LEAST_CODED = _POINTS_PER_CENTROID * _NIBBLE
_LEAST_LISTED = 1000

KINDS = {
    "flat": Kind("Flat", 1, True, "exact"),
    "flat-fp16": Kind("SQfp16", 1, True, "exact but for float16's rounding, half the bytes"),
    "flat-sq8": Kind("SQ8", 100, True, "every vector compared, 8 bits a dimension"),
    "pqfs": Kind("PQ{codes}x4fs,Refine(SQfp16)", _LEAST_CODED, True, "4-bit codes compared, the best refined"),
    "ivf": Kind("IVF{lists},Flat", _LEAST_LISTED, False, "inverted lists of whole vectors"),
    "ivf-sq8": Kind("IVF{lists},SQ8,Refine(SQfp16)", _LEAST_LISTED, False, "inverted lists of 8 bits, refined"),
    "ivf-pqfs": Kind(
        "IVF{lists},PQ{codes}x4fs,Refine(SQfp16)", _LEAST_LISTED, False, "inverted lists of 4-bit codes, refined"
    ),
    "hnsw": Kind("HNSW32,Flat", 1, True, "a graph over whole vectors"),
    "hnsw-sq8": Kind("HNSW32,SQ8", 100, True, "a graph over 8 bits a dimension"),
    "rabitq": Kind("IVF{lists},RaBitQ,Refine(SQfp16)", _LEAST_LISTED, False, "inverted lists of 1-bit codes, refined"),
}
AUTO = "auto"
INDEX_SPECS = (AUTO, *KINDS)


@dataclass(frozen=True)
class Setting:
    """How hard a search looks; None where the kind has no such knob."""

    nprobe: int | None = None
    """Inverted lists that are searched."""
    k_factor: float | None = None
    """Candidates a hit wanted, scored again with the vectors themselves."""
    ef_search: int | None = None
    """Nodes of a graph that are kept in view."""
    exact: bool = False
    """Compare every vector that is stored."""

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value}

    def __str__(self) -> str:
        parts = [f"{name.replace('_', '-')} {value:g}" for name, value in self.to_json().items() if name != "exact"]
        return "exact" if self.exact or not parts else ", ".join(parts)


EXACT = Setting(exact=True)


def resolve_spec(spec: str) -> str:
    """The kind that is meant, checked by name; a FAISS factory string is checked by `vectors.check_factory`.

    Raises
    ------
    UsageError
        It is blank, or numbers its rows itself.
    """
    if not spec.strip():
        raise UsageError(f"the index {spec!r} is blank: expected one of {', '.join(INDEX_SPECS)}, or a FAISS string")
    if "IDMap" in spec:
        raise UsageError(f"the index {spec!r} numbers its rows, and retr does that: leave IDMap out")
    return "flat" if spec == AUTO else spec


def factory_string(spec: str, dimension: int, rows: int = 0) -> str:
    """What faiss.index_factory calls it; a factory string is itself.

    Parameters
    ----------
    spec : one of KINDS, or a factory string
    dimension : m
    rows : how many vectors it will hold, about; sets the number of inverted lists.
    """
    if spec not in KINDS:
        return spec
    return KINDS[spec].factory.format(lists=list_count(rows), codes=code_count(dimension))


def list_count(rows: int) -> int:
    """Inverted lists for so many rows: a power of two near 4 sqrt(rows), with enough rows each to train on."""
    most = max(1, rows // _POINTS_PER_CENTROID)
    return int(2 ** min(math.floor(math.log2(most)), round(math.log2(4 * math.sqrt(max(1, rows))))))


def code_count(dimension: int) -> int:
    """4-bit codes of a vector: two dimensions share one, or as few more as divide m."""
    for shared in (2, 3, 4):
        if dimension % shared == 0:
            return dimension // shared
    return dimension


def sample_rows(spec: str, dimension: int, rows: int) -> int:
    """How many of the rows a kind is trained on."""
    lists = list_count(rows) if spec not in KINDS or "{lists}" in KINDS[spec].factory else 0
    return min(rows, max(65_536, TRAINING_POINTS_PER_LIST * lists))
