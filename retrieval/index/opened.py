"""An index folder that is open: documents and vectors of one state of it, whatever becomes of the folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import IndexFolderError
from retrieval.index import folder as layout
from retrieval.index.documents import Documents
from retrieval.index.embeddings import Embeddings
from retrieval.index.rescored import RescoredIndex, transformed
from retrieval.index.spec import Setting, is_rescored
from retrieval.index.vectors import VectorIndex
from retrieval.index.withheld import Withheld
from retrieval.transforms.apply import load_transform


@dataclass(frozen=True)
class Opened:
    """The parts of an index that a search reads.

    Parameters
    ----------
    allowed : bool, shape (rows,): the rows that may be hits; None where all may.
    """

    manifest: layout.Manifest
    documents: Documents
    vectors: VectorIndex
    allowed: NDArray[np.bool_] | None

    @classmethod
    def open(cls, folder: Path, mmap: bool = True) -> Opened:
        """Open the parts of one state: another may take the folder's name between two of them.

        Raises
        ------
        IndexFolderError
            There is no index, or it is damaged.
        """
        manifest = layout.read_manifest(folder)
        while True:
            try:
                opened, damage = cls._of(folder, manifest, mmap), None
            except (IndexFolderError, OSError) as error:
                opened, damage = None, error
            before, manifest = manifest, layout.read_manifest(folder)
            if manifest.created == before.created:
                if opened is None:
                    raise damage or IndexFolderError(f"'{folder}' cannot be opened")
                return opened

    @classmethod
    def _of(cls, folder: Path, manifest: layout.Manifest, mmap: bool) -> Opened:
        layout.check_files(folder, manifest)
        documents = Documents(*(folder / part / layout.DOCUMENTS for part in manifest.parts))
        vectors = VectorIndex.load(folder / layout.VECTORS, mmap)
        expected = manifest.rows, manifest.index.get("vectors")
        if (len(documents), len(vectors)) != expected:
            raise IndexFolderError(
                f"'{folder}' is damaged: it has {len(documents):,} documents and {len(vectors):,} vectors, expected "
                f"{expected[0]} and {expected[1]}; build it again"
            )
        if is_rescored(manifest.index["spec"]):
            vectors = _rescored(vectors, folder, manifest, mmap)
        return cls(manifest, documents, vectors, Withheld.of(folder, manifest).allowed())


def _rescored(vectors: VectorIndex, folder: Path, manifest: layout.Manifest, mmap: bool) -> RescoredIndex:
    """With the folder's own embeddings, and the transform that they went through."""
    embeddings = Embeddings([folder / part / layout.EMBEDDINGS for part in manifest.parts])
    if len(embeddings) != manifest.rows:
        raise IndexFolderError(
            f"'{folder}' is damaged: it has {len(embeddings):,} embeddings, expected {manifest.rows:,}; build it again"
        )
    embeddings.hold(mmap)
    transform = load_transform(folder / layout.TRANSFORM) if layout.TRANSFORM in manifest.files else None
    rescored = RescoredIndex(vectors, transformed(embeddings.take, transform))
    rescored.setting = Setting(k_factor=manifest.index.get("setting", {}).get("k_factor"))
    return rescored
