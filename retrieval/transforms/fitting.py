"""A spec and the rows -> the fitted transform, with what a manifest says of it; for an index and for files alike."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from retrieval.transforms.choice import Choice, Chunks, choose_m
from retrieval.transforms.flow import Epoch, Flow
from retrieval.transforms.held_out import SplitMoments
from retrieval.transforms.spec import FLOW, AutoSpec, TransformSpec
from retrieval.transforms.whitening import DEFAULT_EPS, Whitening
from retrieval.types import Progress


def gather_moments(
    spec: TransformSpec | AutoSpec, dimension: int, rows: int, chunks: Chunks, progress: Progress
) -> SplitMoments:
    """Go through the rows once. Raises TransformError where a value is NaN or infinite; the row is named."""
    moments = SplitMoments(dimension, exact=spec.eps < DEFAULT_EPS)
    with progress.stage("fitting", "vectors", rows) as advance:
        for chunk in chunks():
            moments.update(chunk)
            advance(len(chunk))
    return moments


def fit_whitening(
    spec: TransformSpec | AutoSpec, split: SplitMoments, chunks: Chunks, progress: Progress
) -> tuple[Whitening, dict[str, Any]]:
    """Fit on all rows, m chosen where the spec leaves it open, and try nine tenths of them on the rest.

    Parameters
    ----------
    split : the moments of the rows.
    chunks : the rows; gone through only to choose m.
    progress : told the curve by which m was chosen, and what is alarming.

    Raises
    ------
    TransformError
        The rows do not carry so many dimensions.
    """
    choice: Choice | None = None
    wanted = str(spec)
    if isinstance(spec, AutoSpec):
        with progress.stage("choosing m", "cuts", None) as advance:
            choice = choose_m(spec, split, chunks, on_cut=lambda: advance(1))
        for line in curve_lines(wanted, choice):
            progress.note(line)
        spec = spec.at(choice.m)
    moments = split.whole()
    transform, spectrum = Whitening.fit(moments, spec.m, beta=spec.beta, gamma=spec.gamma, eps=spec.eps)
    trial = split.trial(spec)
    for alarm in trial.alarms("vectors held out of a trial fit") if trial else []:
        progress.note(f"warning: {alarm}")
    info = {
        "name": str(spec),
        "beta": spec.beta,
        "gamma": spec.gamma,
        "m": spec.m,
        "eps": spec.eps,
        "rows": moments.rows,
        "kept_share": round(float(spectrum[: spec.m].sum() / spectrum.sum()), 6),
        "held_out_norm_ratio": _rounded(trial.norm_ratio) if trial else None,
        "mean_shift": _rounded(trial.mean_shift) if trial else None,
    }
    return transform, info if choice is None else {**info, "chosen": {"spec": wanted, **choice.to_json()}}


def fit_flow(chunks: Chunks, progress: Progress) -> tuple[Flow, dict[str, Any]]:
    """Fit a flow on the rows but those of zeros. Raises TransformError as `Flow.fit` does."""
    with progress.stage("fitting flow", "epochs", None) as advance:

        def tell(epoch: Epoch) -> None:
            advance(1)
            if epoch.number in (1, 2, 3, 5) or epoch.number % 10 == 0:
                progress.note(
                    f"flow, epoch {epoch.number} of at most {epoch.most}: "
                    f"{epoch.held_out_nats:.4f} nats a dimension of held-out vectors"
                )

        flow = Flow.fit((chunk[chunk.any(axis=1)] for chunk in chunks()), on_epoch=tell)
    fitted = flow.fitted
    progress.note(
        f"flow: {fitted.held_out_nats:.4f} nats a dimension after epoch {fitted.best_epoch} "
        f"({fitted.start_nats:.4f} before the first)"
    )
    return flow, {"name": FLOW, "m": flow.m, **asdict(fitted)}


def curve_lines(name: str, choice: Choice) -> list[str]:
    """The curve as a table that fits 60 columns."""
    lines = [
        f"{name}: of the 10 neighbours of {choice.queries:,} held-out vectors among {choice.documents:,}, those kept",
        f"{'m':>6} {'of uncut':>9} {'of raw':>7}",
    ]
    for point in choice.points:
        chosen = f"  <- the smallest of at least {choice.threshold:g}" if point.m == choice.m else ""
        lines.append(f"{point.m:>6} {point.overlap:>9.4f} {point.raw:>7.4f}{chosen}")
    return lines


def _rounded(figure: float) -> float:
    """Four digits: what a figure of this kind is worth."""
    return float(f"{figure:.4g}")
