"""Kinds of index by name -> what FAISS's factory builds, from how many rows on, and how a search is set."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from retrieval.errors import UsageError

SEED = 0
_POINTS_PER_CENTROID = 64  # FAISS's k-means wants 39, or it warns
_NIBBLE = 16  # centroids of a 4-bit code
_BLOCK = 32  # vectors of a list that FastScan stores together, at the end with up to 31 empty places
_FLAT_ROWS = 20_000
"""Up to here exact search takes less than a millisecond at 256 dimensions, and there is nothing to win."""
_LISTED_ROWS, _LISTED_RECALL = 80_000, 0.95
"""With fewer rows so many inverted lists have to be searched for a higher recall that they save nothing."""
_EXACT_RECALL = 0.999
"""Above it only exact search is safe."""


@dataclass(frozen=True)
class Kind:
    """A kind of index.

    `factory` is FAISS's factory string with `{lists}` inverted lists and `{codes}` 4-bit codes (of balanced axes, see
    balance.py). Where it says Refine, a few times k candidates are scored again with the vectors themselves in float16,
    rotated first: the large common part of raw sentence vectors would else lie in one dimension, whose rounding (2e-4)
    exchanges neighbours.
    """

    factory: str
    least_rows: int
    """Fewer cannot train it."""
    what: str
    twice: bool = False
    """Every vector is in two inverted lists (spilled.py)."""
    rescored: bool = False
    """Its file holds codes alone, and the embeddings of the index folder score the candidates (rescored.py)."""

    @property
    def coded(self) -> bool:
        """Whether it has 4-bit codes, of balanced axes."""
        return "{codes}" in self.factory


_LEAST_CODED = _POINTS_PER_CENTROID * _NIBBLE
_REFINED = "Refine(RR{dimension},SQfp16)"

KINDS = {
    "flat": Kind("Flat", 1, "exact"),
    "flat-fp16": Kind("RR{dimension},SQfp16", 1, "every vector compared, half the bytes"),
    "flat-sq8": Kind("SQ8", 100, "every vector compared, a quarter of the bytes"),
    "pqfs": Kind("PQ{codes}x4fs," + _REFINED, _LEAST_CODED, "all 4-bit codes compared, the best refined"),
    "ivf": Kind("IVF{lists},Flat", _LEAST_CODED, "inverted lists of whole vectors"),
    "ivf-sq8": Kind("IVF{lists},SQ8," + _REFINED, _LEAST_CODED, "inverted lists of 8 bits, refined"),
    "ivf-pqfs": Kind(
        "IVF{lists},PQ{codes}x4fsr," + _REFINED,
        _LEAST_CODED,
        "inverted lists of 4-bit codes, two for a vector, refined",
        twice=True,
    ),
    "ivf-pqfs-disk": Kind(
        "IVF{lists},PQ{codes}x4fsr",
        _LEAST_CODED,
        "inverted lists of 4-bit codes, refined by the embeddings on disk",
        rescored=True,
    ),
    "hnsw": Kind("HNSW32,Flat", 1, "a graph over whole vectors"),
    "hnsw-sq8": Kind("HNSW32,SQ8", 100, "a graph over 8 bits a dimension"),
    "rabitq": Kind("IVF{lists},RaBitQ," + _REFINED, _LEAST_CODED, "inverted lists of 1-bit codes, refined"),
}
AUTO = "auto"
INDEX_SPECS = (AUTO, *KINDS)
EXACT_KINDS = ("flat", "flat-fp16")


def is_rescored(spec: str) -> bool:
    """Whether candidates of that kind are scored with embeddings from outside of its file."""
    return spec in KINDS and KINDS[spec].rescored


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


@dataclass(frozen=True)
class Wanted:
    """What a search has to do, and within what."""

    recall: float = 0.99
    """Share of the 10 true neighbours, within (0, 1]."""
    most_bytes: int | None = None
    """Of the vectors' file, which a search has in memory or maps."""
    most_milliseconds: float | None = None
    """Of one query, alone."""

    def __post_init__(self) -> None:
        if not 0 < self.recall <= 1:
            raise UsageError(f"the recall is {self.recall:g}, expected more than 0 and at most 1")
        for name, bound in (("memory", self.most_bytes), ("latency", self.most_milliseconds)):
            if bound is not None and not bound > 0:
                raise UsageError(f"the most {name} is {bound:g}, expected more than 0")


def check_spec(spec: str) -> None:
    """Refuse a kind that numbers its rows itself, or is blank; `vectors.check_factory` checks a factory string.

    Raises
    ------
    UsageError
        With the choices.
    """
    if not spec.strip():
        raise UsageError(f"the index {spec!r} is blank: expected one of {', '.join(INDEX_SPECS)}, or a FAISS string")
    if "IDMap" in spec:
        raise UsageError(f"the index {spec!r} numbers its rows, and retr does that: leave IDMap out")


def choose_spec(spec: str, rows: int, dimension: int, wanted: Wanted, numbered: bool = False) -> tuple[str, str | None]:
    """The kind that is built, and why, where that is not what was asked for.

    Parameters
    ----------
    spec : `auto`, a kind, or a factory string, which is left alone
    rows : how many vectors there are
    dimension : m
    numbered : whether row numbers are stored beside the vectors, for rows of zeros

    Raises
    ------
    UsageError
        The kind does not fit into the memory, or none does; the smallest is named.
    """
    if spec not in INDEX_SPECS:
        return spec, None
    numbers = 8 * rows if numbered else 0
    sizes = {
        name: file_bytes(name, rows, dimension) + numbers for name, kind in KINDS.items() if kind.least_rows <= rows
    }
    fitting = {name for name, size in sizes.items() if wanted.most_bytes is None or size <= wanted.most_bytes}
    if not fitting or (spec in sizes and spec not in fitting):
        smallest = min(sizes, key=lambda name: sizes[name])
        raise UsageError(
            f"{rows:,} vectors of {dimension} dimensions do not fit into {readable(wanted.most_bytes or 0)}"
            + (f" as {spec} ({readable(sizes[spec])})" if spec in sizes else "")
            + f": the smallest kind, {smallest}, takes {readable(sizes[smallest])}; give more, or fewer dimensions"
        )
    shape = f"{rows:,} vectors of {dimension} dimensions"
    if spec != AUTO:
        if spec in sizes:
            return spec, None
        least = KINDS[spec].least_rows
        return "flat", f"index flat, not {spec}: it learns from at least {least:,} vectors, and there are {rows:,}"
    if rows <= _FLAT_ROWS or wanted.recall > _EXACT_RECALL:
        order: tuple[str, ...] = ("flat", "flat-fp16", "flat-sq8")
        reason = "few enough to compare all" if rows <= _FLAT_ROWS else f"recall {wanted.recall:g} wants exact search"
    else:
        listed = rows > _LISTED_ROWS or wanted.recall <= _LISTED_RECALL
        flat = ("flat-fp16", "flat-sq8")
        order = ("ivf-pqfs", "pqfs", "ivf-pqfs-disk", *flat) if listed else ("pqfs", "ivf-pqfs", *flat)
        reason = f"4-bit codes {'in inverted lists ' if listed else ''}are searched, and the best scored again"
    chosen = next((name for name in order if name in fitting), None) or min(fitting, key=lambda name: sizes[name])
    if chosen != order[0]:
        reason = f"{order[0]} would take {readable(sizes[order[0]])}"
        reason += "; the embeddings on disk score its candidates" if is_rescored(chosen) else ""
    return chosen, f"index {chosen}, {readable(sizes[chosen])}: {shape}, {reason}"


def file_bytes(kind: str, rows: int, dimension: int) -> int:
    """Bytes of the vectors' file, at most; a few hundred of its own words are not counted."""
    factory = KINDS[kind].factory
    lists = list_count(rows) if "{lists}" in factory else 0
    copies = 2 if KINDS[kind].twice else 1
    each = 8.0 * copies if lists else 0.0  # a position
    for part, size in (("Flat", 4), ("SQfp16", 2), ("SQ8", 1)):
        each += size * dimension if part in factory else 0
    each += dimension / 8 + 8 if "RaBitQ" in factory else 0
    each += 32 * 2 * 4 + 16 if "HNSW" in factory else 0
    once = 4 * dimension**2 if "RR" in factory else 0
    if KINDS[kind].coded:
        code_bytes = code_count(dimension) // 2
        each += code_bytes * copies
        once += 4 * (_NIBBLE + dimension) * dimension + lists * (_BLOCK - 1) * code_bytes
    return int(rows * each + (4 * dimension + 8) * lists + once)


def readable(size: float) -> str:
    """`1.5 GiB`, `620 MiB`."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:g} bytes"


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
    return KINDS[spec].factory.format(lists=list_count(rows), codes=code_count(dimension), dimension=dimension)


def list_count(rows: int) -> int:
    """Inverted lists for so many rows: a power of two near 3 sqrt(rows), with enough rows each to train on."""
    most = max(1, rows // _POINTS_PER_CENTROID)
    return int(2 ** min(math.floor(math.log2(most)), round(math.log2(3 * math.sqrt(max(1, rows))))))


def code_count(dimension: int) -> int:
    """4-bit codes of a vector, an even number: two axes share one, but for the first and maybe a few more."""
    return dimension // 4 * 2 + 2


def sample_rows(spec: str, rows: int) -> int:
    """How many of the rows a kind is trained on."""
    lists = list_count(rows) if spec not in KINDS or "{lists}" in KINDS[spec].factory else 0
    return min(rows, max(65_536, _POINTS_PER_CENTROID * lists))
