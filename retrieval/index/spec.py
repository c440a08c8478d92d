"""A readable spec -> a FAISS index."""

from __future__ import annotations

from retrieval.errors import UsageError

INDEX_SPECS = ("auto", "flat")


def resolve_spec(spec: str) -> str:
    """The kind of index that is built: `auto` is exact search.

    Raises
    ------
    UsageError
        There is no such kind.
    """
    if spec not in INDEX_SPECS:
        raise UsageError(f"unknown index {spec!r}: expected one of {', '.join(INDEX_SPECS)}")
    return "flat" if spec == "auto" else spec


def factory_string(spec: str) -> str:
    """What faiss.index_factory calls it."""
    return {"flat": "Flat"}[spec]
