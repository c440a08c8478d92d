"""What tells the label of a pair without its sense: how long its sentences are, and how they end.

Of LCQMC's dev pairs, those that are alike are longer (Spearman .28), and more of them end in punctuation (.22); an
encoder that learns this finds more of what is held out from the same file, and less elsewhere. So batches hold pairs of
one length (batches.py), and the final punctuation of a batch's texts is dealt out among them anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from retrieval.evaluation.correlation import spearman
from retrieval.training.examples import TextPairs

NOTED = 0.1
"""Spearman with the labels from which on a shortcut is told."""

_ENDS = " \u3000?!.,;:~…？！。，、；：．～"  # but no brackets, % or +, which belong to the sense


def shortcuts(pairs: TextPairs) -> list[str]:
    """A line for each thing but the sense that goes with the labels, by a Spearman correlation of .1 or more."""
    both = list(zip(pairs.first, pairs.second, strict=True))
    lengths = np.array([len(one) + len(other) for one, other in both], dtype=np.float64)
    ends = np.array([bool(end_of(one)) + bool(end_of(other)) for one, other in both], dtype=np.float64)
    found = []
    for what, values in (("longer sentences", lengths), ("final punctuation", ends)):
        if abs(rho := spearman(values, pairs.labels) or 0.0) >= NOTED:
            more = "more" if rho > 0 else "less"
            found.append(f"pairs with {what} are {more} often alike than others (Spearman {100 * rho:.0f})")
    return found


def end_of(text: str) -> str:
    """The marks and blanks that a sentence ends in; nothing where the text holds no more than them."""
    body = len(text.rstrip(_ENDS))
    return text[body:] if body else ""


def deal_ends(texts: Sequence[str]) -> list[str]:
    """The same texts with the ends of all of them dealt out among them, by torch's random numbers."""
    ends = [end_of(text) for text in texts]
    order = torch.randperm(len(texts)).tolist()
    return [text[: len(text) - len(end)] + ends[dealt] for text, end, dealt in zip(texts, ends, order, strict=True)]
