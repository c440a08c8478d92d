"""More documents for an index: new ids are added, known ones replaced, and only new texts encoded.

The rows that are added make a part of their own, `added/NNNNNN`, so that ten rows for a million write little more than
the vectors anew. A part no larger than what is added joins it: there are never more parts than bits in the number of
rows.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval import __version__
from retrieval.corpus.reader import Corpus, CorpusOptions
from retrieval.encoders.base import Encoder, EncoderCounts, EncoderSettings
from retrieval.errors import UsageError
from retrieval.index import folder as layout
from retrieval.index.documents import Documents, DocumentsWriter, write_documents
from retrieval.index.embeddings import Embeddings, EmbeddingShards, EmbeddingsKey
from retrieval.index.vectors import VectorIndex
from retrieval.index.withheld import Withheld
from retrieval.pipeline.drift import Drift
from retrieval.pipeline.encoding import Known, encode_documents, tell_counts
from retrieval.pipeline.staging import ADD, Stages, commit, how_made, link_files, resolved, staged
from retrieval.pipeline.standing import Standing, count_distinct
from retrieval.transforms.apply import unit_vectors
from retrieval.types import NoProgress, Progress

_INCOMING = "incoming.arrow"
_COMPARED_ROWS = 2048
_LONGEST_NUMBER = 18  # digits


@dataclass(frozen=True)
class Addition:
    """What an addition did."""

    manifest: layout.Manifest
    added: int
    """Documents with new ids."""
    replaced: int
    """Documents whose id was there, with another text or other columns."""
    unchanged: int
    """Documents that were there just so, and were left alone."""
    encoded: int
    """Distinct texts that the index had never held."""


def add_documents(
    index: Path,
    sources: Sequence[Any],
    options: CorpusOptions,
    load: Callable[[], Encoder],
    *,
    progress: Progress | None = None,
) -> Addition:
    """Add documents to an index, or replace those of the same ids.

    Parameters
    ----------
    index : the folder; it answers as it was until the addition takes its name.
    sources : as for `Corpus`.
    options : how they are read; the columns are the index's own unless they are named.
    load : gives the index's own encoder; called where a text is new to the index.

    Raises
    ------
    RetrError
        Of the kind that tells what is wrong; the index is untouched, and finished shards are kept.
    """
    if options.keep or options.sample:
        raise UsageError("an addition keeps the columns that the index keeps, and takes all documents")
    standing = layout.read_manifest(index)
    index, progress = resolved(index), progress or NoProgress()
    options = replace(
        options,
        text_column=options.text_column or standing.documents["text_column"],
        id_column=options.id_column or standing.documents["id_column"],
        keep=tuple(standing.documents["fields"]),
    )
    corpus = Corpus(sources, options)
    with staged(index, ADD, progress) as folder:
        return _Adding(Standing.open(index), folder, corpus, load, progress).run()


class _Adding:
    """One addition, stage by stage, in `folder`."""

    def __init__(
        self, standing: Standing, folder: Path, corpus: Corpus, load: Callable[[], Encoder], progress: Progress
    ) -> None:
        self.standing, self.folder, self.corpus, self.load, self.progress = standing, folder, corpus, load, progress
        self.stages = Stages()
        self.vectors = 0

    def run(self) -> Addition:
        manifest, documents = self.standing.manifest, self.standing.documents
        with self.stages.timed("read"):
            incoming = self._read()
            same, replaced = self._compare(incoming)
        added = len(incoming) - int(same.sum()) - len(replaced)
        if same.all():
            return Addition(manifest, 0, 0, len(incoming), 0)
        embeddings = self.standing.embeddings()
        joined = self._parts_to_join(embeddings, len(incoming) - int(same.sum()))
        first = len(documents) - sum(part.key.rows for part in joined)
        name = self._next_name()
        part = self.folder / layout.ADDED / name
        self._clear(keep=part / layout.EMBEDDINGS)
        part.mkdir(parents=True, exist_ok=True)
        with DocumentsWriter(part / layout.DOCUMENTS) as writer:
            for batch in documents.batches(first):
                writer.write(batch)
            for batch in incoming.batches(0, same):
                writer.write(batch)
        (self.folder / _INCOMING).unlink()
        with self.stages.timed("encode"):
            shards, encoded = self._encode(part, writer, embeddings, joined)
        with self.stages.timed("index"):
            unknown, drift = self._index(shards, len(documents) - first)
        withheld = self.standing.withheld.grown(unknown)
        withheld.deleted[replaced] = True
        if withheld.any():
            withheld.save(self.folder / layout.WITHHELD)
        kept_parts = manifest.documents["added"][: len(manifest.documents["added"]) - len(joined)]
        manifest = self._manifest([*kept_parts, name], withheld, drift)
        commit(self.folder, self.standing.folder, manifest)
        return Addition(manifest, added, len(replaced), int(same.sum()), encoded)

    def _read(self) -> Documents:
        """The documents to come, all of them, in a file of their own."""
        self.corpus.schema = self.standing.documents.schema
        self.corpus.first_number = self.standing.manifest.documents["next_id"]
        with self.progress.stage("reading", "rows", None) as advance:

            def batches() -> Any:
                for batch in self.corpus.batches():
                    yield batch
                    advance(batch.num_rows)

            write_documents(batches(), self.folder / _INCOMING)
        if self.corpus.skipped:
            self.progress.note(f"blank texts skipped: {self.corpus.skipped:,}")
        return Documents(self.folder / _INCOMING)

    def _compare(self, incoming: Documents) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which of those to come are there just so, bool, (n,), and the rows that the others replace."""
        documents, deleted = self.standing.documents, self.standing.withheld.deleted
        rows, places = documents.find("id", incoming.table(["id"])["id"])
        rows, places = rows[~deleted[rows]], places[~deleted[rows]]
        same = np.zeros(len(incoming), dtype=bool)
        for start in range(0, len(rows), _COMPARED_ROWS):
            block = slice(start, start + _COMPARED_ROWS)
            there, here = documents.take(rows[block].tolist()), incoming.take(places[block].tolist())
            same[places[block]] = [one == other for one, other in zip(there, here, strict=True)]
        return same, rows[~same[places]]

    def _parts_to_join(self, embeddings: Embeddings, rows: int) -> list[EmbeddingShards]:
        """The last parts, the built one excepted, that are no larger than what comes after them."""
        joined: list[EmbeddingShards] = []
        for part in reversed(embeddings.parts[1:]):
            if part.key.rows > rows:
                break
            joined.insert(0, part)
            rows += part.key.rows
        return joined

    def _next_name(self) -> str:
        return f"{int(max(self.standing.manifest.documents['added'], default='0')) + 1:06d}"

    def _clear(self, keep: Path) -> None:
        """Leave nothing of an earlier addition but its embeddings, which say themselves what they are."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if keep in (path, *path.parents) or path in keep.parents or path.name == _INCOMING:
                continue
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()

    def _encode(
        self, part: Path, writer: DocumentsWriter, embeddings: Embeddings, joined: Sequence[EmbeddingShards]
    ) -> tuple[EmbeddingShards, int]:
        """The embeddings of the new part; texts that any row of the index holds, or held, are not encoded again."""
        documents, encoder = Documents(part / layout.DOCUMENTS), self.standing.manifest.encoder
        first_rows = writer.first_rows()
        rows, places = self.standing.documents.find("text", documents.table(["text"])["text"])
        known = np.full(len(documents), -1, dtype=np.int64)
        known[first_rows[places]] = rows
        known = known[first_rows]
        settings = {name: encoder.get(name, "") for name in EncoderSettings.__dataclass_fields__}
        key = EmbeddingsKey(
            writer.texts_sha256(), len(documents), encoder["fingerprint"], settings, embeddings.parts[0].key.shard_rows
        )
        shards = EmbeddingShards(part / layout.EMBEDDINGS, key)
        if shards.folder.exists() and len(shards.missing()) == shards.count:
            shutil.rmtree(shards.folder)  # of another addition
        counts: Counter[str] = Counter()
        for each in joined:
            counts.update(each.counts())
        encode_documents(
            self.load,
            documents,
            first_rows,
            shards,
            self.progress,
            encoder["dimension"],
            Known(known, embeddings, counts),
        )
        new = EncoderCounts(**(Counter(shards.counts()) - counts)) if shards.count else EncoderCounts()
        tell_counts(new, encoder["max_length"], self.progress)
        return shards, int(((first_rows == np.arange(len(first_rows))) & (known < 0)).sum())

    def _index(self, shards: EmbeddingShards, skipped: int) -> tuple[NDArray[np.bool_], Drift]:
        """Add the vectors of a part's rows but the first ones; which of them are of zeros, and how they drift."""
        standing = self.standing
        vectors = VectorIndex.load(standing.folder / layout.VECTORS, mmap=False)
        # Rows of zeros at the end leave no trace in a file that numbers its rows.
        vectors.add(np.zeros((len(standing.documents) - vectors.rows, vectors.dimension), dtype=np.float32))
        transform, drift = standing.transform(), Drift.of(standing)
        unknown = []
        with self.progress.stage("indexing", "vectors", shards.key.rows - skipped) as advance:
            for chunk in shards.chunks():
                new, skipped = chunk[skipped:], max(0, skipped - len(chunk))
                before = len(vectors)
                vectors.add(unit_vectors(new, transform))
                held = len(vectors) - before == len(new)  # zeros too: this index does not number its rows
                unknown.append(~new.any(axis=1) & held)
                drift.update(new[new.any(axis=1)])
                advance(len(new))
        vectors.save(self.folder / layout.VECTORS)
        for alarm in drift.alarms():
            self.progress.note(f"warning: {alarm}")
        drift.save(self.folder)
        self.vectors = len(vectors)
        return np.concatenate(unknown), drift

    def _manifest(self, parts: list[str], withheld: Withheld, drift: Drift) -> layout.Manifest:
        standing, corpus = self.standing, self.corpus
        old, index = standing.manifest, standing.folder
        gone = {f"{layout.ADDED}/{name}" for name in set(old.documents["added"]) - set(parts)}
        linked = [
            name
            for name in old.files
            if not (self.folder / name).exists() and "/".join(Path(name).parts[:2]) not in gone
        ]
        link_files(index, self.folder, linked)
        folders = [self.folder, *(self.folder / layout.ADDED / name for name in parts)]
        documents = Documents(*(folder / layout.DOCUMENTS for folder in folders))
        deleted = int(withheld.deleted.sum())
        numbers = (
            [corpus.first_number + corpus.rows - 1] if corpus.options.id_column is None else self._numbers(documents)
        )
        counts = Embeddings([folder / layout.EMBEDDINGS for folder in folders]).counts()
        return layout.Manifest(
            created=datetime.now(UTC).isoformat(timespec="microseconds"),
            retr_version=__version__,
            documents={
                **old.documents,
                "count": len(documents) - deleted,
                "deleted": deleted,
                "distinct_texts": count_distinct(documents, withheld.deleted),
                "added": parts,
                "next_id": max(old.documents["next_id"], *(number + 1 for number in numbers)),
                "rows_read": old.documents["rows_read"] + corpus.rows,
                "skipped": old.documents["skipped"] + corpus.skipped,
                **counts,
                "sources": _sources(old.documents["sources"], corpus),
            },
            encoder=old.encoder,
            transform={**old.transform, **drift.to_json()},
            index={**old.index, "vectors": self.vectors},
            build=how_made(ADD, self.stages),
            files=layout.list_files(self.folder, {name: old.files[name] for name in linked}),
        )

    def _numbers(self, documents: Documents) -> list[int]:
        """Ids that are numbers: none that comes by itself later may be one of them."""
        rows = range(len(self.standing.documents), len(documents))
        ids = documents.table(["id"])["id"].slice(rows.start).to_pylist()
        return [int(id) for id in ids if id.isascii() and id.isdigit() and len(id) <= _LONGEST_NUMBER] or [-1]


def _sources(before: list[dict[str, Any]], corpus: Corpus) -> list[dict[str, Any]]:
    """Every file once, with the size that it had when it was read last."""
    named = {source["name"]: source for source in before}
    for file in corpus.files:
        named[file.name] = {"name": file.name, "bytes": file.size}
    return list(named.values())
