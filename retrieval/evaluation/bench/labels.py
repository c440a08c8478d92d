"""What labels say of a cut, with exact search, and of an index's answers to judged queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import UsageError
from retrieval.evaluation.correlation import is_binary, spearman
from retrieval.evaluation.datasets import DATASETS, load_dataset
from retrieval.evaluation.pairs import Pairs, read_pairs
from retrieval.evaluation.ranking import measure_queries
from retrieval.evaluation.scoring import EncodedTexts
from retrieval.evaluation.task_sets import known_item_task
from retrieval.index.documents import Documents
from retrieval.index.vectors import VectorIndex
from retrieval.search import Index
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform
from retrieval.types import Progress, Qrels, Run

_BLOCK_ROWS, _BLOCK_QUERIES = 8192, 1024


def names_of(k: int) -> list[str]:
    """Measures of a ranking."""
    return [f"recall@{k}", f"MRR@{k}", f"nDCG@{k}"]


def load_pairs(source: str, folder: Path | None) -> Pairs:
    """A set by name, the split that is usually measured, or a file of pairs.

    Raises
    ------
    UsageError
        There is no such set or file.
    """
    if (name := source.lower()) in DATASETS:
        return load_dataset(name, DATASETS[name].measured, folder)
    if not Path(source).expanduser().is_file():
        raise UsageError(f"--pairs {source!r} is no file and no set: expected one of {', '.join(DATASETS)}, or a file")
    return read_pairs(source)


class PairLabels:
    """Labelled pairs as an index's encoder sees them: Spearman, and where labels are 0 and 1 known items.

    A known item is found where the sentences of a positive pair are asked for each other, among all of the set's
    (`tasks.known_item_task`). Nothing is fitted on them: the transform is the documents'.
    """

    def __init__(self, pairs: Pairs, index: Index, k: int, progress: Progress) -> None:
        self.pairs, self._index, self._k, self._progress = pairs, index, k, progress
        binary = is_binary(pairs.labels) and bool((pairs.labels == 1).any())
        self._task = known_item_task(pairs) if binary else None

    def measure(self, transform: Transform | None) -> dict[str, Any]:
        """`spearman`, and `names_of(k)` of the known items; None where a value does not exist."""
        cosines = self._encoded.cosines(self.pairs.first, self.pairs.second, transform)
        found: dict[str, Any] = {"spearman": spearman(cosines, self.pairs.labels)}
        if self._task is not None:
            names = names_of(self._k)
            means = measure_queries(self._task.qrels, self._run(transform), names).mean(axis=0)
            found |= dict(zip(names, map(float, means), strict=True))
        return found

    @cached_property
    def _encoded(self) -> EncodedTexts:
        return EncodedTexts(self._index.encoder, self.pairs.texts, self._progress)

    def _run(self, transform: Transform | None) -> Run:
        assert self._task is not None  # asked for only then
        documents, asked = self._task.documents, self._task.queries
        names, texts = list(documents), list(documents.values())
        index: VectorIndex | None = None
        for start in range(0, len(texts), _BLOCK_ROWS):
            vectors = unit_vectors(self._encoded.of(texts[start : start + _BLOCK_ROWS]), transform)
            index = index or VectorIndex(vectors.shape[1], numbered=True)
            index.add(vectors)
        assert index is not None  # a task has documents
        run: Run = {}
        for start in range(0, len(asked), _BLOCK_QUERIES):
            block = list(asked)[start : start + _BLOCK_QUERIES]
            queries = unit_vectors(self._encoded.of([asked[query] for query in block]), transform)
            scores, rows = index.search(queries, self._k + 1)
            for place, query in enumerate(block):
                hits = zip((names[row] for row in rows[place]), scores[place].tolist(), strict=True)
                kept = [(name, score) for name, score in hits if name != self._task.own.get(query)]
                run[query] = dict(kept[: self._k]) if queries[place].any() else {}
        return run


class Judgements:
    """Judgements of an index's documents for the queries measured.

    Parameters
    ----------
    queries : ids, in the order of the queries.
    documents, kept : the row of a hit is the place in `kept` of the document's own.

    Raises
    ------
    UsageError
        No query has a relevant document.
    """

    def __init__(
        self, qrels: Qrels, queries: Sequence[str], documents: Documents, kept: NDArray[np.int64], k: int
    ) -> None:
        self._qrels = {
            query: qrels[query] for query in queries if any(grade > 0 for grade in qrels.get(query, {}).values())
        }
        if not self._qrels:
            raise UsageError(
                f"--qrels judges no document relevant for any of the queries: the ids differ, for example "
                f"{next(iter(qrels), None)!r} there and {queries[0]!r} here"
            )
        self._queries, self._documents, self._kept, self._k = queries, documents, kept, k
        self._ids: dict[int, str] = {}

    def __len__(self) -> int:
        """How many queries are judged."""
        return len(self._qrels)

    def measure(self, scores: NDArray[np.float32], rows: NDArray[np.int64]) -> Mapping[str, float]:
        """`names_of(k)` of what was found, shape (q, k)."""
        new = [int(row) for row in np.unique(rows) if int(row) not in self._ids]
        documents = self._documents.take(self._kept[new].tolist())
        self._ids |= {row: str(found["id"]) for row, found in zip(new, documents, strict=True)}
        run = {
            query: dict(zip((self._ids[int(row)] for row in rows[place]), scores[place].tolist(), strict=True))
            for place, query in enumerate(self._queries)
            if query in self._qrels
        }
        means = measure_queries(self._qrels, run, names_of(self._k)).mean(axis=0)
        return dict(zip(names_of(self._k), map(float, means), strict=True))
