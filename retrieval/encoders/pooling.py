"""Token states -> one vector a text: (B, T, H) and a mask -> (B, H).

Hidden state 0 is the output of the embedding layer and L that of the last of L layers, as transformers returns them:

- `cls`: the first token of state L.
- `last-avg`: the average over tokens of state L.
- `last2-avg`: the average over tokens of (state L-1 + state L) / 2.
- `first-last-avg`: the average over tokens of (state 1 + state L) / 2. State 1 is the output of the first layer. Some
  code takes state 0 for "first"; this is the reading of Su et al. 2021 (arXiv:2103.15316) and of the BERT-flow paper.
- `layers-I,J,...`: the average over tokens of the average of these states, by number from 0.
- `pooler`: the checkpoint's own dense layer and tanh over the first token of state L.
- `max`: the maximum over tokens of state L. `last-token`: the last token of state L.
- `sqrt-avg`, `weighted-avg`: sentence-transformers' mean_sqrt_len_tokens and weightedmean (Muennighoff 2022,
  arXiv:2202.08904): the sum over the root of the token count, and the average with weights 1, 2, 3, ...
- `sentence-transformers`: what the modules.json of the model's folder says.
- `A+B+...`: the vectors of several poolings side by side, from one pass over the model.

Every average is over the tokens that the attention mask keeps, special tokens included, so that padding never counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from retrieval.errors import UsageError

if TYPE_CHECKING:
    import torch

OWN_MODULES = "sentence-transformers"
POOLINGS = (
    "cls",
    "last-avg",
    "last2-avg",
    "first-last-avg",
    "pooler",
    "max",
    "last-token",
    "sqrt-avg",
    "weighted-avg",
    OWN_MODULES,
)

OTHER_POOLINGS = ("average", "use", "fusion")
"""Of encoders that have no choice: word2vec and ELMo, USE, and fusions."""

_AVERAGED_STATES = {"last2-avg": (-2, -1), "first-last-avg": (1, -1)}
_LAYERS = re.compile(r"layers-(\d+(?:,\d+)*)")


def check_pooling(pooling: str) -> str:
    """The pooling itself; UsageError where there is none of that name."""
    parts = pooling_parts(pooling)
    for part in parts if len(parts) > 1 else ():
        if check_pooling(part) in (OWN_MODULES, *OTHER_POOLINGS) or parts.count(part) > 1:
            again = " a second time" if parts.count(part) > 1 else ""
            raise UsageError(f"pooling {pooling!r}: {part!r} cannot stand beside others{again}")
    if len(parts) == 1 and pooling not in (*POOLINGS, *OTHER_POOLINGS) and not _LAYERS.fullmatch(pooling):
        raise UsageError(
            f"unknown pooling {pooling!r}: expected one of {', '.join(POOLINGS)}, or layers by number as in layers-0,12"
        )
    return pooling


def pooling_parts(pooling: str) -> tuple[str, ...]:
    """The poolings whose vectors stand side by side: one, but for `A+B`."""
    return tuple(pooling.split("+"))


def averaged_states(pooling: str) -> tuple[int, ...] | None:
    """The hidden states that are averaged, by number; None where only the last state is read."""
    if len(parts := pooling_parts(pooling)) > 1:
        found = [averaged_states(part) for part in parts]
        return tuple(number for states in found for number in states or (-1,)) if any(found) else None
    if match := _LAYERS.fullmatch(pooling):
        return tuple(int(number) for number in match[1].split(","))
    return _AVERAGED_STATES.get(pooling)


def pool(
    states: Sequence[torch.Tensor], mask: torch.Tensor, pooling: str, pooler: torch.Tensor | None = None
) -> torch.Tensor:
    """One vector a text.

    Parameters
    ----------
    states : float tensors, shape (B, T, H) each
        Hidden states 0 to L; only the last where `averaged_states` is None.
    mask : int tensor, shape (B, T)
        1 where a token counts, 0 where it is padding, on either side.
    pooling : one of POOLINGS but `sentence-transformers`, or `layers-...`; not several
    pooler : float tensor, shape (B, H)
        The pooler's output, for the pooling of that name.

    Returns
    -------
    float tensor, shape (B, H)
    """
    import torch

    last = states[-1]
    places = torch.arange(mask.shape[1], device=mask.device)
    if check_pooling(pooling) == "cls":
        return _token(last, mask.int().argmax(1))
    if pooling == "last-token":
        return _token(last, (mask * places).argmax(1))
    if pooling == "pooler":
        if pooler is None:
            raise UsageError("pooling 'pooler' needs a model with a pooler")
        return pooler
    if pooling == "max":
        return last.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(1)
    chosen = averaged_states(pooling)
    mean = last if chosen is None else torch.stack([states[number] for number in chosen]).mean(0)
    weights = mask.unsqueeze(-1).to(mean.dtype)  # (B, T, 1)
    if pooling == "weighted-avg":
        weights = weights * mask.cumsum(1).unsqueeze(-1).to(mean.dtype)
    total, count = (mean * weights).sum(1), weights.sum(1).clamp(min=1)  # (B, T, H) -> (B, H)
    return total / (count.sqrt() if pooling == "sqrt-avg" else count)


def _token(state: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """(B, T, H) and a place a text -> (B, H)."""
    return state.gather(1, place.view(-1, 1, 1).expand(-1, 1, state.shape[2])).squeeze(1)
