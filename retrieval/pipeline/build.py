"""corpus -> index folder, in stages that survive a power cut.

Finished shards of embeddings stay beside the index if the build is broken off; the same command goes on from them.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval import __version__
from retrieval.corpus.reader import Corpus
from retrieval.encoders.base import Encoder, EncoderCounts, EncoderSettings
from retrieval.encoders.fusion import MEAN_TEXTS, FusionEncoder
from retrieval.encoders.load import FUSION_STATE, check_backend, load_to_build
from retrieval.encoders.onnx import copy_graph, graph_of
from retrieval.errors import IndexFolderError
from retrieval.index import folder as layout
from retrieval.index.building import Built
from retrieval.index.documents import Documents, DocumentsWriter, write_documents
from retrieval.index.embeddings import SHARD_ROWS, EmbeddingShards, EmbeddingsKey, key_of_folder
from retrieval.index.spec import Wanted, check_spec, choose_spec
from retrieval.index.vectors import check_factory, faiss_conflict
from retrieval.pipeline.encoding import encode_documents, tell_counts
from retrieval.pipeline.staging import BUILD, Stages, commit, how_made, resolved, staged
from retrieval.pipeline.vectors import Fitting, choose_transform, complete_graph, index_vectors, save_vectors
from retrieval.transforms.spec import AUTO, TransformSpec, parse_transform
from retrieval.types import NoProgress, Progress


@dataclass(frozen=True)
class BuildOptions:
    """How an index is built from a corpus."""

    settings: EncoderSettings
    transform: str = AUTO
    index: str = AUTO
    device: str = "auto"
    backend: str = AUTO
    precision: str = AUTO
    fresh: bool = False
    """Encode everything anew, whatever is there already."""
    trust_remote_code: bool = False
    """Whether Python code that the model brings along may be run."""
    wanted: Wanted = field(default_factory=Wanted)
    """What a search has to find, and within what."""


def build_index(
    corpus: Corpus,
    output: Path,
    options: BuildOptions,
    *,
    encoder: Encoder | None = None,
    progress: Progress | None = None,
) -> layout.Manifest:
    """Build an index folder.

    Parameters
    ----------
    corpus : read once, from the start.
    output : the folder; an index that stands there answers until the new one takes its name.
    encoder : one that is loaded already; otherwise `options.settings` is loaded.
    progress : told how it goes.

    Returns
    -------
    The manifest of the new index.

    Raises
    ------
    RetrError
        Of the kind that tells what is wrong; what stood at `output` is untouched, and finished shards are kept.
    """
    layout.check_output(output)
    output = resolved(output)
    if options.transform != AUTO:
        parse_transform(options.transform)
    check_spec(options.index)
    check_factory(options.index)
    check_backend(options.backend, options.precision, options.device)
    progress = progress or NoProgress()
    if conflict := faiss_conflict():
        progress.note(conflict)
    with staged(output, BUILD, progress) as folder:
        manifest = _Build(corpus, output, folder, options, progress).run(encoder)
        commit(folder, output, manifest)
    return manifest


class _Build:
    """One build, stage by stage, in `folder`."""

    def __init__(
        self,
        corpus: Corpus,
        output: Path,
        folder: Path,
        options: BuildOptions,
        progress: Progress,
    ) -> None:
        self.corpus, self.output, self.folder, self.options = corpus, output, folder, options
        self.progress = progress
        self.stages = Stages()
        self.reused_shards = 0

    def run(self, encoder: Encoder | None) -> layout.Manifest:
        self._clear_old_files()
        self._tell_what_is_replaced()
        with self.stages.timed("read"):
            writer = self._read()
        documents = Documents(self.folder / layout.DOCUMENTS)
        first_rows = writer.first_rows()
        distinct = int((first_rows == np.arange(len(first_rows))).sum())
        if encoder is None:
            with self.stages.timed("load"):
                options = self.options
                encoder = load_to_build(
                    options.settings,
                    options.device,
                    options.backend,
                    options.precision,
                    self.progress.note,
                    trust_remote_code=options.trust_remote_code,
                )
        family, dimension = encoder.family, encoder.dimension
        spec = choose_transform(self.options.transform, family, dimension, len(documents), distinct, self.progress)
        m = spec.m if isinstance(spec, TransformSpec) else dimension
        check_factory(*choose_spec(self.options.index, len(documents), m, self.options.wanted)[:1], m)
        self._clear_encoder(FUSION_STATE if isinstance(encoder, FusionEncoder) else None)
        if isinstance(encoder, FusionEncoder):
            self._fit_fusion(encoder, documents)
        if (graph := graph_of(encoder)) is not None:
            copy_graph(graph, self.folder / layout.ENCODER)
        key = EmbeddingsKey(
            writer.texts_sha256(), len(documents), encoder.fingerprint, encoder.settings.to_json(), SHARD_ROWS
        )
        shards = EmbeddingShards(self.folder / layout.EMBEDDINGS, key)
        del writer
        with self.stages.timed("encode"):
            self._encode(encoder, documents, first_rows, shards)
        encoder_info = {
            **encoder.settings.to_json(),
            "dimension": dimension,
            "family": family,
            "backend": encoder.backend,
            "precision": encoder.precision,
            "fingerprint": encoder.fingerprint,
        }
        has_graph = graph is not None
        del encoder, graph  # their memory, where they were loaded here, serves the index
        with self.stages.timed("transform"):
            forgiving = self.options.transform == AUTO
            fitting = Fitting(shards, dimension, self.folder, self.output, forgiving, self.progress)
            transform, transform_info = fitting.fit(spec)
        with self.stages.timed("index"):
            options = self.options
            built = index_vectors(
                shards, transform, dimension, options.index, options.wanted, options.device, self.progress
            )
        with self.stages.timed("write"):
            save_vectors(built, self.folder / layout.VECTORS)
            if has_graph:
                complete_graph(self.folder / layout.ENCODER, transform, built.vectors.dimension)
        return self._manifest(documents, distinct, encoder_info, shards, transform_info, built)

    def _tell_what_is_replaced(self) -> None:
        with contextlib.suppress(IndexFolderError):
            standing = layout.read_manifest(self.output)
            before = [source["name"] for source in standing.documents["sources"]]
            if before != [file.name for file in self.corpus.files]:
                sources = ", ".join(before[:3])
                built = standing.created[:10]
                self.progress.note(f"replacing the index '{self.output.name}', built {built} from {sources}")

    def _clear_old_files(self) -> None:
        """Leave nothing of an earlier build but its embeddings, which say themselves what they are."""
        for path in self.folder.iterdir():
            if path.is_file():
                path.unlink()
        shutil.rmtree(self.folder / layout.ADDED, ignore_errors=True)
        if self.options.fresh:
            shutil.rmtree(self.folder / layout.EMBEDDINGS, ignore_errors=True)
            shutil.rmtree(self.folder / layout.ENCODER, ignore_errors=True)

    def _clear_encoder(self, kept: str | None) -> None:
        """Leave nothing of an earlier build's encoder, which may have been of another kind, but the file named."""
        folder = self.folder / layout.ENCODER
        for path in list(folder.iterdir()) if folder.exists() else []:
            if path.name != kept:
                path.unlink()
        if kept is None and folder.exists():
            folder.rmdir()

    def _read(self) -> DocumentsWriter:
        with self.progress.stage("reading", "rows", None) as advance:

            def batches() -> Iterator[Any]:
                for batch in self.corpus.batches():
                    yield batch
                    advance(batch.num_rows)

            writer = write_documents(batches(), self.folder / layout.DOCUMENTS)
        selection = self.corpus.selection
        if selection is not None and self.corpus.options.text_column is None and selection.text != "text":
            self.progress.note(f"text: column {selection.text!r} (--text-column chooses another)")
        if self.corpus.skipped:
            shown = ", ".join(str(row) for row in self.corpus.first_skipped)
            more = ", ..." if self.corpus.skipped > len(self.corpus.first_skipped) else ""
            self.progress.note(f"blank texts skipped: {self.corpus.skipped:,}, at rows {shown}{more} (from 0)")
        return writer

    def _fit_fusion(self, encoder: FusionEncoder, documents: Documents) -> None:
        """Find the means of centred parts over the corpus, and keep them where the index will look for them."""
        state = self.folder / layout.ENCODER / FUSION_STATE
        count = min(len(documents), MEAN_TEXTS)
        rows = [i * len(documents) // count for i in range(count)]
        total = count * sum(part.centred for part in encoder.parts)
        with self.progress.stage("centring", "texts", total) as advance:
            encoder.fit_means([document["text"] for document in documents.take(rows)], on_batch=advance)
        # A fit on another day may differ in the last bits, and the shards that are there were made with the first.
        if state.exists():
            encoder.adopt_means(state)
        state.parent.mkdir(exist_ok=True)
        encoder.save(state)

    def _encode(
        self, encoder: Encoder, documents: Documents, first_rows: NDArray[np.int64], shards: EmbeddingShards
    ) -> None:
        self._reuse_embeddings(shards)
        self.reused_shards = encode_documents(
            lambda: encoder, documents, first_rows, shards, self.progress, encoder.dimension
        )
        tell_counts(EncoderCounts(**shards.counts()), encoder.settings.max_length, self.progress)

    def _reuse_embeddings(self, shards: EmbeddingShards) -> None:
        """Keep the unfinished build's shards, or take the standing index's; else begin with none, and say why."""
        unfinished = key_of_folder(shards.folder)
        if unfinished is not None:
            if changes := shards.key.changes(unfinished):
                self.progress.note(f"starting anew, not from the unfinished build: {'; '.join(changes)}")
                shutil.rmtree(shards.folder)
            else:
                return
        standing = self.output / layout.EMBEDDINGS
        if not self.options.fresh and (key := key_of_folder(standing)) is not None and not shards.key.changes(key):
            shards.link_from(standing)

    def _manifest(
        self,
        documents: Documents,
        distinct: int,
        encoder: dict[str, Any],
        shards: EmbeddingShards,
        transform: dict[str, Any],
        built: Built,
    ) -> layout.Manifest:
        selection = self.corpus.selection
        return layout.Manifest(
            created=datetime.now(UTC).isoformat(timespec="microseconds"),
            retr_version=__version__,
            documents={
                "count": len(documents),
                "deleted": 0,
                "distinct_texts": distinct,
                "added": [],
                "next_id": self.corpus.rows,
                "fields": documents.fields,
                "text_column": selection.text if selection else None,
                "id_column": selection.id if selection else None,
                "rows_read": self.corpus.rows,
                "skipped": self.corpus.skipped,
                "first_skipped_rows": self.corpus.first_skipped,
                **shards.counts(),
                "sources": [{"name": file.name, "bytes": file.size} for file in self.corpus.files],
            },
            encoder=encoder,
            transform=transform,
            index=built.to_json(),
            build=how_made(BUILD, self.stages, shards=shards.count, shards_reused=self.reused_shards),
            files=layout.list_files(self.folder),
        )
