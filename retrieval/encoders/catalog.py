"""Names people use -> where the weights are, pooling, prompts, and the transform known best."""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.encoders.base import Family

DEFAULT_MODEL = "multilingual-e5-small"


@dataclass(frozen=True)
class CatalogEntry:
    """One model."""

    name: str
    source: str
    """A hub id, or `bundled`: weights out of an installed package."""
    family: Family
    pooling: str
    query_prompt: str = ""
    document_prompt: str = ""


_ENTRIES = (
    # "query: " on both sides is what the authors give for symmetric tasks: question against question.
    CatalogEntry("multilingual-e5-small", "bundled", "tuned", "last-avg", "query: ", "query: "),
    CatalogEntry(
        "intfloat/multilingual-e5-small", "intfloat/multilingual-e5-small", "tuned", "last-avg", "query: ", "query: "
    ),
    CatalogEntry(
        "intfloat/multilingual-e5-base", "intfloat/multilingual-e5-base", "tuned", "last-avg", "query: ", "query: "
    ),
    CatalogEntry(
        "intfloat/multilingual-e5-large", "intfloat/multilingual-e5-large", "tuned", "last-avg", "query: ", "query: "
    ),
    CatalogEntry("bert-base-chinese", "google-bert/bert-base-chinese", "raw", "first-last-avg"),
    CatalogEntry("chinese-roberta-wwm-ext", "hfl/chinese-roberta-wwm-ext", "raw", "first-last-avg"),
)
_BY_NAME = {name: entry for entry in _ENTRIES for name in (entry.name, entry.source)}

SUITED_TRANSFORM: dict[Family, str] = {"raw": "whiten", "tuned": "rotate"}
"""Whitening lifts raw encoders and lowers tuned ones, which keep their quality when only rotated and cut:
Su, kexue.fm/archives/9079."""


def names() -> list[str]:
    """The names of the catalog, the default first."""
    return [entry.name for entry in _ENTRIES]


def lookup(model: str) -> CatalogEntry | None:
    """The entry of a name or hub id, or None."""
    return _BY_NAME.get(model) if model != "bundled" else None
