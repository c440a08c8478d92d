"""What the rooms of the package hand to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Hit:
    """A document that answers a query."""

    doc_id: str
    score: float
    """Cosine of the transformed vectors, -1 to 1; larger is nearer."""
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The columns kept with `keep`."""


Qrels = dict[str, dict[str, int]]
"""Judgements: query_id -> doc_id -> relevance. 0 is judged and not relevant; what is not there is unjudged."""
Run = dict[str, dict[str, float]]
"""What a system found: query_id -> doc_id -> score, larger being better."""

Advance = Callable[[int], None]


class Progress(Protocol):
    """Who is told how a long job goes."""

    def note(self, message: str) -> None:
        """One line that the user should read."""
        ...

    def stage(self, name: str, unit: str, total: int | None, done: int = 0) -> AbstractContextManager[Advance]:
        """A stage of `total` units, `done` of them already; call what it yields with the units just finished."""
        ...


class NoProgress:
    """Tells nobody."""

    def note(self, message: str) -> None:
        pass

    @contextmanager
    def stage(self, name: str, unit: str, total: int | None, done: int = 0) -> Iterator[Advance]:
        yield lambda units: None
