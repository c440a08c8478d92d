"""Raw embeddings of sentences in the user's cache: encoded once, gone on with after a crash, and read by later sweeps.

One folder of shards for each list of texts and each pooling, named by what they were made from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import Encoder
from retrieval.index.embeddings import SHARD_ROWS, EmbeddingShards, EmbeddingsKey
from retrieval.storage import cache_directory
from retrieval.types import Progress

Stored = list[EmbeddingShards]


def stored_embeddings(
    encoder: Encoder,
    poolings: Sequence[str],
    wanted: Sequence[str],
    groups: Sequence[Sequence[str]],
    progress: Progress,
) -> dict[str, Stored]:
    """Encode what is not in the cache.

    Parameters
    ----------
    encoder : its vectors are those of `poolings` side by side, of one width.
    wanted : the poolings that are kept, of these.
    groups : texts, each once in all groups together; each group is kept by itself, so that it serves other sweeps.

    Returns
    -------
    For each wanted pooling the shards, a group each: `read` makes an array of them.

    Raises
    ------
    OSError
        The cache cannot be written.
    """
    stored = {pooling: [_shards(encoder, poolings, pooling, group) for group in groups] for pooling in wanted}
    missing = [
        sorted({shard for pooling in wanted for shard in stored[pooling][place].missing()})
        for place in range(len(groups))
    ]
    total = sum(len(group) for group in groups)
    bounds = [
        [stored[wanted[0]][place].bounds(shard) for shard in shards] if wanted else []
        for place, shards in enumerate(missing)
    ]
    waiting = sum(stop - start for group in bounds for start, stop in group)
    if waiting < total:
        progress.note(f"in the cache: {total - waiting:,} of {total:,} sentences, encoded by the same encoder")
    width = encoder.dimension // len(poolings)
    with progress.stage("encoding", "sentences", total, total - waiting) as advance:
        for place, group in enumerate(groups):
            for shard, (start, stop) in zip(missing[place], bounds[place], strict=True):
                before = encoder.counts
                embeddings = encoder.encode(list(group[start:stop]), kind="document", on_batch=advance)
                counts = asdict(encoder.counts - before)
                for pooling in wanted:
                    column = poolings.index(pooling) * width
                    stored[pooling][place].write(shard, embeddings[:, column : column + width], counts)
    return stored


def read(stored: Stored) -> NDArray[np.float32]:
    """All groups one below the other: float32, shape (n, d)."""
    return np.concatenate([chunk for shards in stored for chunk in shards.chunks()])


def sweeps_folder() -> Path:
    """Where they are kept."""
    return cache_directory() / "sweeps"


def folder_bytes(folder: Path) -> int:
    """Of all files below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _shards(encoder: Encoder, poolings: Sequence[str], pooling: str, texts: Sequence[str]) -> EmbeddingShards:
    whole = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        whole.update(len(content).to_bytes(8, "little") + content)
    made_by = encoder.fingerprint if len(poolings) == 1 else f"{encoder.fingerprint} {pooling}"
    fingerprint = hashlib.sha256(made_by.encode()).hexdigest()
    settings = {**encoder.settings.to_json(), "pooling": pooling}
    name = hashlib.sha256(f"{fingerprint} {whole.hexdigest()}".encode()).hexdigest()[:32]
    key = EmbeddingsKey(whole.hexdigest(), len(texts), fingerprint, settings, SHARD_ROWS)
    return EmbeddingShards(sweeps_folder() / name, key)
