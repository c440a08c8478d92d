"""Texts -> hits, out of an index folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from retrieval.corpus.lines import is_blank
from retrieval.encoders.base import Encoder, EncoderSettings
from retrieval.encoders.catalog import DEFAULT_MODEL
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.encoders.onnx import graph_vectors
from retrieval.encoders.runtime import RUNTIMES, import_runtime
from retrieval.errors import EncoderError, IndexFolderError, UsageError
from retrieval.index import folder as layout
from retrieval.transforms.apply import load_transform, unit_vectors
from retrieval.types import Hit, NoProgress, Progress

if TYPE_CHECKING:
    from retrieval.corpus.reader import CorpusOptions
    from retrieval.index.documents import Documents
    from retrieval.index.vectors import VectorIndex
    from retrieval.transforms.base import Transform
    from retrieval.transforms.held_out import Fitness

_BATCH_QUERIES = 4096
_SPELLINGS = 16
_EQUAL_SCORES = {"float32": 1e-6, "bf16": 5e-4, "int8": 5e-3}
"""How far apart the scores of equal texts may be that were encoded in batches of other sizes, and then whitened."""


class Index:
    """An index folder that is open for search. Use `Index.open` or `Index.build`."""

    def __init__(
        self,
        path: Path,
        manifest: layout.Manifest,
        documents: Documents,
        vectors: VectorIndex,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self._documents, self._vectors = documents, vectors
        self._encoder: Encoder | None = None
        self._loader = _Loader(path, manifest)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        encoder: Encoder | None = None,
        device: str = "auto",
        preload: bool = False,
        trust_remote_code: bool = False,
        progress: Progress | None = None,
    ) -> Index:
        """Open an index folder; the encoder is loaded with the first search.

        Parameters
        ----------
        encoder : one that is loaded already, instead of the one that the manifest names.
        device : where the encoder runs: `auto`, `cpu` or `cuda`.
        preload : load an encoder that the folder carries at once, while the rest is opened.
        trust_remote_code : whether Python code that the model brings along may be run.

        Raises
        ------
        IndexFolderError
            There is no index, it is damaged, or it is of another format version.
        EncoderError
            The encoder is not the one that built the index.
        """
        folder, progress = Path(path).expanduser(), progress or NoProgress()
        loader = _Loader(folder, layout.read_manifest(folder), device, trust_remote_code, progress)
        if preload and encoder is None:
            loader.start()
        index = cls._open_whole(folder)
        if encoder is not None:
            index._encoder = index._checked(encoder)
        if loader.manifest.created != index.manifest.created:  # another build took the name meanwhile
            loader = _Loader(folder, index.manifest, device, trust_remote_code, progress)
        index._loader = loader
        return index

    @classmethod
    def build(
        cls,
        sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        path: str | os.PathLike[str],
        *,
        model: str | Path = DEFAULT_MODEL,
        pooling: str | None = None,
        transform: str = "auto",
        index: str = "auto",
        max_length: int | None = None,
        normalize: str = "",
        corpus: CorpusOptions | None = None,
        encoder: Encoder | None = None,
        device: str = "auto",
        backend: str = "auto",
        precision: str = "auto",
        fresh: bool = False,
        trust_remote_code: bool = False,
        progress: Progress | None = None,
    ) -> Index:
        """Build an index folder from corpus files, and open it.

        Parameters
        ----------
        sources : paths of files and folders, globs, or `-` for standard input.
        path : the index folder; an index that stands there is replaced when the new one is whole.
        model : a name of the catalog, a folder, a file of word vectors, a hub id, or a fusion such as a+0.3*b.
        pooling : see retrieval.encoders.pooling; None takes what the model was made for.
        transform : auto, none, whiten-M, rotate-M, soft-M, explicit as whiten-M:beta=1,gamma=0.8,eps=0, or flow.
        max_length : tokens of a text that count, special tokens included; None takes the model's own, at most 512.
        normalize : steps that change texts before encoding, apart by commas: nfkc, t2s, lower.
        corpus : columns, format, encoding, and what to do with blank texts.
        encoder : one that is loaded already, instead of model, pooling, max_length, normalize, backend and precision.
        backend : auto, torch, openvino or onnx (ONNX Runtime). With the latter two the folder holds the encoder too, as
            a graph, and a search loads neither torch nor transformers; auto takes openvino for a transformer on a CPU.
        precision : auto, float32, bf16 (openvino, torch) or int8 (openvino, onnx). auto takes bf16 where the processor
            multiplies in it, else float32.
        fresh : encode everything anew, whatever an unfinished build or the standing index already holds.
        trust_remote_code : whether Python code that the model brings along may be run.

        Raises
        ------
        RetrError
            Of the kind that tells what is wrong; what stood at `path` is untouched.
        """
        from retrieval.corpus.reader import Corpus, CorpusOptions
        from retrieval.pipeline.build import BuildOptions, build_index

        if encoder is not None and (pooling, max_length, normalize, backend, precision) != (
            None,
            None,
            "",
            "auto",
            "auto",
        ):
            raise UsageError("pooling, max_length, normalize, backend and precision are those of the encoder given")
        named = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
        settings = (
            encoder.settings
            if encoder
            else resolve_settings(model, pooling=pooling, max_length=max_length, normalize=normalize)
        )
        options = BuildOptions(settings, transform, index, device, backend, precision, fresh, trust_remote_code)
        build_index(Corpus(named, corpus or CorpusOptions()), Path(path), options, encoder=encoder, progress=progress)
        return cls.open(path, encoder=encoder, device=device, trust_remote_code=trust_remote_code, progress=progress)

    def __len__(self) -> int:
        """How many documents there are."""
        return len(self._vectors)

    def search(self, texts: str | Sequence[str], k: int = 10, *, min_score: float | None = None) -> list[list[Hit]]:
        """The k documents nearest to each text.

        Parameters
        ----------
        texts : one text or many.
        k : at least 1; more than there are documents gives all of them.
        min_score : leave out hits below this cosine.

        Returns
        -------
        One list of hits a text, nearest first; of equal scores a document that is the text itself, then the one
        that was indexed first. A text of which the encoder knows nothing has no hits.

        Raises
        ------
        UsageError
            k is less than 1, or a text is blank; the text is named by its place.
        EncoderError
            The encoder cannot be loaded, or is not the one that built the index.
        """
        if k < 1:
            raise UsageError(f"k is {k}, expected at least 1")
        queries = [texts] if isinstance(texts, str) else list(texts)
        for place, query in enumerate(queries, 1):
            _check_query(place, query)
        hits: list[list[Hit]] = []
        for start in range(0, len(queries), _BATCH_QUERIES):
            hits += self._search_batch(queries[start : start + _BATCH_QUERIES], k, min_score)
        return hits

    @property
    def encoder(self) -> Encoder:
        """The encoder that built the index, loaded now if it was not yet."""
        if self._encoder is None:
            self._check_unchanged()
            encoder = self._loader.load()
            self._check_unchanged()
            self._encoder = self._checked(encoder)
        return self._encoder

    @cached_property
    def transform(self) -> Transform | None:
        """What the raw embeddings went through before they were indexed, loaded now if it was not yet."""
        if layout.TRANSFORM not in self.manifest.files:
            return None
        transform = load_transform(self.path / layout.TRANSFORM)
        self._check_unchanged()
        return transform

    def fitness(self, queries: Sequence[str]) -> Fitness:
        """How queries look beside the documents that the index's transform was fitted on: an alarm for drift.

        Raises
        ------
        UsageError
            The index has no transform, or a query is blank; it is named by its place.
        TransformError
            The encoder knows nothing of any query.
        """
        from retrieval.transforms.held_out import Fitness, SplitMoments
        from retrieval.transforms.moments import Moments
        from retrieval.transforms.whitening import Whitening

        if not isinstance(self.transform, Whitening) or layout.MOMENTS not in self.manifest.files:
            raise UsageError(
                f"index '{self.path}' keeps no {layout.MOMENTS} to compare queries with: it was built with "
                f"--transform none or flow, or by a retr that kept none"
            )
        for place, query in enumerate(queries, 1):
            _check_query(place, query)
        fitted = SplitMoments.load(self.path / layout.MOMENTS).whole()
        self._check_unchanged()
        asked = Moments(fitted.dimension)
        for start in range(0, len(queries), _BATCH_QUERIES):
            embeddings = self.encoder.encode(queries[start : start + _BATCH_QUERIES], kind="query")
            asked.update(embeddings[embeddings.any(axis=1)])
        return Fitness.of(self.transform, fitted, asked)

    def verify(self) -> None:
        """Compare every file with its sha256 in the manifest; IndexFolderError names the first that differs."""
        layout.check_files(self.path, self.manifest, every_hash=True)

    @classmethod
    def _open_whole(cls, folder: Path) -> Index:
        """Open the parts of one build: another build may take the folder's name between two of them."""
        manifest = layout.read_manifest(folder)
        while True:
            try:
                index, damage = cls._open_parts(folder, manifest), None
            except (IndexFolderError, OSError) as error:
                index, damage = None, error
            before, manifest = manifest, layout.read_manifest(folder)
            if manifest.created == before.created:
                if index is None:
                    raise damage or IndexFolderError(f"'{folder}' cannot be opened")
                return index

    @classmethod
    def _open_parts(cls, folder: Path, manifest: layout.Manifest) -> Index:
        # Imported here, so that an encoder that is preloaded has begun to load before them.
        from retrieval.index.documents import Documents
        from retrieval.index.vectors import VectorIndex

        layout.check_files(folder, manifest)
        documents = Documents(folder / layout.DOCUMENTS)
        vectors = VectorIndex.load(folder / layout.VECTORS)
        expected = manifest.documents.get("count"), manifest.index.get("vectors")
        if (len(documents), len(vectors)) != expected:
            raise IndexFolderError(
                f"'{folder}' is damaged: it has {len(documents):,} documents and {len(vectors):,} vectors, expected "
                f"{expected[0]} and {expected[1]}; build it again"
            )
        return cls(folder, manifest, documents, vectors)

    def _check_unchanged(self) -> None:
        """What is loaded late must be of the same build as what was loaded when the index was opened."""
        if layout.read_manifest(self.path).created != self.manifest.created:
            raise IndexFolderError(f"index '{self.path}' was built again since it was opened: open it again")

    def _checked(self, encoder: Encoder) -> Encoder:
        expected = self.manifest.encoder.get("fingerprint")
        if encoder.fingerprint != expected:
            raise EncoderError(
                f"index '{self.path}' was built by another encoder than {encoder.settings.source!r} is now "
                f"(fingerprint {str(expected)[:12]}, now {encoder.fingerprint[:12]}): its files, pooling, prompts or "
                f"length changed; restore the model, or build the index again"
            )
        return encoder

    @property
    def _equal_scores(self) -> float:
        return _EQUAL_SCORES.get(self.manifest.encoder["precision"], _EQUAL_SCORES["float32"])

    def _search_batch(self, queries: list[str], k: int, min_score: float | None) -> list[list[Hit]]:
        vectors = graph_vectors(self.encoder, queries, self._vectors.dimension)
        if vectors is None:
            vectors = unit_vectors(self.encoder.encode(queries, kind="query"), self.transform)
        # A few more than k: other spellings that the encoder takes for the same text may crowd the text itself out.
        scores, rows = self._vectors.search(vectors, k + _SPELLINGS)
        return [
            [hit for hit in self._hits(query, scores[i], rows[i], k) if min_score is None or hit.score >= min_score]
            if vectors[i].any()
            else []
            for i, query in enumerate(queries)
        ]

    def _hits(self, query: str, scores: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> list[Hit]:
        """The first k; among those of the best score a document that is the query itself comes first."""
        best = int((scores >= scores[0] - self._equal_scores).sum())
        documents = self._documents.take(rows[: max(k, best)].tolist())
        hits = [
            Hit(document.pop("id"), float(score), document.pop("text"), document)
            for score, document in zip(scores, documents, strict=False)
        ]
        return (sorted(hits[:best], key=lambda hit: hit.text != query) + hits[best:])[:k]


@dataclass
class _Loader:
    """Loads the encoder that a manifest names; in a thread, where it is started before it is asked."""

    folder: Path
    manifest: layout.Manifest
    device: str = "auto"
    trust_remote_code: bool = False
    progress: Progress = field(default_factory=NoProgress)
    _started: Future[Encoder] | None = None

    def start(self) -> None:
        """Begin to load a graph. torch is left until it is asked for: its import cannot be broken off."""
        if self.manifest.encoder["backend"] not in RUNTIMES:
            return
        import_runtime(self.manifest.encoder["backend"])  # two threads that import wait for each other
        executor = ThreadPoolExecutor(1)
        self._started = executor.submit(self._load)
        executor.shutdown(wait=False)

    def load(self) -> Encoder:
        """The encoder, waited for where it is on its way."""
        return self._load() if self._started is None else self._started.result()

    def _load(self) -> Encoder:
        stored = self.manifest.encoder
        settings = {name: value for name, value in stored.items() if name in EncoderSettings.__dataclass_fields__}
        state = self.folder / layout.ENCODER
        return load_encoder(
            EncoderSettings(**settings),
            self.device,
            self.progress.note,
            state if state.exists() else None,
            backend=stored["backend"],
            precision=stored["precision"],
            trust_remote_code=self.trust_remote_code,
        )


def _check_query(place: int, query: object) -> None:
    if not isinstance(query, str):
        raise UsageError(f"query {place} is {type(query).__name__} {query!r}, expected a text")
    if is_blank(query):
        raise UsageError(f"query {place} is blank ({query!r}): expected a text")
    if any("\ud800" <= character <= "\udfff" for character in query):
        raise UsageError(f"query {place} ({query!r}) holds half a surrogate pair, which is not a character")
