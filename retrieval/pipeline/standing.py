"""An index that stands, opened by whoever is about to change it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retrieval.index import folder as layout
from retrieval.index.documents import Documents
from retrieval.index.embeddings import Embeddings
from retrieval.index.withheld import Withheld
from retrieval.transforms.apply import load_transform
from retrieval.transforms.base import Transform

COMPACTION_SHARE = 0.25
"""Of the rows: so many deleted ones slow searches down enough to be worth a reindex."""


@dataclass(frozen=True)
class Standing:
    """The parts of an index; the lock must be held."""

    folder: Path
    manifest: layout.Manifest
    documents: Documents
    withheld: Withheld

    @classmethod
    def open(cls, folder: Path) -> Standing:
        """Raises IndexFolderError where there is no index, or it is damaged."""
        manifest = layout.read_manifest(folder)
        layout.check_files(folder, manifest)
        documents = Documents(*(folder / part / layout.DOCUMENTS for part in manifest.parts))
        return cls(folder, manifest, documents, Withheld.of(folder, manifest))

    def embeddings(self) -> Embeddings:
        """Of all parts."""
        return Embeddings([self.folder / part / layout.EMBEDDINGS for part in self.manifest.parts])

    def transform(self) -> Transform | None:
        """What the index's vectors went through."""
        if layout.TRANSFORM not in self.manifest.files:
            return None
        return load_transform(self.folder / layout.TRANSFORM)


def count_distinct(documents: Documents, deleted: NDArray[np.bool_]) -> int:
    """How many texts there are among the documents that are not deleted."""
    texts = documents.table(["text"])["text"]
    return int(pc.count_distinct(texts.filter(pa.array(~deleted)) if deleted.any() else texts).as_py())


def compaction_hint(manifest: layout.Manifest) -> str | None:
    """What to do where much is deleted; None where little is."""
    deleted = manifest.documents["deleted"]
    if deleted <= COMPACTION_SHARE * manifest.rows:
        return None
    return f"{deleted:,} of {manifest.rows:,} rows are deleted ones: retr reindex takes them out"
