"""Where a run stands, on disk: weights, optimiser and curve, so that a run that was killed goes on unchanged.

NAME.training/          beside the model that will be
  run.json              what the run is: settings, data, starting model; another run is refused
  last/                 state.json and state.safetensors: the newest whole checkpoint
  best.safetensors      the trained weights that did best on the dev sets
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from retrieval.errors import TrainingError
from retrieval.storage import atomic_file, replaced_folder

LAST = "last"
_RUN, _STATE, _TENSORS, _BEST = "run.json", "state.json", "state.safetensors", "best.safetensors"
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Point:
    """What was measured after some steps."""

    stage: int
    step: int
    """Of the stage; 0: the model that training began from."""
    loss: float | None
    """Mean since the point before; None at step 0."""
    dev: dict[str, float]
    """Spearman x 100 by dev set; empty where there is none."""
    seconds: float
    """Of training until then, evaluation included."""
    objective: str = ""
    """Of the stage."""
    mean: float = 0.0
    """Of the dev sets, as `DevSets.mean` weighs them."""

    def at(self, stages: int) -> str:
        """Its place in a run of so many stages, in words."""
        return at_step(self.step, self.stage, self.objective, stages)

    @property
    def is_start(self) -> bool:
        """Whether nothing had been learnt."""
        return self.stage == 0 and self.step == 0


def at_step(step: int, stage: int, objective: str, stages: int) -> str:
    """`step 5`, or where there are several stages `step 5 of stage 2 (sts)`."""
    return f"step {step}" + (f" of stage {stage + 1} ({objective})" if stages > 1 else "")


@dataclass
class State:
    """All that a step needs from those before it, beside weights and optimiser."""

    stage: int = 0
    step: int = 0
    """Steps of the stage that are done."""
    recent: list[float] = field(default_factory=list)
    """Losses since the last point."""
    curve: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    stopped: str = ""
    """Why the run ended before its last step."""

    @property
    def start(self) -> Point | None:
        """The model that training began from; None where it was not measured."""
        return next((point for point in self.curve if point.is_start), None)

    @property
    def best(self) -> Point | None:
        """The first of the points after a step with the highest mean; None where none was measured on a dev set."""
        measured = [point for point in self.curve if point.dev and not point.is_start]
        return max(measured, key=lambda point: point.mean) if measured else None


class RunFolder:
    """The checkpoints of one run.

    Parameters
    ----------
    about : what the run is, as JSON; a folder of another run is refused.

    Raises
    ------
    TrainingError
        The folder holds another run: what differs is named.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        text = json.dumps(about, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
        path.mkdir(parents=True, exist_ok=True)
        try:
            found = json.loads((path / _RUN).read_text(encoding="utf-8"))
        except FileNotFoundError:
            with _saving("the run's settings", path), atomic_file(path / _RUN) as file:
                file.write(text.encode())
            return
        except ValueError as error:
            raise TrainingError(f"'{path / _RUN}' is damaged: give --fresh to begin anew") from error
        if changes := list(_changes(found, json.loads(text))):
            raise TrainingError(
                f"'{path}' holds a run that was broken off, with other settings or data ({'; '.join(changes)}): "
                f"give those again to go on with it, or --fresh to begin anew"
            )

    def save(self, state: State, tensors: Tensors) -> None:
        """Replace the newest checkpoint; TrainingError where the disk refuses, and the one before stays."""
        with _saving(f"the checkpoint of step {state.step}", self.path), replaced_folder(self.path / LAST) as folder:
            (folder / _TENSORS).write_bytes(save({name: value.contiguous() for name, value in tensors.items()}))
            content = {**vars(state), "curve": [vars(point) for point in state.curve]}
            (folder / _STATE).write_text(json.dumps(content), encoding="utf-8")

    def load(self) -> tuple[State, Tensors] | None:
        """The newest checkpoint; None where there is none yet. TrainingError where it is damaged."""
        folder = self.path / LAST
        if not folder.exists():
            return None
        try:
            content = json.loads((folder / _STATE).read_text(encoding="utf-8"))
            content["curve"] = [Point(**point) for point in content["curve"]]
            return State(**content), load_file(folder / _TENSORS)
        except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
            raise TrainingError(
                f"the checkpoint '{folder}' is damaged ({error}): give --fresh to begin anew"
            ) from error

    def save_best(self, weights: Tensors) -> None:
        """TrainingError where the disk refuses, and the best before stays."""
        with _saving("the best weights", self.path), atomic_file(self.path / _BEST) as file:
            file.write(save({name: value.contiguous() for name, value in weights.items()}))

    def load_best(self) -> Tensors | None:
        """None where nothing was measured on a dev set."""
        return load_file(self.path / _BEST) if (self.path / _BEST).exists() else None

    def remove(self) -> None:
        """Once the model is written."""
        shutil.rmtree(self.path, ignore_errors=True)


@contextlib.contextmanager
def _saving(what: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"{what} cannot be saved in '{folder}' ({error.strerror or error}); what was saved before it is kept: "
            f"make room, and the same command goes on from there"
        ) from error


def _changes(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """What differs, in words: `lr 1e-05 -> 2e-05`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _changes(old.get(key), new.get(key), f"{name} {key}".strip())
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new, strict=True), 1):
            yield from _changes(one, other, f"{name} {place}")
    elif old != new:
        yield f"{name} {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
