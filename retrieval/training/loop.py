"""Steps of AdamW over stages of objectives: warm-up and decay, accumulation, clipping, checkpoints, early stop.

Exactly repeatable on a CPU with the same number of threads: the batches are planned by the seed, dropout is seeded anew
for each step, and a checkpoint holds all else. So a run that was killed ends with the same weights as one that was not.
Loshchilov and Hutter 2019, arXiv:1711.05101.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from retrieval.errors import TrainingError, UsageError
from retrieval.training.batches import Batch, check_mix, plan
from retrieval.training.checkpoints import Point, RunFolder, State, Tensors, at_step
from retrieval.training.choice import Scores, short_names
from retrieval.training.model import TrainableEncoder
from retrieval.training.objectives import Objective
from retrieval.types import Progress

_SECONDS_BETWEEN_CHECKPOINTS = 60.0
_SHOWN, _SHOWN_CHARACTERS = 3, 40  # examples of a batch
Dev = Callable[[], Scores]
"""Those of the model as it is."""


@dataclass(frozen=True)
class LoopSettings:
    """How an objective is minimised."""

    batch: int = 32
    """Examples: pairs, triplets or texts."""
    accumulate: int = 1
    """Batches a step."""
    lr: float = 1e-5
    """The highest, after warm-up."""
    warmup: float = 0.1
    """Share of a stage's steps in which the rate rises from 0; it falls to 0 in the others."""
    weight_decay: float = 0.01
    """Of matrices, not of biases and norms."""
    clip: float = 1.0
    """Largest norm of a step's gradient."""
    eval_every: int = 100
    """Steps between two points of the curve."""
    patience: int = 0
    """Points of a stage without a new best after which it ends; 0: never."""
    mix: str = "sqrt"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("accumulate", 1), ("eval_every", 1), ("patience", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name.replace('_', ' ')} is {getattr(self, name)}, expected at least {least}")
        for name in ("lr", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name):g}, expected more than 0")
        if not 0 <= self.warmup <= 1:
            raise UsageError(f"warm-up is {self.warmup:g}, expected a share from 0 to 1")
        if not 0 <= self.weight_decay < math.inf:
            raise UsageError(f"weight decay is {self.weight_decay:g}, expected 0 or more")
        check_mix(self.mix)


@dataclass(frozen=True)
class Stage:
    """One objective, for so many steps."""

    objective: Objective
    steps: int


def train(
    model: TrainableEncoder,
    stages: Sequence[Stage],
    settings: LoopSettings,
    folder: RunFolder,
    dev: Dev | None,
    progress: Progress,
) -> State:
    """Train from where the folder's newest checkpoint stands; the model then holds the last weights.

    Parameters
    ----------
    dev : None where there is nothing to choose a checkpoint by.

    Returns
    -------
    The curve, and where the run stands; the best weights are in the folder.

    Raises
    ------
    TrainingError
        A loss is no number (the batch is named), or a checkpoint cannot be saved; what was saved before is kept.
    """
    found = folder.load()
    state, tensors = found if found else (State(), None)
    if tensors is not None:
        name = stages[state.stage].objective.name
        progress.note(f"going on after {at_step(state.step, state.stage, name, len(stages))}, from '{folder.path}'")
    for number in range(state.stage, len(stages)):
        if state.stage != number:
            state.stage, state.step = number, 0
        _StageRun(model, stages, settings, folder, dev, progress, state).run(tensors)
        tensors = None
    return state


class DivergedError(TrainingError):
    """A loss or gradient is no number; `state` is where the last whole step had brought the run."""

    def __init__(self, message: str, state: State) -> None:
        super().__init__(message)
        self.state = state


class _StageRun:
    """One stage, from its step `state.step` on."""

    def __init__(
        self,
        model: TrainableEncoder,
        stages: Sequence[Stage],
        settings: LoopSettings,
        folder: RunFolder,
        dev: Dev | None,
        progress: Progress,
        state: State,
    ) -> None:
        self._model, self._stage, self._stages, self._settings = model, stages[state.stage], len(stages), settings
        self._folder, self._dev, self._progress, self._state = folder, dev, progress, state
        self._head = self._stage.objective.head
        if self._head is not None:
            self._head.to(model.device)
        self._named = {f"model.{name}": value for name, value in model.trained().items()}
        if self._head is not None:
            self._named |= {f"head.{name}": value for name, value in self._head.named_parameters()}
        groups: list[dict[str, Any]] = [
            {"params": [value for value in self._named.values() if value.ndim > 1]},
            {"params": [value for value in self._named.values() if value.ndim <= 1], "weight_decay": 0.0},
        ]
        self._optimiser = torch.optim.AdamW(groups, lr=settings.lr, weight_decay=settings.weight_decay)
        count = self._stage.steps * settings.accumulate
        seed = settings.seed * 1009 + state.stage
        self._batches = plan(self._stage.objective.lengths, settings.batch, count, seed, settings.mix)
        self._saved = time.monotonic()

    def run(self, tensors: Tensors | None) -> None:
        state, steps = self._state, self._stage.steps
        if tensors is not None:
            self._restore(tensors)
        if self._dev is not None and state.stage == 0 and not state.curve:
            self._measure()  # the model that training begins from
        self._model.model.train()
        of = f" {state.stage + 1} of {self._stages}" if self._stages > 1 else ""
        name = f"training{of}, {self._stage.objective.name}"
        each = self._settings.batch * self._settings.accumulate
        with self._progress.stage(name, "examples", steps * each, min(state.step, steps) * each) as advance:
            while state.step < steps and not self._is_stale():
                self._step()
                advance(each)
        self._model.model.eval()

    def _step(self) -> None:
        state, settings, started = self._state, self._settings, time.monotonic()
        torch.manual_seed((settings.seed * 1009 + state.stage) * 1_000_003 + state.step)
        for group in self._optimiser.param_groups:
            group["lr"] = settings.lr * rate(state.step, self._stage.steps, settings.warmup)
        self._optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for batch in self._batches[state.step * settings.accumulate :][: settings.accumulate]:
            loss = self._stage.objective.loss(self._model, batch.source, batch.rows) / settings.accumulate
            loss.backward()  # type: ignore[no-untyped-call]
            total += self._finite(loss.item(), batch)
        norm = float(torch.nn.utils.clip_grad_norm_(list(self._named.values()), settings.clip))
        self._finite(norm, batch, "the gradient's norm")
        self._optimiser.step()
        state.step += 1
        state.recent.append(total)
        state.seconds += time.monotonic() - started
        if state.step % settings.eval_every == 0 or state.step == self._stage.steps:
            self._measure()
        elif time.monotonic() - self._saved > _SECONDS_BETWEEN_CHECKPOINTS:
            self._save()

    def _measure(self) -> None:
        """A point of the curve, and a checkpoint."""
        state, started = self._state, time.monotonic()
        scores = self._dev() if self._dev is not None else Scores({}, 0.0)
        state.seconds += time.monotonic() - started
        dev, best, loss = scores.by_set, state.best, sum(state.recent) / len(state.recent) if state.recent else None
        seconds, name = round(state.seconds, 1), self._stage.objective.name
        point = Point(state.stage, state.step, loss, dev, seconds, name, scores.mean)
        state.curve.append(point)
        state.recent = []
        names = short_names(dev)
        shown = ", ".join(f"{names[name]} {value:.2f}" for name, value in dev.items())
        mean = f"; mean {point.mean:.2f}" if len(dev) > 1 else ""
        measured = [*([f"loss {loss:.4f}"] if loss is not None else []), *([f"dev {shown}{mean}"] if dev else [])]
        self._progress.note(f"{self._at(state.step)}: {'; '.join(measured)}")
        if dev and not point.is_start and (best is None or point.mean > best.mean):
            self._folder.save_best({name: value.detach() for name, value in self._model.trained().items()})
        self._save()

    def _is_stale(self) -> bool:
        """Whether the last points brought nothing."""
        points = [point for point in self._state.curve if point.stage == self._state.stage and point.dev]
        patience = self._settings.patience
        if not patience or len(points) <= patience:
            return False
        before = max(point.mean for point in points[:-patience])
        if stale := all(point.mean <= before for point in points[-patience:]):
            self._state.stopped = f"at {self._at(self._state.step)}: no gain in {patience} measurements"
            self._progress.note(f"stopped {self._state.stopped}")
        return stale

    def _at(self, step: int) -> str:
        return at_step(step, self._state.stage, self._stage.objective.name, self._stages)

    def _finite(self, value: float, batch: Batch, what: str = "the loss") -> float:
        if math.isfinite(value):
            return value
        objective, rows = self._stage.objective, batch.rows[:_SHOWN].tolist()
        examples = "; ".join(" | ".join(map(_short, objective.example(batch.source, row))) for row in rows)
        raise DivergedError(
            f"{what} is {value} at {self._at(self._state.step + 1)}, in the batch of {len(batch.rows)} from "
            f"{objective.sources[batch.source]} that begins with {examples}. Give a smaller --lr, or --precision "
            f"float32, and --fresh",
            self._state,
        )

    def _save(self) -> None:
        tensors = {name: value.detach() for name, value in self._named.items()}
        for number, values in self._optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{key}": value for key, value in values.items()}
        self._folder.save(self._state, tensors)
        self._saved = time.monotonic()

    def _restore(self, tensors: Tensors) -> None:
        with torch.no_grad():
            for name, parameter in self._named.items():
                parameter.copy_(tensors[name])
        saved: dict[int, Tensors] = {}
        for name, value in tensors.items():
            if name.startswith("optimiser."):
                _, number, key = name.split(".")
                saved.setdefault(int(number), {})[key] = value
        self._optimiser.load_state_dict({**self._optimiser.state_dict(), "state": saved})


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


def rate(step: int, steps: int, warmup: float) -> float:
    """The learning rate's factor, 0 to 1, of a step from 0: it rises over the warm-up, then falls towards 0."""
    rising = warmup * steps
    if step < rising:
        return (step + 1) / (rising + 1)
    return (steps - step) / max(1.0, steps - rising)
