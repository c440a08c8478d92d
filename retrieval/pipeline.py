"""corpus -> index folder, in stages that survive a power cut.

Everything is written in a hidden folder beside the index (`.NAME.building`) and takes the index's name at the end, in
one step. Finished shards of embeddings stay there if the build is broken off; the same command goes on from them.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from retrieval import __version__
from retrieval.corpus.reader import Corpus
from retrieval.encoders import catalog
from retrieval.encoders.base import Encoder, EncoderCounts, EncoderSettings
from retrieval.encoders.fusion import MEAN_TEXTS, FusionEncoder
from retrieval.encoders.load import FUSION_STATE, check_backend, load_to_build
from retrieval.encoders.onnx import copy_graph, graph_of
from retrieval.errors import BuildError, IndexFolderError, TransformError, UsageError
from retrieval.index import folder as layout
from retrieval.index.building import build_vectors
from retrieval.index.documents import Documents, DocumentsWriter, write_documents
from retrieval.index.embeddings import SHARD_ROWS, EmbeddingShards, EmbeddingsKey, key_of_folder
from retrieval.index.spec import resolve_spec
from retrieval.index.vectors import ANY_DIMENSION, VectorIndex, check_factory, faiss_conflict
from retrieval.storage import remember_sha256, replace_folder, sync_tree
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform
from retrieval.transforms.flow import LEAST_ROWS, Epoch, Flow
from retrieval.transforms.held_out import SplitMoments
from retrieval.transforms.spec import AUTO, FLOW, NONE, FlowSpec, TransformSpec, auto_transform, parse_transform
from retrieval.transforms.whitening import DEFAULT_EPS, Whitening
from retrieval.types import NoProgress, Progress

UNKNOWN_ALARM = 0.2
_STAGED = "index"  # the future index folder inside the building folder


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


@dataclass
class _Stages:
    """Seconds a stage took."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)


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
    output = output.resolve()  # a link to an index stays one: the index behind it is replaced
    if output == Path.cwd() or output in Path.cwd().parents:
        raise UsageError(f"'{output}' is the current folder or holds it, and cannot be replaced: give another with -o")
    spec = None if options.transform == AUTO else parse_transform(options.transform)
    index_spec = resolve_spec(options.index)
    check_factory(index_spec, ANY_DIMENSION)
    check_backend(options.backend, options.precision, options.device)
    progress = progress or NoProgress()
    if conflict := faiss_conflict():
        progress.note(conflict)
    with _building_folder(output, progress) as building:
        build = _Build(corpus, output, building / _STAGED, options, spec, index_spec, progress)
        manifest = build.run(encoder)
        replace_folder(building / _STAGED, output)
        for name, entry in manifest.files.items():
            remember_sha256(output / name, entry["sha256"])
    return manifest


@contextmanager
def _building_folder(output: Path, progress: Progress) -> Iterator[Path]:
    """The hidden folder of a build, for one build at a time; it stays behind only where it holds finished shards."""
    building = output.with_name(f".{output.name}.building")
    (building / _STAGED).mkdir(parents=True, exist_ok=True)
    lock = FileLock(building / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BuildError(
            f"another build of '{output}' is running: wait for it, or give another folder with -o"
        ) from None
    try:
        yield building
    except BaseException:
        if not any((building / _STAGED / layout.EMBEDDINGS).glob("*.safetensors")):
            shutil.rmtree(building, ignore_errors=True)
        else:
            progress.note("what is encoded so far is kept: the same command goes on from there")
        raise
    else:
        shutil.rmtree(building, ignore_errors=True)
    finally:
        lock.release()


class _Build:
    """One build, stage by stage, in `folder`."""

    def __init__(
        self,
        corpus: Corpus,
        output: Path,
        folder: Path,
        options: BuildOptions,
        spec: TransformSpec | FlowSpec | None,
        index_spec: str,
        progress: Progress,
    ) -> None:
        self.corpus, self.output, self.folder, self.options = corpus, output, folder, options
        self.spec, self.index_spec, self.progress = spec, index_spec, progress
        self.stages = _Stages()
        self.reused_shards = 0
        self.distinct = 0

    def run(self, encoder: Encoder | None) -> layout.Manifest:
        self._clear_old_files()
        self._tell_what_is_replaced()
        with self.stages.timed("read"):
            writer = self._read()
        documents = Documents(self.folder / layout.DOCUMENTS)
        first_rows = writer.first_rows()
        self.distinct = distinct = int((first_rows == np.arange(len(first_rows))).sum())
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
        spec = self._choose_transform(encoder, len(documents), distinct)
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
            "dimension": encoder.dimension,
            "backend": encoder.backend,
            "precision": encoder.precision,
            "fingerprint": encoder.fingerprint,
        }
        dimension = encoder.dimension
        has_graph = graph is not None
        del encoder, graph  # their memory, where they were loaded here, serves the index
        with self.stages.timed("transform"):
            transform, transform_info = self._fit(spec, shards, dimension)
        with self.stages.timed("index"):
            vectors = self._index(transform, shards, dimension)
        with self.stages.timed("write"):
            vectors.save(self.folder / layout.VECTORS)
            if transform is not None:
                transform.save(self.folder / layout.TRANSFORM)
            if has_graph:
                self._complete_graph(transform, vectors.dimension)
        manifest = self._manifest(documents, distinct, encoder_info, shards, transform_info, vectors)
        layout.write_manifest(self.folder, manifest)
        sync_tree(self.folder)
        return manifest

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

    def _choose_transform(self, encoder: Encoder, rows: int, distinct: int) -> TransformSpec | FlowSpec | None:
        """The transform to fit; what cannot be fitted is refused before hours of encoding, not after."""
        if self.options.transform == AUTO:
            name, reason = auto_transform(catalog.SUITED_TRANSFORM[encoder.family], distinct, encoder.dimension)
            self.progress.note(f"transform {name}: {reason}")
            return parse_transform(name)
        if isinstance(self.spec, FlowSpec) and distinct < LEAST_ROWS:
            raise TransformError(
                f"a flow wants at least {LEAST_ROWS} distinct documents, the corpus has {distinct:,}; "
                f"give more, or use --transform none"
            )
        if isinstance(self.spec, TransformSpec):
            # About their mean, equal vectors have no extent; about the origin (beta 0), they have one.
            most = min(encoder.dimension, rows - 1, distinct - 1 if self.spec.beta == 1 else distinct)
            if self.spec.m > most:
                raise TransformError(
                    f"cannot keep m = {self.spec.m} dimensions: the {rows:,} documents ({distinct:,} distinct) in "
                    f"{encoder.dimension} dimensions have rank {most} at most; choose a smaller m, "
                    f"give more documents, or use --transform none"
                )
        return self.spec

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
        """Write the missing shards. Each distinct text is encoded once, where it first appears."""
        self._reuse_embeddings(shards)
        missing = shards.missing()
        self.reused_shards = shards.count - len(missing)
        if damaged := shards.damaged(missing):
            self.progress.note(f"damaged embeddings are made again: {', '.join(damaged[:5])} ({len(damaged)} in all)")
        is_first = first_rows == np.arange(len(first_rows))
        waiting = sum(int(is_first[slice(*shards.bounds(shard))].sum()) for shard in missing)
        total = int(is_first.sum())
        if self.reused_shards and waiting:
            self.progress.note(f"going on: {total - waiting:,} of {total:,} distinct texts are encoded already")
        elif self.reused_shards:
            self.progress.note(f"all {total:,} distinct texts are encoded already, by the same encoder")
        with self.progress.stage("encoding", "texts", total, total - waiting) as advance:
            for shard in missing:
                start, stop = shards.bounds(shard)
                before = encoder.counts
                embeddings = np.empty((stop - start, encoder.dimension), dtype=np.float32)
                for first, texts in documents.texts(start, stop):
                    own = np.flatnonzero(is_first[first : first + len(texts)])
                    embeddings[first - start + own] = encoder.encode([texts[i] for i in own], on_batch=advance)
                for row in np.flatnonzero(~is_first[start:stop]):
                    source = int(first_rows[start + row])
                    if source >= start:
                        embeddings[row] = embeddings[source - start]
                    else:
                        embeddings[row] = shards.read(source // shards.key.shard_rows)[source % shards.key.shard_rows]
                shards.write(shard, embeddings, asdict(encoder.counts - before))
        counts = EncoderCounts(**shards.counts())
        if counts.truncated:
            self.progress.note(
                f"texts longer than {encoder.settings.max_length} tokens: {counts.truncated:,}; "
                f"what is beyond does not count (--max-length)"
            )
        if counts.without_vector:
            self.progress.note(
                f"texts of which the model knows nothing: {counts.without_vector:,}; they are never a hit"
            )
        if counts.unknown > UNKNOWN_ALARM * counts.tokens:
            self.progress.note(
                f"warning: {counts.unknown / counts.tokens:.1%} of the tokens are unknown to the model: "
                f"it was made for other texts; choose another with --model"
            )

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

    def _fit(
        self, spec: TransformSpec | FlowSpec | None, shards: EmbeddingShards, dimension: int
    ) -> tuple[Transform | None, dict[str, Any]]:
        if spec is None:
            return None, {"name": NONE, "m": dimension}
        if isinstance(spec, FlowSpec):
            return self._fit_flow(shards)
        split = self._moments(spec, shards, dimension)
        moments = split.whole()
        try:
            transform, spectrum = Whitening.fit(moments, spec.m, beta=spec.beta, gamma=spec.gamma, eps=spec.eps)
        except TransformError as error:
            if self.options.transform != AUTO:
                raise
            self.progress.note(f"transform none instead of {spec}: {error}")
            return None, {"name": NONE, "m": dimension}
        split.save(self.folder / layout.MOMENTS, shards.sha256())
        trial = split.trial(spec)
        for alarm in trial.alarms("vectors held out of a trial fit") if trial else []:
            self.progress.note(f"warning: {alarm}")
        return transform, {
            "name": str(spec),
            "beta": spec.beta,
            "gamma": spec.gamma,
            "m": spec.m,
            "eps": spec.eps,
            "rows": moments.rows,
            "kept_share": round(float(spectrum[: spec.m].sum() / spectrum.sum()), 6),
            "held_out_norm_ratio": _rounded(trial.norm_ratio) if trial else None,
            "mean_shift": _rounded(trial.mean_shift) if trial else None,
        }

    def _moments(self, spec: TransformSpec, shards: EmbeddingShards, dimension: int) -> SplitMoments:
        """Those of the standing index, where they are of these embeddings; else in a pass over them."""
        with contextlib.suppress(TransformError):
            standing = SplitMoments.load(self.output / layout.MOMENTS, shards.sha256())
            if standing.serves(spec):
                return standing
        moments = SplitMoments(dimension, exact=spec.eps < DEFAULT_EPS)
        with self.progress.stage("fitting", "vectors", shards.key.rows) as advance:
            for chunk in shards.chunks():
                moments.update(chunk)
                advance(len(chunk))
        return moments

    def _fit_flow(self, shards: EmbeddingShards) -> tuple[Flow, dict[str, Any]]:
        with self.progress.stage("fitting flow", "epochs", None) as advance:

            def tell(epoch: Epoch) -> None:
                advance(1)
                if epoch.number in (1, 2, 3, 5) or epoch.number % 10 == 0:
                    self.progress.note(
                        f"flow, epoch {epoch.number} of at most {epoch.most}: "
                        f"{epoch.held_out_nats:.4f} nats a dimension of held-out vectors"
                    )

            flow = Flow.fit((chunk[chunk.any(axis=1)] for chunk in shards.chunks()), on_epoch=tell)
        fitted = flow.fitted
        self.progress.note(
            f"flow: {fitted.held_out_nats:.4f} nats a dimension after epoch {fitted.best_epoch} "
            f"({fitted.start_nats:.4f} before the first)"
        )
        return flow, {"name": FLOW, "m": flow.m, **asdict(fitted)}

    def _index(self, transform: Transform | None, shards: EmbeddingShards, dimension: int) -> VectorIndex:
        unknown = shards.counts()["without_vector"]
        if unknown == self.distinct:
            raise BuildError("no document has a vector: the model knows nothing of their texts; choose another model")
        return build_vectors(
            lambda: (unit_vectors(chunk, transform) for chunk in shards.chunks()),
            shards.key.rows,
            transform.m if transform is not None else dimension,
            self.index_spec,
            numbered=unknown > 0,
            progress=self.progress,
        )

    def _complete_graph(self, transform: Transform | None, dimension: int) -> None:
        """Let the graph go on to the indexed vectors; a flow stays outside of it, in `transform.safetensors`."""
        if isinstance(transform, Flow):
            return
        from retrieval.encoders.onnx_tail import add_transform

        affine = (transform.mean, transform.kernel) if isinstance(transform, Whitening) else None
        add_transform(self.folder / layout.ENCODER, dimension, affine)

    def _manifest(
        self,
        documents: Documents,
        distinct: int,
        encoder: dict[str, Any],
        shards: EmbeddingShards,
        transform: dict[str, Any],
        vectors: VectorIndex,
    ) -> layout.Manifest:
        selection = self.corpus.selection
        return layout.Manifest(
            created=datetime.now(UTC).isoformat(timespec="microseconds"),
            retr_version=__version__,
            documents={
                "count": len(documents),
                "distinct_texts": distinct,
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
            index={"spec": self.index_spec, "dimension": vectors.dimension, "vectors": len(vectors)},
            build={
                "seconds": self.stages.seconds,
                "shards": shards.count,
                "shards_reused": self.reused_shards,
                "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
                "python": platform.python_version(),
            },
            files=layout.list_files(self.folder),
        )


def _rounded(figure: float) -> float:
    """Four digits: what a figure of this kind is worth."""
    return float(f"{figure:.4g}")
