"""Texts in parts that fit in memory, and tokens in batches with little padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

BATCH_TOKENS = 1024
"""Tokens of a batch, padding included: small enough for a CPU's caches, large enough for its matrix units."""

GPU_BATCH_TOKENS = 32 * BATCH_TOKENS
"""The same on a GPU, which a batch for a CPU would keep waiting; a hidden state of 768 then takes 96 MiB in float32."""

_PART_CHARACTERS = 1 << 18


def parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Texts in parts of some 256 Ki characters: a tokenizer holds on to what it cuts off of a part's texts."""
    start = characters = 0
    for place, text in enumerate(texts):
        characters += len(text)
        if characters > _PART_CHARACTERS:
            yield texts[start : place + 1]
            start, characters = place + 1, 0
    if start < len(texts):
        yield texts[start:]


def batches(lengths: Sequence[int], tokens: int = BATCH_TOKENS) -> Iterator[NDArray[np.int64]]:
    """Rows, longest texts first (so that memory peaks at once, not in hour two), in batches of so many tokens."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    start = 0
    while start < len(order):
        size = max(1, tokens // max(1, lengths[order[start]]))
        yield order[start : start + size]
        start += size
