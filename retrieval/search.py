"""Texts -> hits, out of an index folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from retrieval.corpus.lines import is_blank
from retrieval.encoders.base import Encoder
from retrieval.encoders.catalog import DEFAULT_MODEL
from retrieval.encoders.load import resolve_settings
from retrieval.encoders.onnx import graph_vectors
from retrieval.encoders.stored import StoredEncoder, check_encoder
from retrieval.errors import EncoderError, IndexFolderError, UsageError
from retrieval.index import folder as layout
from retrieval.transforms.apply import load_transform, unit_vectors
from retrieval.types import Hit, NoProgress, Progress

if TYPE_CHECKING:
    from retrieval.corpus.reader import CorpusOptions
    from retrieval.index.opened import Opened
    from retrieval.index.spec import Setting, Wanted
    from retrieval.pipeline.add import Addition
    from retrieval.pipeline.delete import Deletion
    from retrieval.transforms.base import Transform
    from retrieval.transforms.held_out import Fitness

_Loaded = TypeVar("_Loaded")
_BATCH_QUERIES = 4096
_SPELLINGS = 16
_MORE = 4
"""Times as many hits are looked up where equal texts left fewer than k."""
_EQUAL_SCORES = {"float32": 1e-6, "bf16": 5e-4, "int8": 5e-3}
"""How far apart the scores of equal texts may be that were encoded in batches of other sizes, and then whitened."""


class Index:
    """An index folder that is open for search. Use `Index.open` or `Index.build`."""

    def __init__(self, path: Path, opened: Opened, loader: StoredEncoder, mmap: bool = True) -> None:
        self.path = path
        self._opened, self._loader, self._mmap = opened, loader, mmap
        self._settings: dict[float, Setting] = {}
        self._filters: dict[str, NDArray[np.bool_]] = {}
        self._encoder: Encoder | None = None
        self._is_own_encoder = False  # loaded out of the folder: its graph may go on to this index's vectors

    @property
    def manifest(self) -> layout.Manifest:
        """What the index is, as it was opened."""
        return self._opened.manifest

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        encoder: Encoder | None = None,
        device: str = "auto",
        preload: bool = False,
        mmap: bool = True,
        trust_remote_code: bool = False,
        progress: Progress | None = None,
    ) -> Index:
        """Open an index folder; the encoder is loaded with the first search.

        Parameters
        ----------
        encoder : one that is loaded already, instead of the one that the manifest names.
        device : where the encoder runs: `auto`, `cpu` or `cuda`.
        preload : load an encoder that the folder carries at once, while the rest is opened.
        mmap : map the vectors where FAISS can, so that an index may be larger than memory; else read them whole.
        trust_remote_code : whether Python code that the model brings along may be run.

        Raises
        ------
        IndexFolderError
            There is no index, it is damaged, or it is of another format version.
        EncoderError
            The encoder is not the one that built the index.
        """
        folder, progress = Path(path).expanduser(), progress or NoProgress()
        manifest = layout.read_manifest(folder)
        folder = folder.absolute()  # what is loaded late is found from any folder
        loader = StoredEncoder(folder, manifest, device, trust_remote_code, progress)
        if preload and encoder is None:
            loader.start()
        from retrieval.index.opened import Opened  # faiss and Arrow load while a preloaded encoder does

        opened = Opened.open(folder, mmap)
        if loader.manifest.created != opened.manifest.created:  # another build took the name meanwhile
            loader = StoredEncoder(folder, opened.manifest, device, trust_remote_code, progress)
        index = cls(folder, opened, loader, mmap)
        if encoder is not None:
            index._encoder = check_encoder(encoder, index.manifest.encoder, folder)
        index._use_gpu()
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
        wanted: Wanted | None = None,
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
        index : auto, a kind of retrieval.index.spec.KINDS, or a FAISS factory string.
        wanted : the recall that a search has to reach (0.99), and the most memory and time it may take.
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
        from retrieval.index.spec import Wanted
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
        options = BuildOptions(
            settings,
            transform,
            index,
            device,
            backend,
            precision,
            fresh,
            trust_remote_code,
            wanted or Wanted(),
        )
        build_index(Corpus(named, corpus or CorpusOptions()), Path(path), options, encoder=encoder, progress=progress)
        return cls.open(path, encoder=encoder, device=device, trust_remote_code=trust_remote_code, progress=progress)

    def __len__(self) -> int:
        """How many documents there are."""
        return int(self.manifest.documents["count"])

    def search(
        self,
        texts: str | Sequence[str],
        k: int = 10,
        *,
        min_score: float | None = None,
        where: str | None = None,
        dedup: bool = False,
        recall: float | None = None,
    ) -> list[list[Hit]]:
        """The k documents nearest to each text.

        Parameters
        ----------
        texts : one text or many.
        k : at least 1; more than there are documents gives all of them.
        min_score : leave out hits below this cosine.
        where : a condition on kept columns, such as "category = '退款' and year >= 2024"; see retrieval.index.filters.
            It holds before the search: k hits come back where so many documents meet it.
        dedup : of documents with equal texts only the first.
        recall : share of the true neighbours that has to be found, within (0, 1], instead of what the index was built
            for: its curve says how hard to look. 1 compares all vectors.

        Returns
        -------
        One list of hits a text, nearest first; of equal scores a document that is the text itself, then the one
        that was indexed first. A text of which the encoder knows nothing has no hits.

        Raises
        ------
        UsageError
            k is less than 1, or a text is blank; the text is named by its place. The condition cannot be read, or
            does not suit the columns; the place is named.
        EncoderError
            The encoder cannot be loaded, or is not the one that built the index.
        """
        if k < 1:
            raise UsageError(f"k is {k}, expected at least 1")
        setting = None if recall is None else self._setting(recall)
        allowed = self._opened.allowed if where is None else self._filtered(where)
        queries = [texts] if isinstance(texts, str) else list(texts)
        for place, query in enumerate(queries, 1):
            _check_query(place, query)
        hits: list[list[Hit]] = []
        for start in range(0, len(queries), _BATCH_QUERIES):
            hits += self._search_batch(queries[start : start + _BATCH_QUERIES], k, min_score, allowed, dedup, setting)
        return hits

    def add(
        self,
        sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        corpus: CorpusOptions | None = None,
        progress: Progress | None = None,
    ) -> Addition:
        """Add documents of corpus files, or replace those of the same ids; this object then holds the new state.

        Parameters
        ----------
        sources : as for `build`.
        corpus : how they are read; the columns are the index's own unless they are named.

        Raises
        ------
        RetrError
            Of the kind that tells what is wrong; the index is untouched.
        """
        from retrieval.corpus.reader import CorpusOptions
        from retrieval.pipeline.add import add_documents

        named = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
        addition = add_documents(
            self.path,
            named,
            corpus or CorpusOptions(),
            lambda: self.encoder,
            progress=progress or self._loader.progress,
        )
        self.reopen()
        return addition

    def delete(self, ids: Sequence[str], *, ignore_unknown: bool = False, progress: Progress | None = None) -> Deletion:
        """Delete the documents of some ids, all or none; this object then holds the new state.

        Parameters
        ----------
        ignore_unknown : pass over ids that the index never had.

        Raises
        ------
        UsageError
            The index never had an id; it is named.
        """
        from retrieval.pipeline.delete import delete_documents

        deletion = delete_documents(self.path, ids, ignore_unknown=ignore_unknown, progress=progress)
        self.reopen()
        return deletion

    def reindex(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        transform: str | None = None,
        index: str | None = None,
        refit: bool = False,
        progress: Progress | None = None,
    ) -> Index:
        """Make the index anew from its own embeddings, without encoding and without what was deleted.

        Parameters
        ----------
        path : another folder, which leaves this index as it is; None replaces it, and this object holds the new state.
        transform : as for `build`; None keeps the one that is fitted.
        index : kind of index; None keeps it.
        refit : fit the index's own transform anew, on the documents that it has now.

        Returns
        -------
        The new index, open; this object where `path` is None.
        """
        from retrieval.pipeline.reindex import ReindexOptions, reindex

        output = None if path is None else Path(path)
        reindex(self.path, ReindexOptions(transform, index, refit), output=output, progress=progress)
        if output is not None:
            return Index.open(output, encoder=None if self._is_own_encoder else self._encoder)
        self.reopen()
        return self

    def reopen(self) -> None:
        """Hold the index as it stands in its folder now; the encoder stays loaded where it is still the same."""
        from retrieval.index.opened import Opened

        before, loader = self.manifest, self._loader
        self._opened, self._filters, self._settings = Opened.open(self.path, self._mmap), {}, {}
        now = self.manifest
        self._loader = StoredEncoder(self.path, now, loader.device, loader.trust_remote_code, loader.progress)
        if before.entries(layout.TRANSFORM) != now.entries(layout.TRANSFORM):
            self.__dict__.pop("transform", None)
        own = self._is_own_encoder and before.entries(layout.ENCODER) != now.entries(layout.ENCODER)
        if own or before.encoder["fingerprint"] != now.encoder["fingerprint"]:
            self._encoder, self._is_own_encoder = None, False
        self._use_gpu()

    @property
    def encoder(self) -> Encoder:
        """The encoder that built the index, loaded now if it was not yet."""
        if self._encoder is None:
            self._encoder = self._late(layout.ENCODER, self._loader.load)
            self._is_own_encoder = True
        return self._encoder

    @cached_property
    def transform(self) -> Transform | None:
        """What the raw embeddings went through before they were indexed, loaded now if it was not yet."""
        if layout.TRANSFORM not in self.manifest.files:
            return None
        return self._late(layout.TRANSFORM, lambda: load_transform(self.path / layout.TRANSFORM))

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
        fitted = self._late(layout.MOMENTS, lambda: SplitMoments.load(self.path / layout.MOMENTS).whole())
        asked = Moments(fitted.dimension)
        for start in range(0, len(queries), _BATCH_QUERIES):
            embeddings = self.encoder.encode(queries[start : start + _BATCH_QUERIES], kind="query")
            asked.update(embeddings[embeddings.any(axis=1)])
        return Fitness.of(self.transform, fitted, asked)

    def verify(self) -> None:
        """Compare every file with its sha256 in the manifest; IndexFolderError names the first that differs."""
        layout.check_files(self.path, self.manifest, every_hash=True)

    def _use_gpu(self) -> None:
        """Where the device is a GPU, batches are searched on it too, if FAISS can."""
        if self._loader.device.startswith("cuda"):
            try:
                self._opened.vectors.search_on(self._loader.device)
            except UsageError as error:
                self._loader.progress.note(f"vectors are searched on the CPU: {error}")

    def _late(self, name: str, load: Callable[[], _Loaded]) -> _Loaded:
        """What is loaded late must go with what was loaded when the index was opened; documents may come and go."""
        try:
            return load()
        finally:
            now = layout.read_manifest(self.path)
            if now.encoder != self.manifest.encoder or now.entries(name) != self.manifest.entries(name):
                raise IndexFolderError(f"index '{self.path}' was built again since it was opened: open it again")

    @property
    def _equal_scores(self) -> float:
        return _EQUAL_SCORES.get(self.manifest.encoder["precision"], _EQUAL_SCORES["float32"])

    def _setting(self, recall: float) -> Setting:
        """How hard to look for a recall: the cheapest point of the curve that reaches it, else exact search."""
        from retrieval.index.tuning import setting_for

        if recall not in self._settings:
            self._settings[recall], lacking = setting_for(self.manifest.index.get("curve", []), recall)
            if lacking:
                self._loader.progress.note(lacking)
        return self._settings[recall]

    def _filtered(self, where: str) -> NDArray[np.bool_]:
        """The rows that a search may find under a condition; that of the last one is remembered."""
        if not isinstance(where, str):
            raise UsageError(f"where is {type(where).__name__} {where!r}, expected a condition as text")
        if where not in self._filters:
            from retrieval.index.filters import matching_rows

            matching = matching_rows(where, self._opened.documents)
            self._filters = {where: matching if self._opened.allowed is None else matching & self._opened.allowed}
        return self._filters[where]

    def _search_batch(
        self,
        queries: list[str],
        k: int,
        min_score: float | None,
        allowed: NDArray[np.bool_] | None,
        dedup: bool,
        setting: Setting | None,
    ) -> list[list[Hit]]:
        encoder = self.encoder
        vectors = graph_vectors(encoder, queries, self._opened.vectors.dimension) if self._is_own_encoder else None
        if vectors is None:
            vectors = unit_vectors(encoder.encode(queries, kind="query"), self.transform)
        if not np.isfinite(vectors).all():
            place = int(np.argmin(np.isfinite(vectors).all(axis=1)))
            raise EncoderError(f"the encoder gives NaN or infinity for the query {queries[place]!r}")
        found: list[list[Hit]] = [[] for _ in queries]
        open_queries = np.flatnonzero(vectors.any(axis=1))
        # A few more than k: other spellings that the encoder takes for the same text may crowd the text itself out.
        wanted = k + _SPELLINGS
        while len(open_queries):
            scores, rows = self._opened.vectors.search(vectors[open_queries], wanted, allowed=allowed, setting=setting)
            for i, query in enumerate(open_queries):
                found[query] = self._hits(queries[query], scores[i], rows[i], k, dedup)
            if scores.shape[1] < wanted:  # these were all
                break
            open_queries = np.array([query for query in open_queries if len(found[query]) < k], dtype=np.int64)
            wanted *= _MORE
        return [[hit for hit in hits if min_score is None or hit.score >= min_score] for hits in found]

    def _hits(self, query: str, scores: NDArray[np.float32], rows: NDArray[np.int64], k: int, dedup: bool) -> list[Hit]:
        """The first k; among those of the best score a document that is the query itself comes first."""
        best = int((scores >= scores[:1] - self._equal_scores).sum())
        documents = self._opened.documents.take(rows[: len(rows) if dedup else max(k, best)].tolist())
        hits = [
            Hit(document.pop("id"), float(score), document.pop("text"), document)
            for score, document in zip(scores, documents, strict=False)
        ]
        hits = sorted(hits[:best], key=lambda hit: hit.text != query) + hits[best:]
        if dedup:
            first: dict[str, Hit] = {}
            for hit in hits:
                first.setdefault(hit.text, hit)
            hits = list(first.values())
        return hits[:k]


def _check_query(place: int, query: object) -> None:
    if not isinstance(query, str):
        raise UsageError(f"query {place} is {type(query).__name__} {query!r}, expected a text")
    if is_blank(query):
        raise UsageError(f"query {place} is blank ({query!r}): expected a text")
    if any("\ud800" <= character <= "\udfff" for character in query):
        raise UsageError(f"query {place} ({query!r}) holds half a surrogate pair, which is not a character")
