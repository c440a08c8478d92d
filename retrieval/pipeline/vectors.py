"""Raw embeddings -> transform, FAISS index and the end of the query's graph: what a build and a reindex share."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from retrieval.encoders import catalog
from retrieval.encoders.base import Family
from retrieval.errors import BuildError, TransformError, UsageError
from retrieval.index import folder as layout
from retrieval.index.building import Built, build_vectors
from retrieval.index.embeddings import Embeddings, EmbeddingShards
from retrieval.index.rescored import transformed
from retrieval.index.spec import Wanted, choose_spec, readable
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform
from retrieval.transforms.choice import LEAST_ROWS as CHOICE_ROWS
from retrieval.transforms.fitting import fit_flow, fit_whitening, gather_moments
from retrieval.transforms.flow import LEAST_ROWS, Flow
from retrieval.transforms.held_out import SplitMoments
from retrieval.transforms.spec import (
    AUTO,
    NONE,
    AutoSpec,
    FlowSpec,
    Spec,
    TransformSpec,
    auto_transform,
    parse_transform,
)
from retrieval.transforms.whitening import Whitening
from retrieval.types import Progress


def choose_transform(
    transform: str, family: Family, dimension: int, rows: int, distinct: int, progress: Progress
) -> Spec | None:
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
    if isinstance(spec, AutoSpec) and distinct < CHOICE_ROWS:
        raise TransformError(
            f"{spec} wants at least {CHOICE_ROWS} distinct documents to choose m by, the corpus has "
            f"{distinct:,}; give more, say m ({spec.kind}-M), or use --transform none"
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

    def fit(self, spec: Spec | None) -> tuple[Transform | None, dict[str, Any]]:
        """The transform, and what the manifest says of it."""
        if spec is None:
            return None, {"name": NONE, "m": self.dimension}
        transform: Transform | None
        if isinstance(spec, FlowSpec):
            transform, info = fit_flow(self.shards.chunks, self.progress)
        else:
            transform, info = self._fit_whitening(spec)
        if transform is not None:
            transform.save(self.folder / layout.TRANSFORM)
        return transform, info

    def _fit_whitening(self, spec: TransformSpec | AutoSpec) -> tuple[Transform | None, dict[str, Any]]:
        split = self._moments(spec)
        try:
            transform, info = fit_whitening(spec, split, self.shards.chunks, self.progress)
        except TransformError as error:
            if not self.forgiving:
                raise
            self.progress.note(f"transform none instead of {spec}: {error}")
            return None, {"name": NONE, "m": self.dimension}
        split.save(self.folder / layout.MOMENTS, self.shards.sha256())
        return transform, info

    def _moments(self, spec: TransformSpec | AutoSpec) -> SplitMoments:
        """Those of the standing index, where they are of these embeddings; else in a pass over them."""
        with contextlib.suppress(TransformError):
            standing = SplitMoments.load(self.standing / layout.MOMENTS, self.shards.sha256())
            if standing.serves(spec):
                return standing
        return gather_moments(spec, self.dimension, self.shards.key.rows, self.shards.chunks, self.progress)


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
    numbered = counts["without_vector"] > 0
    chosen, reason = choose_spec(spec, rows, m, wanted, numbered)
    if reason:
        progress.note(reason)
    built = build_vectors(
        lambda: (unit_vectors(chunk, transform) for chunk in shards.chunks()),
        rows,
        m,
        chosen,
        take=transformed(Embeddings([shards.folder]).take, transform),
        wanted=wanted,
        numbered=numbered,
        device=device,
        progress=progress,
    )
    if len(built.vectors) == 0:
        raise BuildError("no document has a vector: the model knows nothing of their texts; choose another model")
    return built


def save_vectors(built: Built, path: Path) -> None:
    """Write the vectors' file.

    Raises
    ------
    UsageError
        It is larger than was wanted; what a factory string takes is known only now.
    """
    built.vectors.save(path)
    size, most = path.stat().st_size, built.wanted.most_bytes
    if most is not None and size > most:
        raise UsageError(
            f"the index {built.spec} takes {readable(size)} for {len(built.vectors):,} vectors, more than the "
            f"{readable(most)} wanted: give more memory, fewer dimensions, or a kind that fits, such as --index auto"
        )


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
