"""A cut's vectors as a file that ann-benchmarks runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from retrieval.evaluation.bench.grid import Cut
from retrieval.evaluation.bench.hdf5 import NEIGHBORS, write_hdf5
from retrieval.evaluation.bench.material import Material
from retrieval.index.vectors import VectorIndex
from retrieval.transforms.apply import unit_vectors
from retrieval.types import Progress


def export_cut(material: Material, cut: Cut, path: Path, progress: Progress) -> None:
    """Write documents, held-out queries and their exact neighbours once cut; documents without a vector stay out.

    Raises
    ------
    TransformError
        The vectors do not carry so many dimensions.
    OSError
        The file cannot be written.
    """
    transform = cut.fit(material.moments)
    train = np.concatenate([chunk[chunk.any(axis=1)] for chunk in material.unit_chunks(transform)()])
    test = unit_vectors(material.queries, transform)
    index = VectorIndex(cut.m)
    index.add(train)
    with progress.stage("exact neighbours", "queries", len(test)) as advance:
        scores, rows = index.search(test, NEIGHBORS)
        advance(len(test))
    write_hdf5(path, train, test, rows, scores)
    progress.note(f"{path}: {len(train):,} x {cut.m} train, {len(test):,} test, {rows.shape[1]} neighbours each")
