"""An index anew from its own embeddings: another transform, dimension or kind, without what was deleted.

Nothing is encoded and no encoder is loaded. Documents keep their ids and their order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval import __version__
from retrieval.encoders import catalog
from retrieval.encoders.base import Family
from retrieval.encoders.onnx import GRAPH
from retrieval.errors import BuildError, UsageError
from retrieval.index import folder as layout
from retrieval.index.documents import DocumentsWriter
from retrieval.index.embeddings import Embeddings, EmbeddingShards, EmbeddingsKey
from retrieval.index.spec import Wanted, check_spec
from retrieval.index.vectors import check_factory
from retrieval.pipeline.staging import REINDEX, Stages, commit, how_made, link_files, locked, resolved, staged
from retrieval.pipeline.standing import Standing
from retrieval.pipeline.vectors import Fitting, choose_transform, complete_graph, index_vectors, save_vectors
from retrieval.storage import copy_file
from retrieval.transforms.base import Transform
from retrieval.transforms.spec import AUTO, parse_transform
from retrieval.types import NoProgress, Progress


@dataclass(frozen=True)
class ReindexOptions:
    """What is to change."""

    transform: str | None = None
    """As for a build; None keeps the one that is fitted."""
    index: str | None = None
    """Kind of index; None keeps it."""
    refit: bool = False
    """Fit the index's own transform anew, on the documents that it has now."""
    wanted: Wanted | None = None
    """The recall that is looked for, and within what; None keeps the recall."""


def reindex(
    index: Path, options: ReindexOptions, *, output: Path | None = None, progress: Progress | None = None
) -> layout.Manifest:
    """Make an index anew.

    Parameters
    ----------
    index : the folder; it answers as it was until the new one takes its name.
    output : another folder, which leaves the first as it is; None replaces it.

    Returns
    -------
    The manifest of the new index.

    Raises
    ------
    RetrError
        Of the kind that tells what is wrong; what stood is untouched.
    """
    if options.transform is not None and options.refit:
        raise UsageError(f"transform {options.transform} is fitted anew in any case: leave out --refit")
    if options.transform not in (None, AUTO):
        parse_transform(str(options.transform))
    if options.index is not None:
        check_spec(options.index)
        check_factory(options.index)
    layout.read_manifest(index)
    index, progress = resolved(index), progress or NoProgress()
    target = index
    if output is not None:
        layout.check_output(output)
        target = resolved(output)
    with ExitStack() as stack:
        if target != index and os.access(index.parent, os.W_OK):  # where nobody can write, nobody is writing
            stack.enter_context(locked(index))
        folder = stack.enter_context(staged(target, REINDEX, progress))
        manifest = _Reindexing(Standing.open(index), folder, options, target != index, progress).run()
        commit(folder, target, manifest)
    return manifest


class _Reindexing:
    """One reindex, stage by stage, in `folder`."""

    def __init__(
        self, standing: Standing, folder: Path, options: ReindexOptions, elsewhere: bool, progress: Progress
    ) -> None:
        self.standing, self.folder, self.options, self.progress = standing, folder, options, progress
        self.elsewhere = elsewhere
        self.stages = Stages()

    def run(self) -> layout.Manifest:
        old = self.standing.manifest
        if old.documents["count"] == 0:
            raise BuildError("all documents of this index are deleted: add some first, or build another")
        dimension = old.encoder["dimension"]
        with self.stages.timed("compact"):
            linked = self._take_over()
            shards = self._compact(linked)
        with self.stages.timed("transform"):
            transform, info = self._transform(shards, dimension, linked)
        with self.stages.timed("index"):
            wanted = self.options.wanted or Wanted(old.index.get("wanted_recall", Wanted.recall))
            spec = self.options.index or old.index["spec"]
            built = index_vectors(shards, transform, dimension, spec, wanted, "cpu", self.progress)
        with self.stages.timed("write"):
            save_vectors(built, self.folder / layout.VECTORS)
            if (self.folder / layout.ENCODER / GRAPH).exists():
                complete_graph(self.folder / layout.ENCODER, transform, built.vectors.dimension)
                linked.discard(f"{layout.ENCODER}/{GRAPH}")
        return layout.Manifest(
            created=datetime.now(UTC).isoformat(timespec="microseconds"),
            retr_version=__version__,
            documents={**old.documents, "deleted": 0, "added": []},
            encoder=old.encoder,
            transform=info,
            index=built.to_json(),
            build=how_made(REINDEX, self.stages),
            files=layout.list_files(self.folder, {name: old.files[name] for name in linked}),
        )

    def _take_over(self) -> set[str]:
        """What the encoder needs; copied into another index, as onnx refuses weights that have a second name."""
        names = {name for name in self.standing.manifest.files if name.startswith(f"{layout.ENCODER}/")}
        if not self.elsewhere:
            self._link(names)
            return names
        for name in names:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy_file(self.standing.folder / name, self.folder / name)
        return names

    def _compact(self, linked: set[str]) -> EmbeddingShards:
        """Documents and embeddings as one part, without the rows that are deleted."""
        standing = self.standing
        embeddings, deleted = standing.embeddings(), standing.withheld.deleted
        embeddings.check()
        if len(embeddings.parts) == 1 and not deleted.any():
            names = {name for name in standing.manifest.files if name.startswith(f"{layout.EMBEDDINGS}/")}
            self._link(names | {layout.DOCUMENTS})
            linked |= names | {layout.DOCUMENTS}
            return EmbeddingShards(self.folder / layout.EMBEDDINGS, embeddings.parts[0].key)
        with DocumentsWriter(self.folder / layout.DOCUMENTS) as writer:
            for batch in standing.documents.batches(0, deleted):
                writer.write(batch)
        before = embeddings.parts[0].key
        rows = standing.manifest.documents["count"]
        key = EmbeddingsKey(writer.texts_sha256(), rows, before.encoder_fingerprint, before.encoder, before.shard_rows)
        shards, counts = EmbeddingShards(self.folder / layout.EMBEDDINGS, key), embeddings.counts()
        with self.progress.stage("compacting", "vectors", rows) as advance:
            for shard, block in enumerate(_blocks(embeddings, deleted, key.shard_rows)):
                shards.write(shard, block, counts if shard == 0 else dict.fromkeys(counts, 0))
                advance(len(block))
        return shards

    def _transform(
        self, shards: EmbeddingShards, dimension: int, linked: set[str]
    ) -> tuple[Transform | None, dict[str, Any]]:
        """The one that the index has, or another fitted on what it holds now."""
        options, old = self.options, self.standing.manifest
        if options.transform is None and not options.refit:
            kept = {layout.TRANSFORM, layout.MOMENTS, layout.DRIFT} & old.files.keys()
            self._link(kept)
            linked |= kept
            return self.standing.transform(), old.transform
        name = old.transform["name"] if options.transform is None else options.transform
        family: Family = "raw"
        if name == AUTO:
            family = self._family()
        documents = old.documents
        spec = choose_transform(name, family, dimension, documents["count"], documents["distinct_texts"], self.progress)
        fitting = Fitting(shards, dimension, self.folder, self.standing.folder, name == AUTO, self.progress)
        return fitting.fit(spec)

    def _family(self) -> Family:
        encoder = self.standing.manifest.encoder
        entry = catalog.lookup(encoder["source"])
        family: Family | None = encoder.get("family") or (entry.family if entry else None)
        if family is None:
            raise UsageError("this index does not say what transform suits its encoder: name one instead of auto")
        return family

    def _link(self, names: set[str]) -> None:
        link_files(self.standing.folder, self.folder, sorted(names))


def _blocks(embeddings: Embeddings, deleted: NDArray[np.bool_], rows: int) -> Iterator[NDArray[np.float32]]:
    """The embeddings of rows that are not deleted, so many at a time."""
    waiting: list[NDArray[np.float32]] = []
    count = start = 0
    for chunk in embeddings.chunks():
        left = chunk[~deleted[start : start + len(chunk)]]
        start += len(chunk)
        waiting.append(left)
        count += len(left)
        if count >= rows:
            whole = np.concatenate(waiting)
            for first in range(0, count - rows + 1, rows):
                yield whole[first : first + rows]
            waiting = [whole[count // rows * rows :]]
            count %= rows
    if count:
        yield np.concatenate(waiting)
