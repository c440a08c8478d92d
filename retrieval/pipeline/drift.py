"""How the rows added since a transform was fitted look beside those that it was fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.index import folder as layout
from retrieval.pipeline.standing import Standing
from retrieval.pipeline.vectors import rounded
from retrieval.transforms.base import Transform
from retrieval.transforms.flow import Flow
from retrieval.transforms.held_out import Fitness, SplitMoments
from retrieval.transforms.moments import Moments, load_moments, save_moments
from retrieval.transforms.whitening import Whitening

LEAST_ROWS = 30
"""The length and the mean of fewer rows are chance: they are shown, and raise no alarm."""
NATS_ALARM = 0.1
"""Of a flow, in nats a dimension: so much less likely than vectors that were held out of its training."""
_NAME = "added"


@dataclass
class Drift:
    """The rows added since the fit: their moments, or under a flow their likelihood. Nothing without a transform.

    Parameters
    ----------
    fitted : the moments of those fitted on; None where the index keeps none.
    added : the moments of those added.
    rows, nats : under a flow, how many were added, and their mean log-likelihood in nats a dimension.
    """

    transform: Transform | None
    fitted: Moments | None
    added: Moments | None
    rows: int = 0
    nats: float = 0.0

    @classmethod
    def of(cls, standing: Standing) -> Drift:
        """What was added so far."""
        transform, files = standing.transform(), standing.manifest.files
        if isinstance(transform, Flow):
            before = standing.manifest.transform.get("added", {})
            return cls(transform, None, None, before.get("rows", 0), before.get("nats", 0.0))
        if not isinstance(transform, Whitening) or layout.MOMENTS not in files:
            return cls(None, None, None)
        fitted = SplitMoments.load(standing.folder / layout.MOMENTS).whole()
        path = standing.folder / layout.DRIFT
        added = load_moments(path, (_NAME,))[0][_NAME] if layout.DRIFT in files else Moments(fitted.dimension)
        return cls(transform, fitted, added)

    def update(self, embeddings: NDArray[np.float32]) -> None:
        """Take more rows, float32, shape (n, d), none of zeros. Raises TransformError where one is NaN or infinite."""
        if self.added is not None:
            self.added.update(embeddings)
        elif isinstance(self.transform, Flow) and len(embeddings):
            nats = float(self.transform.log_likelihood(embeddings).mean()) / self.transform.dimension
            self.nats += (nats - self.nats) * len(embeddings) / (self.rows + len(embeddings))
            self.rows += len(embeddings)

    def fitness(self) -> Fitness | None:
        """Of the rows added; None where there are none, or no moments to compare them with."""
        if self.fitted is None or self.added is None or not self.added.rows:
            return None
        assert isinstance(self.transform, Whitening)
        return Fitness.of(self.transform, self.fitted, self.added)

    def to_json(self) -> dict[str, Any]:
        """What the manifest's `transform` says of it."""
        if (fitness := self.fitness()) is not None and self.added is not None:
            figures = {"norm_ratio": rounded(fitness.norm_ratio), "mean_shift": rounded(fitness.mean_shift)}
            return {_NAME: {"rows": self.added.rows, **figures}}
        return {_NAME: {"rows": self.rows, "nats": self.nats}} if self.rows else {}

    def alarms(self) -> list[str]:
        """What is wrong, in words; empty where nothing is."""
        advice = "retr reindex --refit fits the transform anew on all documents"
        if (fitness := self.fitness()) is not None and self.added is not None and self.added.rows >= LEAST_ROWS:
            alarms = fitness.alarms(f"the {self.added.rows:,} vectors added since the fit")
            return [f"{alarm}; {advice}" for alarm in alarms]
        if isinstance(self.transform, Flow) and self.rows >= LEAST_ROWS:
            lost = self.transform.fitted.held_out_nats - self.nats
            if lost > NATS_ALARM:
                return [
                    f"the {self.rows:,} vectors added since the flow was trained are {lost:.3g} nats a dimension less "
                    f"likely than those held out of its training (at most {NATS_ALARM} is sound); {advice}"
                ]
        return []

    def save(self, folder: Path) -> None:
        """Write the moments of the rows added, where there are any."""
        if self.added is not None and self.added.rows:
            save_moments(folder / layout.DRIFT, {_NAME: self.added}, {})
