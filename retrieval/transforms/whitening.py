"""The general whitening y = (x - beta mu) U Lambda^(-gamma/2), first m dimensions.

beta = gamma = 1 is the whitening of Su et al. 2021 (arXiv:2103.15316, eq. 6 to 8; its top-k is m here);
beta = gamma = 0 is a rotation and a cut; Su's kexue.fm/archives/9079 has all between. U and Lambda are the eigenvectors
and eigenvalues, in falling order, of the covariance about beta mu: E[(x - beta mu)(x - beta mu)^T].
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import TransformError
from retrieval.storage import atomic_file
from retrieval.transforms.base import check_shape
from retrieval.transforms.moments import Moments

DEFAULT_EPS = 1e-9
"""Eigenvalues below eps times the covariance's largest are rounding noise of float32 embeddings, not directions of the
data: they lie near 1e-12 (a layer norm, for one, leaves one direction empty), those of real encoders above 1e-6. What
rounding may have put into the moments themselves is a floor of its own (`Moments.noise`)."""


@dataclass(frozen=True)
class Whitening:
    """A fitted transform.

    Parameters
    ----------
    mean : float32, shape (d,)
        beta mu: what is taken away first.
    components : float32, shape (d, m)
        Columns are directions, of unit length.
    variances : float32, shape (m,)
        The eigenvalues of the kept directions, falling.
    gamma : 1 divides each direction by its standard deviation, 0 leaves it.
    """

    mean: NDArray[np.float32]
    components: NDArray[np.float32]
    variances: NDArray[np.float32]
    gamma: float

    @classmethod
    def fit(
        cls, moments: Moments, m: int, *, beta: float = 1.0, gamma: float = 1.0, eps: float = DEFAULT_EPS
    ) -> tuple[Whitening, NDArray[np.float64]]:
        """Fit on the moments of the corpus.

        Parameters
        ----------
        eps : directions below this share of the covariance's largest eigenvalue are not the data's. 0 keeps all that
            lie above the moments' own rounding, also the direction that a layer norm leaves to the embeddings' noise.

        Returns
        -------
        the transform, and all d eigenvalues, float64, falling: the spectrum.

        Raises
        ------
        TransformError
            m is less than 1 or more than the rank of what was seen; the message names both.
        """
        mean, eigenvalues, vectors, rank = _decomposed(moments, beta, eps)
        if not 1 <= m <= rank:
            raise TransformError(
                f"cannot keep m = {m} dimensions: the {moments.rows:,} vectors of {moments.dimension} dimensions have "
                f"rank {rank}; choose m from 1 to {rank}, give more distinct documents, or use --transform none"
                if rank
                else f"cannot keep m = {m} dimensions: the {moments.rows:,} vectors seen have rank 0 (one document, or "
                f"all of them equal); use --transform none"
            )
        kept = vectors[:, :m]
        # Eigenvectors have no sign of their own: the largest entry is made positive, so that two fits agree.
        signs = np.sign(kept[np.abs(kept).argmax(axis=0), np.arange(m)])
        transform = cls(
            mean=(beta * mean).astype(np.float32),
            components=np.ascontiguousarray(kept * signs, dtype=np.float32),
            variances=eigenvalues[:m].astype(np.float32),
            gamma=gamma,
        )
        return transform, eigenvalues

    @property
    def dimension(self) -> int:
        """d, of the vectors that go in."""
        return len(self.mean)

    @property
    def m(self) -> int:
        """Kept dimensions, of the vectors that come out."""
        return len(self.variances)

    @property
    def kernel(self) -> NDArray[np.float32]:
        """U Lambda^(-gamma/2), float32, shape (d, m): a vector is (embedding - mean) kernel."""
        return np.asarray(self.components * self.variances ** np.float32(-self.gamma / 2), dtype=np.float32)

    def transform(self, embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
        """Centre, rotate and scale embeddings.

        Parameters
        ----------
        embeddings : float32, shape (n, d)
            Need not have unit length; not modified.

        Returns
        -------
        float32, shape (n, m), not of unit length.

        Raises
        ------
        DimensionError
            d is not the fitted dimension.
        """
        check_shape(embeddings, self.dimension)
        return np.asarray((embeddings - self.mean) @ self.kernel, dtype=np.float32)

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        from safetensors.numpy import save

        tensors = {"mean": self.mean, "components": self.components, "variances": self.variances}
        with atomic_file(path) as file:
            file.write(save(tensors, metadata={"gamma": repr(self.gamma)}))

    @classmethod
    def load(cls, path: Path) -> Whitening:
        """Read what `save` wrote. Raises TransformError where the file is not that."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                gamma = float(file.metadata()["gamma"])
                mean, components, variances = (
                    np.asarray(file.get_tensor(name), dtype=np.float32) for name in ("mean", "components", "variances")
                )
            if mean.ndim != 1 or variances.ndim != 1 or components.shape != (len(mean), len(variances)):
                raise ValueError(f"its tensors have shapes {mean.shape}, {components.shape}, {variances.shape}")
            return cls(mean, components, variances, gamma)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise TransformError(f"{path} is not a transform: {error}") from None


def rank_of(moments: Moments, *, beta: float = 1.0, eps: float = DEFAULT_EPS) -> int:
    """The most dimensions that `Whitening.fit` can keep."""
    return _decomposed(moments, beta, eps)[3]


def spectrum_of(moments: Moments, *, beta: float = 1.0, eps: float = DEFAULT_EPS) -> tuple[NDArray[np.float64], int]:
    """All d eigenvalues of the covariance about beta mu, float64, falling; and how many `Whitening.fit` can keep."""
    _, eigenvalues, _, rank = _decomposed(moments, beta, eps)
    return eigenvalues, rank


def _decomposed(
    moments: Moments, beta: float, eps: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], int]:
    """Mean (d,), eigenvalues (d,) falling, eigenvectors (d, d) in columns, and the rank."""
    mean, covariance = moments.mean(), moments.covariance()
    # E[(x - beta mu)(x - beta mu)^T] = Cov + (1 - beta)^2 mu mu^T
    eigenvalues, vectors = np.linalg.eigh(covariance + (1 - beta) ** 2 * np.outer(mean, mean))
    eigenvalues, vectors = eigenvalues[::-1].clip(min=0), vectors[:, ::-1]
    # The mean's own direction can be thousands of times larger than the rest; it says nothing about their noise.
    largest = float(np.linalg.eigvalsh(covariance)[-1]) if beta != 1 else float(eigenvalues[0])
    # Vectors equal but for the rounding of their float32 have no more directions than one; eps = 0 asks for that noise.
    rounding = np.finfo(np.float32).eps ** 2 if eps else 8 * np.finfo(np.float64).eps * (1 - beta) ** 2
    floor = max(eps * largest, float(rounding * (mean @ mean)), moments.noise())
    return mean, eigenvalues, vectors, min(int((eigenvalues > floor).sum()), max(moments.rows - 1, 0))
