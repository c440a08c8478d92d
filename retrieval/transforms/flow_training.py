"""Fitting a flow: maximum likelihood with Adam, ended by the likelihood of vectors that were held out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from retrieval.transforms.flow import LARGEST_LOG_SCALE, Epoch, Flow, FlowFit, Weights, shapes

VECTORS_SEEN, MOST_EPOCHS = 2_000_000, 200
BATCH, LEARNING_RATE, LARGEST_GRADIENT = 256, 1e-3, 1.0
START_ROWS = 10_000
PATIENCE = 5
"""Epochs without a rise of the held-out likelihood that end it."""
NOISE = 0.01
"""Of a standard deviation, added to the vectors of each batch: rows in a subspace (a layer norm leaves one direction
empty) have no density, and without it a flow would stretch that direction for ever."""
_LEARNED = ("shift", "log_scale", "w1", "b1", "w2", "b2", "w3", "b3")


class FlowNetwork(torch.nn.Module):
    """`Flow` with gradients.

    Parameters
    ----------
    weights : of a flow; copied.
    """

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        tensors = {name: torch.tensor(weight) for name, weight in weights.items()}
        self.permutation = tensors.pop("permutation")
        self.learned = torch.nn.ParameterDict(tensors)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors (B, d) -> latents (B, d) and log |det| of the Jacobian at each (B,)."""
        # One unbind a tensor, not one index a step: the gradient of an index is as large as the whole.
        steps = zip(self.permutation, *(self.learned[name].unbind() for name in _LEARNED), strict=True)
        log_determinant = self.learned["log_scale"].sum().expand(len(x))
        half = x.shape[1] // 2
        for permutation, shift, scale, w1, b1, w2, b2, w3, b3 in steps:
            x = ((x + shift) * scale.exp())[:, permutation]
            known, changed = x[:, :half], x[:, half:]
            hidden = torch.addmm(b2, torch.addmm(b1, known, w1).relu(), w2).relu()
            raw, offset = torch.addmm(b3, hidden, w3).chunk(2, dim=1)
            log_scale = LARGEST_LOG_SCALE * torch.tanh(raw / LARGEST_LOG_SCALE)
            x = torch.cat([known, changed * log_scale.exp() + offset], dim=1)
            log_determinant = log_determinant + log_scale.sum(dim=1)
        return x, log_determinant

    def log_likelihood(self, x: torch.Tensor) -> torch.Tensor:
        """Vectors (B, d) -> log p of each, in nats (B,)."""
        latents, log_determinant = self(x)
        gaussian = -(latents.square().sum(dim=1) + x.shape[1] * math.log(2 * math.pi)) / 2
        return torch.as_tensor(gaussian + log_determinant)

    def weights(self) -> Weights:
        """A copy of the weights."""
        tensors = {**self.learned, "permutation": self.permutation}
        return {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}


def train(
    rows: NDArray[np.float32],
    seed: int,
    steps: int,
    width: int,
    epochs: int | None,
    on_epoch: Callable[[Epoch], None] | None,
) -> Flow:
    """See Flow.fit. `rows`: float32, shape (n, d), distinct."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(rows))
    held_out, fitted_on = torch.tensor(rows[order[: len(rows) // 10]]), order[len(rows) // 10 :]
    most = epochs if epochs is not None else min(MOST_EPOCHS, max(1, VECTORS_SEEN // len(fitted_on)))
    best = start_weights(rows[fitted_on[:START_ROWS]], steps, width, random)
    noise = NOISE * np.exp(-best["log_scale"][0])
    network = FlowNetwork(best)
    best_nats = start_nats = _nats(network, held_out)
    epoch = best_epoch = 0
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    while epoch < most and epoch - best_epoch < PATIENCE:
        epoch += 1
        random.shuffle(fitted_on)
        for batch in np.array_split(fitted_on, max(1, round(len(fitted_on) / BATCH))):
            noisy = rows[batch] + noise * random.standard_normal((len(batch), rows.shape[1]), dtype=np.float32)
            # A copy: torch aligns its memory, and the last bits of a product depend on that.
            loss = -network.log_likelihood(torch.tensor(noisy)).mean() / rows.shape[1]
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(network.parameters(), LARGEST_GRADIENT)
            optimizer.step()
        nats = _nats(network, held_out)
        if nats > best_nats:
            best, best_nats, best_epoch = network.weights(), nats, epoch
        if on_epoch is not None:
            on_epoch(Epoch(epoch, most, nats))
    return Flow(best, FlowFit(len(rows), seed, epoch, best_epoch, start_nats, best_nats))


def start_weights(rows: NDArray[np.float32], steps: int, width: int, random: np.random.Generator) -> Weights:
    """A flow that standardises `rows`, and else only permutes their dimensions.

    Glow initialises each actnorm so that its output has mean 0 and deviation 1, and each coupling to the identity:
    behind the first actnorm, nothing is left for the others to do.
    """
    dimension = rows.shape[1]
    weights: dict[str, NDArray[Any]] = {
        name: np.zeros(shape, dtype=np.float32) for name, shape in shapes(steps, dimension, width).items()
    }
    for name in ("w1", "w2"):  # He et al. 2015, arXiv:1502.01852, eq. 10
        shape = weights[name].shape
        weights[name] = random.standard_normal(shape, dtype=np.float32) * np.float32((2 / shape[1]) ** 0.5)
    mean, deviation = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
    # A dimension that is constant has no scale of its own.
    deviation = np.where(deviation > 1e-6 * deviation.max(), deviation, deviation.max())
    weights["shift"][0], weights["log_scale"][0] = -mean, -np.log(deviation)
    # Every second permutation brings forward what was changed last, so that no dimension is left unchanged.
    swap = np.roll(np.arange(dimension), -(dimension // 2))
    weights["permutation"] = np.stack([swap if step % 2 else random.permutation(dimension) for step in range(steps)])
    return weights


def _nats(network: FlowNetwork, held_out: torch.Tensor) -> float:
    """Mean log-likelihood of the held-out vectors, in nats a dimension."""
    with torch.no_grad():
        return float(network.log_likelihood(held_out).mean()) / held_out.shape[1]
