"""What a sentence encoder is trained to make small: SBERT's objectives, CoSENT, SimBERT's and SimCSE's softmax.

Sources: Reimers and Gurevych 2019, arXiv:1908.10084, section 3 (SBERT); Su 2020, kexue.fm/archives/7427 (SimBERT);
Gao et al. 2021, arXiv:2104.08821, eq. 1 (SimCSE); Su 2022, kexue.fm/archives/8847 (CoSENT).

Half-precision vectors are taken to float32 first, under autocast too; float32 and float64 stay what they are.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from retrieval.errors import UsageError


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Of each row of one with the same row of the other, (B, H) and (B, H) -> (B,); 0 where a row is zero."""
    _check_rows(first, second)
    return (_unit(first) * _unit(second)).sum(dim=-1)


def cosent(cosines: Tensor, labels: Tensor, scale: float = 20.0) -> Tensor:
    """log(1 + sum of exp(scale (cos_j - cos_i)) over all i, j with label_i > label_j): only the order of labels counts.

    0, with gradient 0, where no two labels differ.

    Parameters
    ----------
    cosines : shape (B,)
    labels : shape (B,); the larger, the more alike.
    scale : of the cosines; 1 / temperature.

    Source: Su 2022, kexue.fm/archives/8847.
    """
    if cosines.ndim != 1 or labels.shape != cosines.shape:
        raise UsageError(f"cosines {_shape(cosines)} and labels {_shape(labels)}: expected one label a cosine")
    scores = scale * _wide(cosines)
    differences = scores[None, :] - scores[:, None]  # (B, B): of row i and column j, score_j - score_i
    ordered = labels[:, None] > labels[None, :]
    terms = differences.masked_fill(~ordered, -torch.inf).flatten()
    return torch.cat([terms.new_zeros(1), terms]).logsumexp(dim=0)  # exp(0) is the 1


def in_batch_softmax(vectors: Tensor, scale: float = 30.0) -> Tensor:
    """Every sentence picks its partner out of all others of the batch, by cosine.

    The mean over the 2P rows of -log softmax(scale cos) at the partner, the row itself left out: each pair counts in
    both orders.

    Parameters
    ----------
    vectors : shape (2P, H)
        Rows 2i and 2i + 1 are a pair; P >= 2.

    Raises
    ------
    UsageError
        A row has no partner, or there is one pair only, which has nothing to be told from.

    Source: Su 2020, kexue.fm/archives/7427.
    """
    targets = partners(len(vectors), vectors.device)
    _check_batch(len(targets) // 2, "pairs")
    unit = _unit(vectors)
    with _exact(unit):
        scores = scale * (unit @ unit.T)  # (2P, H) -> (2P, 2P)
    itself = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    return functional.cross_entropy(scores.masked_fill(itself, -torch.inf), targets)


def in_batch_ranking(first: Tensor, second: Tensor, alike: Tensor, related: Tensor, scale: float = 50.0) -> Tensor:
    """Each sentence of a pair that belongs together picks its partner out of that side of the batch, by cosine.

    The mean over those pairs and both orders of -log softmax(scale cos) at the partner. The sentences of pairs that do
    not belong together are wrong answers like others. 0, with gradient 0, where no pair belongs together.

    Parameters
    ----------
    first, second : shape (B, H)
    alike : bool, shape (B,): the pairs that belong together.
    related : bool, shape (B, B): pairs that share a sentence, which are no wrong answers to each other.

    Source: Henderson et al. 2017, arXiv:1705.00652, section 4.4 (multiple negatives ranking).
    """
    _check_rows(first, second)
    one, other = _unit(first), _unit(second)
    with _exact(one):
        scores = scale * (one @ other.T)  # (B, H) -> (B, B)
    rows = torch.arange(len(scores), device=scores.device)
    others = related & (rows[:, None] != rows[None, :])
    terms = [
        functional.cross_entropy(side.masked_fill(others, -torch.inf), rows, reduction="none")
        for side in (scores, scores.T)
    ]
    return torch.where(alike, terms[0] + terms[1], 0).sum() / (2 * alike.sum()).clamp_min(1)


def partners(count: int, device: torch.device | None = None) -> Tensor:
    """The row of each row's partner: 1, 0, 3, 2, ...; int64, shape (count,). Raises UsageError where count is odd."""
    if count % 2:
        raise UsageError(f"{count} rows are no pairs: expected an even number, rows 2i and 2i + 1 a pair")
    return torch.arange(count, device=device) ^ 1


def simcse(first: Tensor, second: Tensor, scale: float = 20.0) -> Tensor:
    """Two passes over the same texts with other dropout: each row of the first picks its own among the second's.

    The mean over i of -log softmax over j of scale cos(first_i, second_j), at j = i.

    Parameters
    ----------
    first, second : shape (B, H), B >= 2
    scale : 1 / temperature; the paper's temperature is .05.

    Raises
    ------
    UsageError
        One text only, or not as many in one pass as in the other.

    Source: Gao et al. 2021, arXiv:2104.08821, eq. 1.
    """
    _check_rows(first, second)
    _check_batch(len(first), "texts")
    one, other = _unit(first), _unit(second)
    with _exact(one):
        scores = scale * (one @ other.T)  # (B, H) -> (B, B)
    return functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def cosine_regression(cosines: Tensor, scores: Tensor) -> Tensor:
    """Mean squared difference of cosines and gold scores, both (B,). Source: SBERT, section 3, regression objective."""
    if cosines.ndim != 1 or scores.shape != cosines.shape:
        raise UsageError(f"cosines {_shape(cosines)} and scores {_shape(scores)}: expected one score a cosine")
    wide = _wide(cosines)
    return functional.mse_loss(wide, scores.to(wide.dtype))


def triplet(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0) -> Tensor:
    """Mean of max(|a - p| - |a - n| + margin, 0), Euclidean, over rows (B, H). Source: SBERT, section 3."""
    _check_rows(anchor, positive)
    _check_rows(anchor, negative)
    middle = _wide(anchor)
    near = torch.linalg.vector_norm(middle - _wide(positive), dim=-1)  # its gradient at 0 is 0, not NaN
    far = torch.linalg.vector_norm(middle - _wide(negative), dim=-1)
    hinges: Tensor = (near - far + margin).clamp_min(0)
    return hinges.mean()


class NliHead(torch.nn.Module):
    """SBERT's classifier of two sentence vectors: W (u, v, |u - v|), W of shape (classes, 3 H), no bias.

    It serves training only: afterwards the vectors are compared by cosine. Source: SBERT, section 3, eq. 1.
    """

    def __init__(self, hidden: int, classes: int = 3) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3 * hidden, classes, bias=False)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """The logits, (B, H) and (B, H) -> (B, classes)."""
        _check_rows(u, v)
        one, other = _wide(u), _wide(v)
        with _exact(one):
            return functional.linear(torch.cat([one, other, (one - other).abs()], dim=-1), _wide(self.linear.weight))


def nli(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits (B, classes) at the gold classes, int64 (B,)."""
    return functional.cross_entropy(_wide(logits), labels)


def _wide(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def _unit(vectors: Tensor) -> Tensor:
    """Rows of unit length. A zero row has no direction: it stays zero, and its gradient is 0."""
    wide = _wide(vectors)
    lengths: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    zero = lengths == 0
    return (wide / lengths.masked_fill(zero, 1)).masked_fill(zero, 0)


def _exact(values: Tensor) -> torch.autocast:
    """Products in the values' own precision, where autocast would take them to half of it."""
    return torch.autocast(values.device.type, enabled=False)


def _check_rows(first: Tensor, second: Tensor) -> None:
    if first.ndim != 2 or first.shape != second.shape:
        raise UsageError(f"vectors {_shape(first)} and {_shape(second)}: expected the same rows and dimensions, (B, H)")


def _check_batch(count: int, what: str) -> None:
    if count < 2:
        raise UsageError(
            f"a batch of {count} has nothing to tell a text from: expected at least 2 {what}, which are each other's "
            "negatives; use a larger batch"
        )


def _shape(values: Tensor) -> str:
    return str(tuple(values.shape))
