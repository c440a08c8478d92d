"""BERT-flow: an invertible map of sentence vectors to a standard Gaussian, fitted by maximum likelihood.

Li et al. 2020, arXiv:2011.05864; its steps are those of Glow (Kingma and Dhariwal 2018, arXiv:1807.03039, table 1):
actnorm, a permutation in place of the invertible 1x1 convolution, an affine coupling. torch fits it, in
`flow_training`; the fitted flow is plain numpy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import TransformError
from retrieval.storage import atomic_file
from retrieval.transforms.base import check_shape
from retrieval.transforms.sampling import distinct_rows, sample_rows

KIND = "flow"
Weights = Mapping[str, NDArray[Any]]
"""Of a flow, by name: see Flow."""
STEPS, WIDTH = 8, 256
MOST_ROWS = 100_000
"""A flow is fitted on at most so many rows, drawn evenly from all: 150 MB of them at 384 dimensions."""
LEAST_ROWS = 100
"""Distinct ones. With fewer, the tenth that is held out cannot say when to stop."""
LARGEST_LOG_SCALE = 2.0
"""One coupling scales by e^-2 to e^2: the inverse stays as exact as float32 is."""
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class FlowFit:
    """How a flow was fitted.

    Parameters
    ----------
    rows : distinct vectors seen, the tenth that was held out among them.
    epochs : passes over the other nine tenths; `best_epoch` is the one whose weights were kept.
    start_nats, held_out_nats : mean log-likelihood of the held-out vectors, in nats a dimension, of a Gaussian without
        correlations (the flow as it starts) and of the flow.
    """

    rows: int
    seed: int
    epochs: int
    best_epoch: int
    start_nats: float
    held_out_nats: float


@dataclass(frozen=True)
class Epoch:
    """What `Flow.fit` tells after each pass.

    Parameters
    ----------
    number : from 1, of at most `most`.
    held_out_nats : mean log-likelihood of the held-out vectors, in nats a dimension.
    """

    number: int
    most: int
    held_out_nats: float


@dataclass(frozen=True)
class Flow:
    """A fitted flow of K steps, h = d // 2 dimensions conditioning the other d - h, networks of width w.

    Parameters
    ----------
    weights : by name, float32 but for `permutation`, each with one slice a step:
        shift, log_scale (K, d) and permutation, int64, (K, d): y = ((x + shift) exp(log_scale))[permutation];
        w1 (K, h, w), b1 (K, w), w2 (K, w, w), b2 (K, w), w3 (K, w, 2 (d - h)), b3 (K, 2 (d - h)): a network with two
        hidden layers of ReLU that gives the log-scales and shifts of y[h:] out of y[:h].
    fitted : how the weights were found.
    """

    weights: Weights
    fitted: FlowFit

    @classmethod
    def fit(
        cls,
        embeddings: NDArray[np.float32] | Iterable[NDArray[np.float32]],
        *,
        seed: int = 0,
        steps: int = STEPS,
        width: int = WIDTH,
        rows: int = MOST_ROWS,
        epochs: int | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
    ) -> Flow:
        """Fit on vectors, the same to the bit for the same seed and threads, however they are cut into chunks.

        Parameters
        ----------
        embeddings : float32, shape (n, d), d >= 2; or chunks of them.
        rows : at most so many are drawn.
        epochs : the most; None sees 2 million vectors, minutes of two cores. It ends before that when the likelihood
            of the held-out tenth has not risen for some epochs; the best weights are kept.
        on_epoch : told after each epoch.

        Raises
        ------
        DimensionError
            A chunk has another d than the first.
        TransformError
            A value is NaN or infinite (the row is named), d is 1, or fewer than 100 vectors are distinct.
        """
        chunks = [embeddings] if isinstance(embeddings, np.ndarray) else embeddings
        sample = distinct_rows(sample_rows(chunks, rows, seed))
        dimension = sample.shape[1]
        if dimension < 2:
            raise TransformError("a flow couples dimensions, and the vectors have 1: use --transform none")
        if len(sample) < LEAST_ROWS:
            raise TransformError(
                f"a flow wants at least {LEAST_ROWS} distinct vectors, got {len(sample)}; give more documents, "
                f"or use --transform none"
            )
        from retrieval.transforms.flow_training import train

        return train(sample, seed, steps, width, epochs, on_epoch)

    @property
    def dimension(self) -> int:
        """d, of the vectors that go in."""
        return int(self.weights["shift"].shape[1])

    @property
    def m(self) -> int:
        """Of the vectors that come out: d, a flow keeps all dimensions."""
        return self.dimension

    def transform(self, embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
        """Vectors -> their latents, which the fitted ones make a standard Gaussian.

        Parameters
        ----------
        embeddings : float32, shape (n, d); not modified.

        Returns
        -------
        float32, shape (n, d), not of unit length.

        Raises
        ------
        DimensionError
            d is not the fitted dimension.
        """
        return self._forward(embeddings)[0]

    def log_likelihood(self, embeddings: NDArray[np.float32]) -> NDArray[np.float64]:
        """log p(x) = log N(f(x); 0, I) + log |det df/dx|, in nats: float64, shape (n,)."""
        latents, log_determinants = self._forward(embeddings)
        squares = np.square(latents, dtype=np.float64).sum(axis=1)
        return np.asarray(log_determinants - (squares + self.dimension * np.log(2 * np.pi)) / 2)

    def log_determinant(self, embeddings: NDArray[np.float32]) -> NDArray[np.float64]:
        """log |det df/dx| at each vector: float64, shape (n,)."""
        return self._forward(embeddings)[1]

    def inverse(self, latents: NDArray[np.float32]) -> NDArray[np.float32]:
        """What `transform` made the latents of: float32, shape (n, d) both. Raises DimensionError for another d."""
        check_shape(latents, self.dimension)
        embeddings = np.empty(latents.shape, dtype=np.float32)
        half, steps = self.dimension // 2, range(len(self.weights["shift"]))
        for start in range(0, len(latents), _BLOCK_ROWS):
            x = np.array(latents[start : start + _BLOCK_ROWS], dtype=np.float32)
            for step in reversed(steps):
                log_scale, shift = self._coupling(step, x[:, :half])
                x[:, half:] = (x[:, half:] - shift) * np.exp(-log_scale)
                x[:, self.weights["permutation"][step]] = x.copy()
                x = x * np.exp(-self.weights["log_scale"][step]) - self.weights["shift"][step]
            embeddings[start : start + _BLOCK_ROWS] = x
        return embeddings

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        from safetensors.numpy import save

        metadata = {"kind": KIND, "fitted": json.dumps(asdict(self.fitted))}
        with atomic_file(path) as file:
            file.write(save(dict(self.weights), metadata=metadata))

    @classmethod
    def load(cls, path: Path) -> Flow:
        """Read what `save` wrote. Raises TransformError where the file is not that."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                flow = cls(
                    {name: file.get_tensor(name) for name in file.keys()},  # noqa: SIM118 (not a mapping)
                    FlowFit(**json.loads(file.metadata()["fitted"])),
                )
            steps, dimension = flow.weights["shift"].shape
            found = {name: weight.shape for name, weight in flow.weights.items()}
            if found != shapes(steps, dimension, flow.weights["b1"].shape[-1]):
                raise ValueError(f"its tensors have shapes {found}")
            if not np.array_equal(np.sort(flow.weights["permutation"]), [np.arange(dimension)] * steps):
                raise ValueError("its permutation is none")
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise TransformError(f"{path} is not a flow: {error}") from None
        return flow

    def _forward(self, embeddings: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """The latents (n, d) and the log-determinants (n,)."""
        check_shape(embeddings, self.dimension)
        latents = np.empty(embeddings.shape, dtype=np.float32)
        log_determinants = np.full(len(embeddings), self.weights["log_scale"].sum(dtype=np.float64))
        half = self.dimension // 2
        for start in range(0, len(embeddings), _BLOCK_ROWS):
            x = np.asarray(embeddings[start : start + _BLOCK_ROWS], dtype=np.float32)
            for step, permutation in enumerate(self.weights["permutation"]):
                x = (x + self.weights["shift"][step]) * np.exp(self.weights["log_scale"][step])
                x = np.take(x, permutation, axis=1)
                log_scale, shift = self._coupling(step, x[:, :half])
                x[:, half:] = x[:, half:] * np.exp(log_scale) + shift
                log_determinants[start : start + _BLOCK_ROWS] += log_scale.sum(axis=1, dtype=np.float64)
            latents[start : start + _BLOCK_ROWS] = x
        return latents, log_determinants

    def _coupling(self, step: int, x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What the first half (B, h) does to the second: log-scales and shifts, (B, d - h) each."""
        for number in (1, 2, 3):
            x = x @ self.weights[f"w{number}"][step] + self.weights[f"b{number}"][step]
            if number < 3:
                np.maximum(x, 0, out=x)
        log_scale, shift = np.split(x, 2, axis=1)
        return LARGEST_LOG_SCALE * np.tanh(log_scale / LARGEST_LOG_SCALE), shift


def shapes(steps: int, dimension: int, width: int) -> dict[str, tuple[int, ...]]:
    """The weights of a flow by name, with their shapes."""
    half, out = dimension // 2, 2 * (dimension - dimension // 2)
    return {
        **dict.fromkeys(("shift", "log_scale", "permutation"), (steps, dimension)),
        **{"w1": (steps, half, width), "b1": (steps, width)},
        **{"w2": (steps, width, width), "b2": (steps, width)},
        **{"w3": (steps, width, out), "b3": (steps, out)},
    }
