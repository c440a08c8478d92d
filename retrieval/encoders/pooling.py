"""Token states -> one vector a text: (B, T, H) and a mask -> (B, H).

Hidden state 0 is the output of the embedding layer and L that of the last of L layers, as transformers returns them:

- `cls`: the first token of state L.
- `last-avg`: the average over tokens of state L.
- `last2-avg`: the average over tokens of (state L-1 + state L) / 2.
- `first-last-avg`: the average over tokens of (state 1 + state L) / 2. State 1 is the output of the first layer. Some
  code takes state 0 for "first"; this is the reading of Su et al. 2021 (arXiv:2103.15316) and of the BERT-flow paper.

Every average is over the tokens that the attention mask keeps, special tokens included, so that padding never counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from retrieval.errors import UsageError

if TYPE_CHECKING:
    import torch

POOLINGS = ("cls", "last-avg", "last2-avg", "first-last-avg")

_AVERAGED_STATES = {"last-avg": (-1,), "last2-avg": (-2, -1), "first-last-avg": (1, -1)}


def check_pooling(pooling: str) -> str:
    """The pooling itself; UsageError where there is none of that name."""
    if pooling not in POOLINGS:
        raise UsageError(f"unknown pooling {pooling!r}: expected one of {', '.join(POOLINGS)}")
    return pooling


def needs_all_states(pooling: str) -> bool:
    """Whether the pooling reads more than the last state."""
    return pooling in ("last2-avg", "first-last-avg")


def pool(states: Sequence[torch.Tensor], mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """One vector a text.

    Parameters
    ----------
    states : float tensors, shape (B, T, H) each
        Hidden states 0 to L; only the last where `needs_all_states` is false.
    mask : int tensor, shape (B, T)
        1 where a token counts, 0 where it is padding, on the right.
    pooling : one of POOLINGS

    Returns
    -------
    float tensor, shape (B, H)
    """
    if check_pooling(pooling) == "cls":
        return states[-1][:, 0]
    chosen = [states[i] for i in _AVERAGED_STATES[pooling]]
    mean = chosen[0] if len(chosen) == 1 else (chosen[0] + chosen[1]) / 2
    weights = mask.unsqueeze(-1).to(mean.dtype)  # (B, T, 1)
    return (mean * weights).sum(1) / weights.sum(1).clamp(min=1)  # (B, T, H) -> (B, H)
