"""Where the vectors that are measured come from: an index folder's embeddings, or .npy files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.corpus.files import find_files
from retrieval.errors import CorpusError, IndexFolderError, UsageError
from retrieval.evaluation.task_files import read_documents
from retrieval.index import folder as layout
from retrieval.index.building import Chunks
from retrieval.index.documents import Documents
from retrieval.index.rescored import Raw
from retrieval.pipeline.standing import Standing
from retrieval.search import Index
from retrieval.types import NoProgress, Progress

CHUNK_ROWS = 8192


@dataclass(frozen=True)
class Source:
    """Raw vectors, in row order, and the queries that come with them."""

    name: str
    """What it is, in words."""
    dimension: int
    rows: int
    chunks: Chunks
    """Raw float32 vectors, shape (n, d), a chunk at a time; rows of zeros are texts without a vector."""
    take: Raw
    """The same by their rows, which rise, without a pass over the others."""
    queries: NDArray[np.float32] | None = None
    """Raw, shape (q, d); None: some of the rows are to be held out."""
    query_ids: tuple[str, ...] = ()
    """Of the queries, where they are texts."""
    neighbors: NDArray[np.int64] | None = None
    """What the source itself says are the nearest rows of each query, shape (q, any)."""
    notes: tuple[str, ...] = ()
    index: Index | None = None
    """The index that the rows are the documents of."""
    documents: Documents | None = None
    """By row, where there is an index."""
    deleted: NDArray[np.bool_] | None = None
    """Rows that are no documents any more, shape (rows,); None for none."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """What a reader of the results wants to know of it."""


def index_source(
    path: Path,
    queries: Path | None = None,
    *,
    device: str = "auto",
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Source:
    """The stored embeddings of an index, and a file of queries that its encoder encodes now.

    Parameters
    ----------
    queries : a file that `retr index` reads, or a text file with a query a line. One that is a document is left out.

    Raises
    ------
    IndexFolderError
        There is no index, it is damaged, or it keeps no embeddings.
    UsageError
        No query is left.
    """
    progress = progress or NoProgress()
    standing = Standing.open(path)
    manifest = standing.manifest
    if not all((path / part / layout.EMBEDDINGS).is_dir() for part in manifest.parts):
        raise IndexFolderError(
            f"'{path}' keeps no embeddings to cut and index anew: build it again with: retr index CORPUS -o {path}"
        )
    stored = standing.embeddings()
    index = Index.open(path, device=device, trust_remote_code=trust_remote_code, progress=progress)
    dimension, notes = int(manifest.encoder["dimension"]), list[str]()
    embeddings, ids = None, tuple[str, ...]()
    if queries is not None:
        asked = _read_queries(queries)
        known = _that_are_documents(set(asked.values()), standing.documents)
        kept = {name: text for name, text in asked.items() if text not in known}
        if left_out := len(asked) - len(kept):
            notes.append(f"{left_out:,} queries are documents of the index, and left out: queries are held out")
        if not kept:
            raise UsageError(f"all {len(asked):,} queries of '{queries}' are documents of '{path}': name others")
        with progress.stage("encoding", "queries", len(kept)) as advance:
            embeddings = index.encoder.encode(list(kept.values()), kind="query", on_batch=advance)
        ids = tuple(kept)
    facts = {"encoder": manifest.encoder["source"], "pooling": manifest.encoder["pooling"]}
    return Source(
        f"the embeddings of '{path.name}'",
        dimension,
        len(stored),
        stored.chunks,
        stored.take,
        embeddings,
        ids,
        notes=tuple(notes),
        index=index,
        documents=standing.documents,
        deleted=standing.withheld.deleted,
        facts=facts,
    )


def npy_source(base: Path, queries: Path | None = None) -> Source:
    """Vectors of the user's own, and theirs of queries.

    Raises
    ------
    CorpusError
        A file is no .npy of numbers, shape (n, d).
    UsageError
        The queries have another dimension.
    """
    vectors = _load_npy(base)
    asked = None
    if queries is not None:
        asked = as_float32(_load_npy(queries)[:])
        if asked.shape[1] != vectors.shape[1]:
            raise UsageError(
                f"query vectors '{queries}' have {asked.shape[1]} dimensions, and those of '{base}' "
                f"{vectors.shape[1]}: expected the same"
            )
    return Source(f"the vectors of '{base.name}'", vectors.shape[1], len(vectors), *by_rows(vectors), asked)


def by_rows(vectors: NDArray[np.generic]) -> tuple[Chunks, Raw]:
    """Anything that is sliced like an array, shape (n, d), as float32 chunks, and some rows of it, which rise."""

    def chunks() -> Iterator[NDArray[np.float32]]:
        for start in range(0, len(vectors), CHUNK_ROWS):
            yield as_float32(vectors[start : start + CHUNK_ROWS])

    return chunks, lambda rows: as_float32(vectors[rows])


def as_float32(vectors: NDArray[np.generic]) -> NDArray[np.float32]:
    """Numbers as float32; what is too large for it becomes infinity, and is refused where vectors are read."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(vectors, dtype=np.float32)


def _load_npy(path: Path) -> NDArray[np.generic]:
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise CorpusError(f"'{path}' cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError):
        raise CorpusError(f"'{path}' is no whole .npy of numbers: write one with numpy.save") from None
    if not isinstance(vectors, np.ndarray):  # an .npz
        raise CorpusError(f"'{path}' holds several arrays: expected a .npy with one, shape (n, d)")
    return check_vectors(vectors, str(path))


def check_vectors(vectors: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    """Refuse what is not at least one vector of numbers."""
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or 0 in vectors.shape:
        raise CorpusError(f"'{name}' holds {vectors.dtype} of shape {vectors.shape}, expected numbers of shape (n, d)")
    return vectors


def _read_queries(path: Path) -> dict[str, str]:
    """query_id -> text."""
    find_files([str(path)])  # a missing file, said before anything is loaded
    asked = read_documents(path)
    if not asked:
        raise UsageError(f"queries '{path}' hold no text: expected one query a line, or a file that retr index reads")
    return asked


def _that_are_documents(texts: set[str], documents: Documents) -> set[str]:
    found: set[str] = set()
    for _, piece in documents.texts(0, len(documents)):
        found |= texts.intersection(piece)
    return found
