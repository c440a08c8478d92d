"""A whole run: train, choose weights, measure, and write the model. What is broken off goes on with the same call."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from retrieval.encoders.base import Encoder, EncoderSettings
from retrieval.encoders.load import Note, load_to_build
from retrieval.errors import TrainingError
from retrieval.evaluation.bench.results import machine
from retrieval.evaluation.correlation import spearman
from retrieval.evaluation.grid import Transforms
from retrieval.evaluation.pairs import Pairs
from retrieval.evaluation.scoring import EncodedTexts
from retrieval.evaluation.sweep import SweepTask, make_passes, sweep
from retrieval.storage import replace_folder, replaced_folder
from retrieval.training.batches import check_mix
from retrieval.training.card import RECORD, Advice, Record, TestScore, best_transform, write_card
from retrieval.training.checkpoints import LAST, RunFolder, State, Tensors
from retrieval.training.choice import DevSets, Scores, best_of, choose_blend, set_weights, short_names, weights_of
from retrieval.training.loop import DivergedError, LoopSettings, train
from retrieval.training.material import Material
from retrieval.training.model import TrainableEncoder
from retrieval.training.simbert import WritingEncoder
from retrieval.transforms.spec import NONE, TransformSpec, parse_transform
from retrieval.transforms.whitening import DEFAULT_EPS, rank_of
from retrieval.types import Progress

_FITTING_TEXTS = 8000
"""Of the training texts, for the transforms that are tried afterwards."""
_CUT = 256


@dataclass(frozen=True)
class Start:
    """What training begins from, and how the gradient reaches it."""

    settings: EncoderSettings
    device: str = "auto"
    precision: str = "auto"
    frozen: str = "words"
    writes: bool = False
    """Whether the language-model head is trained too: see `simbert_settings`."""

    def load(self, note: Note) -> TrainableEncoder:
        """The model itself."""
        kind = WritingEncoder if self.writes else TrainableEncoder
        return kind(self.settings, device=self.device, precision=self.precision, frozen=self.frozen, note=note)


@dataclass(frozen=True)
class Trained:
    """A model that was written."""

    path: Path
    record: Record
    state: State


@dataclass(frozen=True)
class Choosing:
    """What follows the last step."""

    blend: float | None = None
    """Share of the trained weights; None: what the dev sets like best."""
    advise: bool = True
    """Sweep poolings and transforms on the dev sets."""


def run(
    output: Path,
    command: str,
    start: Start,
    material: Material,
    loop: LoopSettings,
    objective: Mapping[str, Any],
    choosing: Choosing,
    *,
    fresh: bool,
    progress: Progress,
) -> Trained:
    """Train and write a sentence-transformers folder with its card.

    Parameters
    ----------
    output : the folder that will be; until then checkpoints lie beside it, in `NAME.training`.
    command : as the user typed it, for the card.
    objective : its settings, which a run that is gone on with must share.
    fresh : forget a run that was broken off, and replace a model that stands at `output` once this one is whole.

    Raises
    ------
    TrainingError
        A model stands there, another run is going on or was broken off, or training failed: what is kept, is said.
    """
    output = output.expanduser().absolute()
    working = output.with_name(f"{output.name}.training")
    with _locked(output):
        _check_output(output, fresh)
        if fresh:
            shutil.rmtree(working, ignore_errors=True)
        torch.manual_seed(loop.seed)  # of the heads
        model = start.load(progress.note)
        settings = {**objective, **asdict(loop), "precision": model.precision, "frozen": start.frozen}
        begun = {**model.encoder.settings.to_json(), "fingerprint": model.encoder.fingerprint}
        data = [{key: file[key] for key in ("name", "role", "rows", "sha256")} for file in material.files]
        about = {"settings": settings, "start": begun, "data": data}
        stages, dev = material.stages(model), material.dev.sampled(seed=loop.seed)
        for stage in stages:
            check_mix(loop.mix, len(stage.objective.sources))  # before anything is left on disk
        folder, before = RunFolder(working, about), weights_of(model)
        diverged: DivergedError | None = None
        scores = partial(dev.scores, model) if dev.pairs else None
        try:
            state = train(model, stages, loop, folder, scores, progress)
        except DivergedError as error:
            state, diverged = error.state, error
            if state.best is None:
                raise TrainingError(f"{error}. {_left(folder)}") from None
            state.stopped = f"since {error}"
        kept = _kept(model, before, folder, state, len(stages), dev, choosing, progress)
        written = working / "model"
        with replaced_folder(written) as building:
            model.save(building)
        measured = _Measured(model.encoder.settings, start.device, written, replace(material, dev=dev), progress)
        del model, before
        record = Record(
            output.name,
            command,
            begun,
            settings,
            material.files,
            [*material.notes, *([f"Stopped early {state.stopped}"] if state.stopped else [])],
            state.curve,
            kept.words,
            {f"{blend:g}": scores.by_set for blend, scores in kept.blends.items()},
            round(state.seconds, 1),
            measured.advice() if choosing.advise and dev.pairs else None,
            measured.tests(),
            _machine(),
        )
        write_card(written, record)
        replace_folder(written, output)
        folder.remove()
    if diverged is not None:
        best = state.best
        at = best.at(len(stages)) if best else ""
        raise TrainingError(f"{diverged}. The best weights until then, after {at}, are in '{output}'")
    return Trained(output, record, state)


def _left(folder: RunFolder) -> str:
    """What a run leaves that diverged before any step was measured on a dev set."""
    if (found := folder.load()) is not None and (found[0].stage or found[0].step):
        return f"The checkpoint of step {found[0].step} is kept in '{folder.path / LAST}'"
    folder.remove()
    return "No checkpoint had been saved, and nothing was written"


@dataclass(frozen=True)
class _Kept:
    words: str
    blends: dict[float, Scores] = field(default_factory=dict)


def _kept(
    model: TrainableEncoder,
    before: Tensors,
    folder: RunFolder,
    state: State,
    stages: int,
    dev: DevSets,
    choosing: Choosing,
    progress: Progress,
) -> _Kept:
    """Give the model the weights that are written."""
    best, point, last = folder.load_best(), state.best, weights_of(model)
    lost = ""
    if point is not None and (start := state.start) is not None and start.mean > point.mean:
        lost = f"; the starting model did better on them, mean {start.mean:.2f} against {point.mean:.2f}"
        progress.note(f"training lowered the dev sets: {lost[2:]}")
    if best is None or point is None or not dev.pairs or choosing.blend is not None:
        blend = choosing.blend or 1.0
        set_weights(model, before, last if best is None else best, blend)
        which = "The last weights: there was no dev set to choose by"
        if point is not None:
            which = f"The weights after {point.at(stages)}, which did best on the dev sets{lost}"
        return _Kept(which if blend == 1 else f"{which}; {blend:g} of the way to them from the starting model's")
    ends = [(point, best)]
    if state.curve[-1] is not point and not state.stopped:  # part of a long way may do better than all of a short one
        ends.append((state.curve[-1], last))
    with progress.stage("blending", "blends", None):
        tried = choose_blend(model, before, [end for _, end in ends], dev)
    names = short_names(dev_set.name for dev_set in dev.pairs)
    for (place, blend), scores in tried.items():
        shown = ", ".join(f"{names[name]} {value:.2f}" for name, value in scores.by_set.items())
        progress.note(f"{ends[place][0].at(stages)}, blend {blend:g}: mean {scores.mean:.2f} ({shown})")
    taken, chosen = best_of(tried)
    blends = {blend: scores for (place, blend), scores in tried.items() if place == taken}
    did = "did best on the dev sets" if taken == 0 else "did best on the dev sets once blended"
    which = f"The weights after {ends[taken][0].at(stages)}, which {did}{lost}"
    if chosen != 1:
        which += f"; {chosen:g} of the way to them from the starting model's, by the dev sets"
    if state.start is not None and (lowered := _lowered(state.start.dev, blends[chosen].by_set)):
        which += f"; lower than the starting model's: {lowered}"
        progress.note(f"training lowered {lowered}")
    return _Kept(which, blends)


def _lowered(start: Mapping[str, float], end: Mapping[str, float]) -> str:
    """The dev sets that do better at first than in the end, with both figures; "" where there is none."""
    names = short_names(start)
    worse = [name for name, value in end.items() if value < start[name]]
    return ", ".join(f"{names[name]} {start[name]:.2f} -> {end[name]:.2f}" for name in worse)


class _Measured:
    """The written model as a user would load it, beside the one that training began from."""

    def __init__(
        self, settings: EncoderSettings, device: str, written: Path, material: Material, progress: Progress
    ) -> None:
        self._before, self._after = settings, replace(settings, source=str(written))
        self._device, self._material, self._progress = device, material, progress
        self._texts = list(dict.fromkeys(material.texts))[:_FITTING_TEXTS]

    def _load(self, settings: EncoderSettings) -> Encoder:
        return load_to_build(settings, self._device, "auto", "auto", self._progress.note)

    def advice(self) -> Advice | None:
        """Poolings x transforms on the dev sets, fitted on training texts; None where these carry no transform."""
        passes = make_passes(self._after, None, self._progress.note)
        dev = self._material.dev
        found: dict[tuple[str, str], dict[str, float]] = {}
        for each in dev.pairs:
            pairs = Pairs(each.name, "", each.first, each.second, each.labels, each.name, each.sha256)
            task = SweepTask(pairs, None, "the dev sets are measured", self._texts, "training texts", each.weights)
            swept = sweep(task, each.name, passes, self._load, Transforms(), resamples=0, progress=self._progress)
            for cell in swept.cells:
                if cell.spearman is not None:
                    found.setdefault((cell.pooling, cell.transform), {})[each.name] = 100 * cell.spearman
        means = {key: dev.mean(values) for key, values in found.items() if len(values) == len(dev.pairs)}
        pooling = self._after.pooling
        by_transform = {name: value for (each, name), value in means.items() if each == pooling}
        if NONE not in by_transform or len(by_transform) == 1:
            return None
        best = max(means, key=lambda key: means[key])
        lowered = _lowered(found[pooling, NONE], found[pooling, best_transform(by_transform)])
        return Advice(pooling, by_transform[NONE], (*best, means[best]), by_transform, lowered)

    def tests(self) -> list[TestScore]:
        """Each test set once, by the starting model and by the trained one."""
        if not self._material.tests:
            return []
        scores = [list(self._scores(settings)) for settings in (self._before, self._after)]
        return [
            TestScore(pairs.title, len(pairs), before[1], after[1], before[0], before[2], after[2])
            for pairs, before, after in zip(self._material.tests, *scores, strict=True)
        ]

    def _scores(self, settings: EncoderSettings) -> Iterator[tuple[str, float, float]]:
        """Of each test set: the name of the cut, and Spearman x 100 raw and cut."""
        encoder = self._load(settings)
        fitting = EncodedTexts(encoder, self._texts, self._progress)
        moments = fitting.moments(self._texts)
        spec = parse_transform(f"rotate-{min(_CUT, rank_of(moments, beta=0.0, eps=DEFAULT_EPS))}")
        assert isinstance(spec, TransformSpec)
        cut = fitting.fit(spec, self._texts, moments)
        for pairs in self._material.tests:
            encoded = EncodedTexts(encoder, pairs.texts, self._progress)
            raw, short = (
                100 * (spearman(encoded.cosines(pairs.first, pairs.second, transform), pairs.labels) or 0.0)
                for transform in (None, cut)
            )
            yield str(spec), raw, short


def _check_output(output: Path, fresh: bool) -> None:
    if output.is_symlink() or output.is_file():
        raise TrainingError(f"'{output}' is a file or a link, expected a folder or a new name: give another with -o")
    if output.is_dir() and any(output.iterdir()):
        if not (output / RECORD).is_file():
            raise TrainingError(
                f"'{output}' will not be replaced: it is no folder that retr train wrote (it has no {RECORD}). "
                f"Give another with -o"
            )
        if not fresh:
            raise TrainingError(f"'{output}' holds a trained model: --fresh trains anew and then replaces it")


@contextmanager
def _locked(output: Path) -> Iterator[None]:
    """One run at a time for each output."""
    output.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(output.with_name(f".{output.name}.training.lock"))
    try:
        lock.acquire(timeout=0)
        if not Path(lock.lock_file).exists():  # the run that held it ended meanwhile and took the file away
            raise Timeout(lock.lock_file)
    except Timeout:
        raise TrainingError(f"another command is training '{output}': wait for it, or give another with -o") from None
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _machine() -> dict[str, Any]:
    return {**machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
