"""Documents -> shards of raw embeddings. Each distinct text is encoded once, and none that was encoded before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import Encoder, EncoderCounts
from retrieval.index.documents import Documents
from retrieval.index.embeddings import Embeddings, EmbeddingShards
from retrieval.transforms.base import check_finite
from retrieval.types import Progress

UNKNOWN_ALARM = 0.2


@dataclass(frozen=True)
class Known:
    """Embeddings that are there already.

    Parameters
    ----------
    rows : int64, shape (n,)
        For each document a row of `embeddings` whose text is the same, or -1.
    counts : what the encoder met when it made them, where that is not told elsewhere.
    """

    rows: NDArray[np.int64]
    embeddings: Embeddings
    counts: Counter[str]


def encode_documents(
    load: Callable[[], Encoder],
    documents: Documents,
    first_rows: NDArray[np.int64],
    shards: EmbeddingShards,
    progress: Progress,
    dimension: int,
    known: Known | None = None,
) -> int:
    """Write the missing shards.

    Parameters
    ----------
    load : gives the encoder, always the same; not called where nothing is to be encoded.
    first_rows : int64, shape (n,)
        For each document the first one with the same text: where that text is encoded.

    Returns
    -------
    how many shards were there already.

    Raises
    ------
    TransformError
        The encoder gave NaN or infinity; the row is named.
    """
    missing = shards.missing()
    reused = shards.count - len(missing)
    if damaged := shards.damaged(missing):
        progress.note(f"damaged embeddings are made again: {', '.join(damaged[:5])} ({len(damaged)} in all)")
    known_rows = known.rows if known is not None else np.full(len(first_rows), -1, dtype=np.int64)
    is_own = (first_rows == np.arange(len(first_rows))) & (known_rows < 0)
    waiting = sum(int(is_own[slice(*shards.bounds(shard))].sum()) for shard in missing)
    total = int(is_own.sum())
    if reused and waiting:
        progress.note(f"going on: {total - waiting:,} of {total:,} distinct texts are encoded already")
    elif reused:
        progress.note(f"all {total:,} distinct texts are encoded already, by the same encoder")
    with progress.stage("encoding", "texts", total, total - waiting) as advance:
        for shard in missing:
            start, stop = shards.bounds(shard)
            embeddings = np.empty((stop - start, dimension), dtype=np.float32)
            counts = Counter(asdict(EncoderCounts()))
            if is_own[start:stop].any():
                encoder = load()
                before = encoder.counts
                for first, texts in documents.texts(start, stop):
                    own = np.flatnonzero(is_own[first : first + len(texts)])
                    embeddings[first - start + own] = encoder.encode([texts[i] for i in own], on_batch=advance)
                counts.update(asdict(encoder.counts - before))
            if known is not None:
                there = np.flatnonzero(known_rows[start:stop] >= 0)
                embeddings[there] = known.embeddings.take(known_rows[start + there])
                counts.update(known.counts if shard == 0 else {})
            for row in np.flatnonzero(~is_own[start:stop] & (known_rows[start:stop] < 0)):
                source = int(first_rows[start + row])
                if source >= start:
                    embeddings[row] = embeddings[source - start]
                else:
                    embeddings[row] = shards.read(source // shards.key.shard_rows)[source % shards.key.shard_rows]
            check_finite(embeddings, start)
            shards.write(shard, embeddings, counts)
    return reused


def tell_counts(counts: EncoderCounts, max_length: int, progress: Progress) -> None:
    """Say what the encoder met that the user should know of."""
    if counts.truncated:
        progress.note(
            f"texts longer than {max_length} tokens: {counts.truncated:,}; what is beyond does not count (--max-length)"
        )
    if counts.without_vector:
        progress.note(f"texts of which the model knows nothing: {counts.without_vector:,}; they are never a hit")
    if counts.unknown > UNKNOWN_ALARM * counts.tokens:
        progress.note(
            f"warning: {counts.unknown / counts.tokens:.1%} of the tokens are unknown to the model: "
            f"it was made for other texts; choose another with --model"
        )
