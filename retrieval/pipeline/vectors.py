"""Raw embeddings -> transform, FAISS index and the end of the query's graph: what a build and a reindex share."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retrieval.encoders import catalog
from retrieval.encoders.base import Family
from retrieval.errors import BuildError, TransformError
from retrieval.index import folder as layout
from retrieval.index.building import Built, build_vectors
from retrieval.index.embeddings import EmbeddingShards
from retrieval.index.spec import Wanted, choose_spec
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform
from retrieval.transforms.flow import LEAST_ROWS, Epoch, Flow
from retrieval.transforms.held_out import SplitMoments
from retrieval.transforms.spec import AUTO, FLOW, NONE, FlowSpec, TransformSpec, auto_transform, parse_transform
from retrieval.transforms.whitening import DEFAULT_EPS, Whitening
from retrieval.types import Progress

Spec = TransformSpec | FlowSpec | None


def choose_transform(
    transform: str, family: Family, dimension: int, rows: int, distinct: int, progress: Progress
) -> Spec:
    """The transform to fit; what cannot be fitted is refused before hours of encoding, not after.

    Parameters
    ----------
    transform : what the user wrote, or AUTO.
    family : the encoder's, which settles AUTO.
    """
    if transform == AUTO:
        name, reason = auto_transform(catalog.SUITED_TRANSFORM[family], distinct, dimension)
        progress.note(f"transform {name}: {reason}")
        return parse_transform(name)
    spec = parse_transform(transform)
    if isinstance(spec, FlowSpec) and distinct < LEAST_ROWS:
        raise TransformError(
            f"a flow wants at least {LEAST_ROWS} distinct documents, the corpus has {distinct:,}; "
            f"give more, or use --transform none"
        )
    if isinstance(spec, TransformSpec):
        # About their mean, equal vectors have no extent; about the origin (beta 0), they have one.
        most = min(dimension, rows - 1, distinct - 1 if spec.beta == 1 else distinct)
        if spec.m > most:
            raise TransformError(
                f"cannot keep m = {spec.m} dimensions: the {rows:,} documents ({distinct:,} distinct) in "
                f"{dimension} dimensions have rank {most} at most; choose a smaller m, "
                f"give more documents, or use --transform none"
            )
    return spec


class Fitting:
    """Fits a transform on the shards of a folder that is being made.

    Parameters
    ----------
    folder : where the transform and its moments are written.
    standing : an index whose moments may serve.
    forgiving : take no transform where the one that was chosen cannot be fitted.
    """

    def __init__(
        self, shards: EmbeddingShards, dimension: int, folder: Path, standing: Path, forgiving: bool, progress: Progress
    ) -> None:
        self.shards, self.dimension, self.folder, self.standing = shards, dimension, folder, standing
        self.forgiving, self.progress = forgiving, progress

    def fit(self, spec: Spec) -> tuple[Transform | None, dict[str, Any]]:
        """The transform, and what the manifest says of it."""
        if spec is None:
            return None, {"name": NONE, "m": self.dimension}
        transform, info = self._fit_flow() if isinstance(spec, FlowSpec) else self._fit_whitening(spec)
        if transform is not None:
            transform.save(self.folder / layout.TRANSFORM)
        return transform, info

    def _fit_whitening(self, spec: TransformSpec) -> tuple[Transform | None, dict[str, Any]]:
        split = self._moments(spec)
        moments = split.whole()
        try:
            transform, spectrum = Whitening.fit(moments, spec.m, beta=spec.beta, gamma=spec.gamma, eps=spec.eps)
        except TransformError as error:
            if not self.forgiving:
                raise
            self.progress.note(f"transform none instead of {spec}: {error}")
            return None, {"name": NONE, "m": self.dimension}
        split.save(self.folder / layout.MOMENTS, self.shards.sha256())
        trial = split.trial(spec)
        for alarm in trial.alarms("vectors held out of a trial fit") if trial else []:
            self.progress.note(f"warning: {alarm}")
        return transform, {
            "name": str(spec),
            "beta": spec.beta,
            "gamma": spec.gamma,
            "m": spec.m,
            "eps": spec.eps,
            "rows": moments.rows,
            "kept_share": round(float(spectrum[: spec.m].sum() / spectrum.sum()), 6),
            "held_out_norm_ratio": rounded(trial.norm_ratio) if trial else None,
            "mean_shift": rounded(trial.mean_shift) if trial else None,
        }

    def _moments(self, spec: TransformSpec) -> SplitMoments:
        """Those of the standing index, where they are of these embeddings; else in a pass over them."""
        with contextlib.suppress(TransformError):
            standing = SplitMoments.load(self.standing / layout.MOMENTS, self.shards.sha256())
            if standing.serves(spec):
                return standing
        moments = SplitMoments(self.dimension, exact=spec.eps < DEFAULT_EPS)
        with self.progress.stage("fitting", "vectors", self.shards.key.rows) as advance:
            for chunk in self.shards.chunks():
                moments.update(chunk)
                advance(len(chunk))
        return moments

    def _fit_flow(self) -> tuple[Flow, dict[str, Any]]:
        with self.progress.stage("fitting flow", "epochs", None) as advance:

            def tell(epoch: Epoch) -> None:
                advance(1)
                if epoch.number in (1, 2, 3, 5) or epoch.number % 10 == 0:
                    self.progress.note(
                        f"flow, epoch {epoch.number} of at most {epoch.most}: "
                        f"{epoch.held_out_nats:.4f} nats a dimension of held-out vectors"
                    )

            flow = Flow.fit((chunk[chunk.any(axis=1)] for chunk in self.shards.chunks()), on_epoch=tell)
        fitted = flow.fitted
        self.progress.note(
            f"flow: {fitted.held_out_nats:.4f} nats a dimension after epoch {fitted.best_epoch} "
            f"({fitted.start_nats:.4f} before the first)"
        )
        return flow, {"name": FLOW, "m": flow.m, **asdict(fitted)}


def index_vectors(
    shards: EmbeddingShards,
    transform: Transform | None,
    dimension: int,
    spec: str,
    wanted: Wanted,
    device: str,
    progress: Progress,
) -> Built:
    """Transform all embeddings, choose the kind of index for them, and build it.

    Raises
    ------
    BuildError
        All are rows of zeros.
    """
    counts, rows = shards.counts(), shards.key.rows
    m = transform.m if transform is not None else dimension
    chosen, reason = choose_spec(spec, rows, m, wanted)
    if reason:
        progress.note(reason)
    built = build_vectors(
        lambda: (unit_vectors(chunk, transform) for chunk in shards.chunks()),
        rows,
        m,
        chosen,
        wanted=wanted,
        numbered=counts["without_vector"] > 0,
        device=device,
        progress=progress,
    )
    if len(built.vectors) == 0:
        raise BuildError("no document has a vector: the model knows nothing of their texts; choose another model")
    return built


def complete_graph(folder: Path, transform: Transform | None, dimension: int) -> None:
    """Let a graph folder go on to the indexed vectors; a flow stays outside of it, in `transform.safetensors`."""
    from retrieval.encoders.onnx_tail import set_transform

    if isinstance(transform, Flow):
        set_transform(folder, None, None)
        return
    affine = (transform.mean, transform.kernel) if isinstance(transform, Whitening) else None
    set_transform(folder, dimension, affine)


def rounded(figure: float) -> float:
    """Four digits: what a figure of this kind is worth."""
    return float(f"{figure:.4g}")
