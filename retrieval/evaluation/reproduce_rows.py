"""Published rows that share their embeddings: encoded in shards, transformed, and measured against the labels."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.corpus.files import find_files
from retrieval.encoders.base import Encoder, EncoderSettings
from retrieval.encoders.find import find_model, model_kind
from retrieval.encoders.load import AUTO, load_to_build, resolve_settings
from retrieval.errors import EncoderError, RetrError
from retrieval.evaluation.correlation import Floats
from retrieval.evaluation.datasets import DATASETS, load_dataset, splits_there
from retrieval.evaluation.evaluate import SEED, read_texts
from retrieval.evaluation.measures import measure
from retrieval.evaluation.pairs import Pairs, md5_of
from retrieval.evaluation.published import NLI, TABLES, TARGET, WEIGHTS, WHITEN_ALL, Row, Table
from retrieval.evaluation.results import EMBEDDINGS, Record, Results, changed, finished
from retrieval.evaluation.scoring import pair_cosines
from retrieval.index.embeddings import SHARD_ROWS, EmbeddingShards, EmbeddingsKey, key_of_folder
from retrieval.storage import atomic_file, tree_sha256
from retrieval.transforms.base import Transform
from retrieval.transforms.flow import Epoch, Flow
from retrieval.transforms.moments import Moments
from retrieval.transforms.spec import FLOW, NONE, TransformSpec, parse_transform
from retrieval.transforms.whitening import Whitening, rank_of
from retrieval.types import Progress

MEASURED = ("pearson", "spearman", "share", "auc")
"""What a record keeps of each split: see `measures`."""
FIT_SPLITS = ("train", "dev")
_ENCODER = "encoder.json"
_OF_FIT, _OF_NLI = "-fit", "-nli"
"""Of the folders with embeddings of other sentences than the set's."""
_TRANSFORMER_FILES = ("config.json", "modules.json")
_CHUNK_ROWS = 4096

Chunks = Callable[[], Iterator[NDArray[np.float32]]]


@dataclass(frozen=True)
class ReproduceOptions:
    """What is measured again, and with what.

    Parameters
    ----------
    data : the folder of the data sets.
    output : the folder of results, which is made, or gone on with.
    tables : names of TABLES.
    only : ids of rows or keys of WEIGHTS; empty: every row.
    models : row id or key of WEIGHTS -> folder, file, hub id or name, in place of the published weights.
    fit : what transforms that were fitted on the set itself are fitted on: `target`, dev, train, or a file.
    nli : a file with the sentences of MNLI and SNLI.
    download : whether the hub is asked for weights that are not here.
    fresh : whether finished rows are measured again.
    resamples : of the bootstrap; 0 for no intervals.
    """

    data: Path
    output: Path
    tables: tuple[str, ...] = tuple(TABLES)
    only: tuple[str, ...] = ()
    models: Mapping[str, str] = field(default_factory=dict)
    fit: str = TARGET
    nli: str | None = None
    download: bool = False
    fresh: bool = False
    resamples: int = 1000
    device: str = AUTO
    backend: str = AUTO
    precision: str = "float32"
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Splits:
    """The splits of a set that are there."""

    splits: dict[str, Pairs]
    measured: list[str]
    lacks: str
    """Why nothing can be measured, or empty."""

    @classmethod
    def read(cls, table: Table, folder: Path) -> Splits:
        name = table.dataset
        splits = {split: load_dataset(name, split, folder) for split in splits_there(name, folder)}
        measured = [split for split in table.splits if split in splits]
        lacks = ""
        if not measured:
            looked = ", ".join(form.file(split) for split in table.splits for form in DATASETS[name].forms)
            lacks = f"the data of {name} (one of {looked}, in '{folder}'), from {DATASETS[name].source}"
        return cls(splits, measured, lacks)

    @cached_property
    def texts(self) -> list[str]:
        """The distinct sentences of all splits."""
        return list(dict.fromkeys(text for pairs in self.splits.values() for text in pairs.texts))

    @cached_property
    def rows(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """By split: the rows of the first and of the second sentences in `texts`."""
        place = {text: row for row, text in enumerate(self.texts)}
        return {
            split: (np.array([place[text] for text in pairs.first]), np.array([place[text] for text in pairs.second]))
            for split, pairs in self.splits.items()
        }


class Job:
    """The rows that share their embeddings."""

    def __init__(
        self,
        table: Table,
        source: str,
        given: bool,
        data: Splits,
        options: ReproduceOptions,
        results: Results,
        progress: Progress,
    ) -> None:
        self.table, self.source, self.given, self.data = table, source, given, data
        self.options, self.results, self.progress = options, results, progress
        self.rows: list[Row] = []
        self.kept: list[Row] = []
        self.failed: dict[str, str] = {}
        self._encoder: Encoder | None = None

    def run(self) -> None:
        """Measure what is not finished; a failure ends this job alone, and is recorded."""
        todo = list(self.rows)
        try:
            sha256 = tree_sha256(self._weights())
            keys = {row.id: self._key(row, sha256) for row in todo}
            for row in self.rows:
                record = self.results.rows.get(row.id, {})
                if not finished(record) or self.options.fresh:
                    continue
                if different := changed(record["key"], keys[row.id]):
                    self.progress.note(f"{row.id}: measured again, for other {', '.join(different)} than before")
                else:
                    self.kept.append(row)
                    todo.remove(row)
            if todo:
                self._measure_rows(todo, keys, sha256)
        except RetrError as error:
            self._fail(todo, error)

    def _put(self, row: Row, record: Record) -> None:
        self.results.put(row.id, {**self.table.described(row), **record})

    def _fail(self, rows: Sequence[Row], error: RetrError) -> None:
        """Say and record why; figures of an earlier run stay."""
        self.progress.note(f"{', '.join(row.id for row in rows)}: {error}")
        for row in rows:
            self.failed[row.id] = str(error)
            if not finished(self.results.rows.get(row.id)):
                self._put(row, {"status": "failed", "error": str(error)})

    def _weights(self) -> Path:
        """Where the model lies; EncoderError where it is no model of these rows' kind."""
        wanted = WEIGHTS[self.rows[0].weights].kind
        path = find_model(self.source, self.progress.note)
        if (kind := model_kind(path)) != wanted:
            raise EncoderError(f"{self.source} is taken for {kind}, and {self.rows[0].id} wants {wanted}")
        if kind == "transformer" and not any((path / name).is_file() for name in _TRANSFORMER_FILES):
            raise EncoderError(f"{self.source} has no {_TRANSFORMER_FILES[0]}: expected a Hugging Face folder")
        return path

    @property
    def _settings(self) -> EncoderSettings:
        length = self.table.max_length if WEIGHTS[self.rows[0].weights].kind == "transformer" else None
        return resolve_settings(self.source, pooling=self.rows[0].pooling, max_length=length)

    def _backend(self) -> tuple[str, str]:
        """Backend and precision, which word vectors and ELMo have no choice of."""
        if WEIGHTS[self.rows[0].weights].kind != "transformer":
            return AUTO, AUTO
        return self.options.backend, self.options.precision

    def _key(self, row: Row, sha256: str) -> dict[str, Any]:
        """All that a row's figures depend on."""
        settings = {name: value for name, value in self._settings.to_json().items() if name != "source"}
        return {
            "weights": sha256,
            "settings": settings,
            "backend": list(self._backend()),
            "data": {split: pairs.md5 for split, pairs in self.data.splits.items()},
            "transform": row.transform,
            "fit": self._fit_key(row),
            "resamples": self.options.resamples,
        }

    def _fit_key(self, row: Row) -> Any:
        source = self._fit_source(row)
        if source in ("", TARGET, *FIT_SPLITS):
            return source
        return [md5_of(file.path) for file in find_files([source]) if file.path is not None]

    def _fit_source(self, row: Row) -> str:
        """TARGET, a split, or a file; empty for a row without a transform."""
        if row.fit == NLI:
            return self.options.nli or ""
        return self.options.fit if row.fit else ""

    def _measure_rows(self, todo: Sequence[Row], keys: Mapping[str, dict[str, Any]], sha256: str) -> None:
        place = self.results.folder / EMBEDDINGS / "-".join((self.table.name, *self._shared))
        if self.options.fresh:
            self._clear(place)
        started = time.monotonic()
        shards, encoder = self._encoded(place, self.data.texts, sha256)
        seconds = time.monotonic() - started
        embeddings = np.concatenate(list(shards.chunks()))
        if not embeddings.any():
            raise EncoderError(f"{self.source} knows nothing of the sentences of {self.table.dataset}")
        without = shards.counts()["without_vector"]
        if without:
            self.progress.note(f"{without:,} sentences of which {self.source} knows nothing: their cosine is 0")
        for row in todo:
            started = time.monotonic()
            try:
                transform, fitted_on = self._transform(row, embeddings, place, sha256)
                splits = self._measures(embeddings, transform)
            except RetrError as error:
                self._fail([row], error)
                continue
            record = {
                "status": "finished",
                "splits": splits,
                "fitted_on": fitted_on,
                "dimension": embeddings.shape[1] if transform is None else transform.m,
                "weights": {"source": self.source, "given": self.given, "sha256": sha256},
                "encoder": encoder,
                "without_vector": without,
                "seconds": {"encode": round(seconds, 1), "measure": round(time.monotonic() - started, 1)},
                "key": keys[row.id],
            }
            self._put(row, record)
            seconds = 0.0  # the rows after the first find the embeddings there
            last = splits[-1]
            shown = "undefined" if last["spearman"]["value"] is None else f"{100 * last['spearman']['value']:.2f}"
            self.progress.note(
                f"{row.id}: Spearman {shown} on {self.table.dataset} {last['name']} "
                f"({self.table.publisher}: {100 * row.spearman:.2f})"
            )
        self._encoder = None  # its memory, before the next is loaded
        sharing = [row for row in self.table.rows if (row.weights, row.pooling) == self._shared]
        if all(finished(self.results.rows.get(row.id)) for row in sharing):
            self._clear(place)

    def _clear(self, place: Path) -> None:
        for suffix in ("", _OF_FIT, _OF_NLI):
            shutil.rmtree(place.with_name(place.name + suffix), ignore_errors=True)

    @property
    def _shared(self) -> tuple[str, str]:
        return self.rows[0].weights, self.rows[0].pooling

    def _encoded(self, place: Path, texts: Sequence[str], sha256: str) -> tuple[EmbeddingShards, dict[str, Any]]:
        """The embeddings of texts, out of the shards that are there and encoded where they are not; and by what."""
        settings = self._settings
        made_by = json.dumps([sha256, settings.to_json() | {"source": ""}, self._backend()], sort_keys=True)
        key = EmbeddingsKey(
            hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
            len(texts),
            hashlib.sha256(made_by.encode()).hexdigest(),
            settings.to_json(),
            SHARD_ROWS,
        )
        shards = EmbeddingShards(place, key)
        before = key_of_folder(place)
        if before is not None and (changes := key.changes(before)):
            self.progress.note(f"encoding {place.name} anew: {'; '.join(changes)}")
            shutil.rmtree(place)
        missing = shards.missing()
        described = place / _ENCODER
        if not missing and described.exists():
            return shards, json.loads(described.read_text(encoding="utf-8"))
        if len(missing) < shards.count:
            self.progress.note(
                f"{place.name}: {shards.count - len(missing)} of {shards.count} shards are there already"
            )
        encoder = self._loaded()
        info = {
            "dimension": encoder.dimension,
            "backend": encoder.backend,
            "precision": encoder.precision,
            "fingerprint": encoder.fingerprint,
            **encoder.settings.to_json(),
        }
        waiting = sum(stop - start for start, stop in map(shards.bounds, missing))
        with self.progress.stage(f"encoding {place.name}", "texts", len(texts), len(texts) - waiting) as advance:
            for shard in missing:
                start, stop = shards.bounds(shard)
                counts = encoder.counts
                shards.write(
                    shard, encoder.encode(texts[start:stop], on_batch=advance), asdict(encoder.counts - counts)
                )
        with atomic_file(described) as file:
            file.write(json.dumps(info, ensure_ascii=False).encode())
        return shards, info

    def _loaded(self) -> Encoder:
        if self._encoder is None:
            self._encoder = load_to_build(
                self._settings,
                self.options.device,
                *self._backend(),
                self.progress.note,
                trust_remote_code=self.options.trust_remote_code,
            )
        return self._encoder

    def _transform(
        self, row: Row, embeddings: NDArray[np.float32], place: Path, sha256: str
    ) -> tuple[Transform | None, str | None]:
        """The row's transform, fitted, and on what; no label is read for it."""
        if row.transform == NONE:
            return None, None
        source = self._fit_source(row)
        if source in (TARGET, *FIT_SPLITS):
            splits = list(self.data.splits) if source == TARGET else [source]
            rows = np.concatenate([side for split in splits for side in self.data.rows[split]])

            def chunks() -> Iterator[NDArray[np.float32]]:
                for start in range(0, len(rows), _CHUNK_ROWS):
                    yield embeddings[rows[start : start + _CHUNK_ROWS]]

            named = (
                f"{len(rows):,} sentences of {self.table.dataset} {' + '.join(splits)}, as often as they stand there"
            )
            return self._fitted(row, chunks), named
        texts = read_texts(source)
        shards, _ = self._encoded(place.with_name(place.name + (_OF_NLI if row.fit == NLI else _OF_FIT)), texts, sha256)
        return self._fitted(row, shards.chunks), f"{len(texts):,} distinct sentences of {source}"

    def _fitted(self, row: Row, chunks: Chunks) -> Transform:
        if row.transform == FLOW:
            return self._fitted_flow(row, chunks)
        moments = None
        for chunk in chunks():
            moments = moments or Moments(chunk.shape[1])
            moments.update(chunk[chunk.any(axis=1)])
        assert moments is not None
        if row.transform == WHITEN_ALL:
            return Whitening.fit(moments, rank_of(moments))[0]
        spec = parse_transform(row.transform)
        assert isinstance(spec, TransformSpec)
        return Whitening.fit(moments, spec.m)[0]

    def _fitted_flow(self, row: Row, chunks: Chunks) -> Flow:
        with self.progress.stage(f"fitting {row.id}", "epochs", None) as advance:

            def tell(epoch: Epoch) -> None:
                advance(1)

            return Flow.fit((chunk[chunk.any(axis=1)] for chunk in chunks()), on_epoch=tell)

    def _measures(self, embeddings: NDArray[np.float32], transform: Transform | None) -> list[dict[str, Any]]:
        """One record a measured split, and where there are several, one of all of them together at the end."""
        measured: list[tuple[str, Floats, Floats]] = [
            (split, pair_cosines(embeddings, *self.data.rows[split], transform), self.data.splits[split].labels)
            for split in self.data.measured
        ]
        if len(measured) > 1:
            names, scores, labels = zip(*measured, strict=True)
            measured.append((" + ".join(names), np.concatenate(scores), np.concatenate(labels)))
        found = []
        for name, cosines, given in measured:
            values = measure(cosines, given, resamples=self.options.resamples, seed=SEED).values
            found.append({"name": name, "n": len(given), **{kind: asdict(values[kind]) for kind in MEASURED}})
        return found
