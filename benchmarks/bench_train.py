r"""Training: texts a second beside SentenceTransformerTrainer, on the same pairs, loss, batch and precision.

    python benchmarks/bench_train.py --data data
    python benchmarks/bench_train.py --data data --pairs bq:dev --precision float32 --train-words

CoSENT with scale 20 on the default model, from the same weights, every pair once, with each side's own loop: its order
of batches, its padding, AdamW and clipping. Sides take turns, round after round, in one process. A side's time is from
the end of the warm-up steps to the end of the last step but one, so that neither loading nor saving counts; the peer's
trainer is told to save, evaluate and report nothing. Loss, and Spearman x 100 on pairs held out, before and after, show
that both learn the same.
Results go to benchmarks/results/train.json. Needs: pip install '.[bench]'.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_build import RESULTS, machine

from retrieval.encoders.base import Encoder
from retrieval.encoders.bundled import bundled_folder
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.evaluation.correlation import spearman
from retrieval.training.checkpoints import RunFolder
from retrieval.training.data import read_training_pairs
from retrieval.training.examples import TextPairs, split_off
from retrieval.training.loop import LoopSettings, Stage, train
from retrieval.training.model import TrainableEncoder
from retrieval.training.objectives import CosentObjective
from retrieval.types import NoProgress

OWN, PEER = "retr", "sentence-transformers"
SCALE = 20.0


@dataclass(frozen=True)
class Run:
    """One training of one side."""

    seconds: float
    """Of the steps that are timed."""
    loss: float
    """Mean over all steps."""
    spearman: float | None = None


class _Clock(NoProgress):
    """When each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def note(self, message: str) -> None:
        print(message, file=sys.stderr)

    @contextmanager
    def stage(self, name: str, unit: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], None]]:
        yield lambda count: self.times.append(time.perf_counter())


def own(pairs: TextPairs, held: TextPairs | None, options: argparse.Namespace, seed: int) -> Run:
    settings = resolve_settings()
    torch.manual_seed(seed)
    model = TrainableEncoder(
        settings, device=options.device, precision=options.precision, frozen="words" if options.frozen else "none"
    )
    loop = LoopSettings(batch=options.batch, lr=options.lr, eval_every=options.steps, seed=seed)
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        stages = [Stage(CosentObjective([pairs], SCALE), options.steps)]
        state = train(model, stages, loop, RunFolder(Path(folder) / "run", {}), None, clock)
        score = None
        if held is not None:
            model.save(empty(Path(folder) / "model"))
            score = measured(load_encoder(resolve_settings(Path(folder) / "model"), options.device), held)
    return Run(clock.times[-2] - clock.times[options.warm_up - 1], state.curve[-1].loss, score)


def peer(pairs: TextPairs, held: TextPairs | None, options: argparse.Namespace, seed: int) -> Run:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import CoSENTLoss
    from sentence_transformers.models import Pooling, Transformer
    from transformers import TrainerCallback

    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *about: Any, **more: Any) -> None:
            times.append(time.perf_counter())

    transformer = Transformer(str(bundled_folder()), max_seq_length=512)
    pooling = Pooling(transformer.get_word_embedding_dimension(), "mean")
    model = SentenceTransformer(modules=[transformer, pooling], device=options.device)
    if options.frozen:
        transformer.auto_model.get_input_embeddings().weight.requires_grad_(False)
    prompt = resolve_settings().document_prompt
    columns = {"sentence1": pairs.first, "sentence2": pairs.second, "label": pairs.labels.tolist()}
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch,
            learning_rate=options.lr,
            warmup_steps=options.steps // 10,
            weight_decay=0.01,
            max_grad_norm=1.0,
            bf16=options.precision == "bf16",
            use_cpu=options.device == "cpu",
            prompts=prompt,
            seed=seed,
            save_strategy="no",
            eval_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = SentenceTransformerTrainer(
            model, arguments, Dataset.from_dict(columns), loss=CoSENTLoss(model, scale=SCALE), callbacks=[Clock()]
        )
        loss = trainer.train().training_loss
        score = None
        if held is not None:
            model.prompts = {"query": prompt, "document": prompt}
            model.save_pretrained(str(Path(folder) / "model"))
            settings = resolve_settings(Path(folder) / "model", query_prompt=prompt, document_prompt=prompt)
            score = measured(load_encoder(settings, options.device), held)
    return Run(times[-2] - times[options.warm_up - 1], loss, score)


SIDES: dict[str, Callable[[TextPairs, TextPairs | None, argparse.Namespace, int], Run]] = {OWN: own, PEER: peer}


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def measured(encoder: Encoder, held: TextPairs) -> float:
    """Spearman x 100 of cosines."""
    first, second = (encoder.encode(side) for side in (held.first, held.second))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return 100 * (spearman((first * second).sum(axis=1) / norms, held.labels) or 0.0)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    whole = read_training_pairs(options.pairs, options.data)
    needed = options.steps * options.batch
    if len(whole) < needed + options.held_out:
        sys.exit(
            f"{options.pairs} has {len(whole):,} pairs, expected {needed + options.held_out:,}: give fewer --steps"
        )
    rest, held = split_off(whole, options.held_out / len(whole), 0)
    pairs = rest.take(np.sort(np.random.default_rng(0).permutation(len(rest))[:needed]))
    texts = 2 * options.batch * (options.steps - 1 - options.warm_up)
    runs: dict[str, list[Run]] = {side: [] for side in SIDES}
    for turn in range(options.repeats):
        for side, run in SIDES.items():
            found = run(pairs, held if turn == 0 else None, options, turn)
            runs[side].append(found)
            gc.collect()
            line = f"{turn + 1}/{options.repeats} {side}: {texts / found.seconds:.0f} texts/s, loss {found.loss:.3f}"
            print(line + ("" if found.spearman is None else f", Spearman {found.spearman:.2f}"), file=sys.stderr)
    about = machine()
    about["versions"] |= {name: version(name) for name in ("accelerate", "datasets")}
    return {
        **about,
        "pairs": pairs.name,
        "source": options.pairs,
        "sha256": pairs.sha256,
        **{name: getattr(options, name) for name in ("device", "batch", "steps", "warm_up", "repeats", "precision")},
        "frozen": "words" if options.frozen else "none",
        "threads": torch.get_num_threads(),
        "held_out": len(held),
        "spearman_before": measured(load_encoder(resolve_settings(), options.device), held),
        "sides": {
            side: {
                "texts_per_second": spread([texts / run.seconds for run in found]),
                "loss": spread([run.loss for run in found]),
                "spearman": found[0].spearman,
            }
            for side, found in runs.items()
        },
        "times_faster_than_peer": spread(
            [other.seconds / one.seconds for one, other in zip(runs[OWN], runs[PEER], strict=True)]
        ),
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RETR_DATA"), help="the folder of the data sets")
    parser.add_argument("--pairs", default="lcqmc:dev", help="a set and its split, or a file of pairs")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=5, help="steps that are not timed")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--held-out", type=int, default=1000, help="pairs that Spearman is measured on")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--precision", choices=("bf16", "float32"), default="bf16")
    parser.add_argument("--train-words", dest="frozen", action="store_false", help="word embeddings are trained too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=RESULTS.with_name("train.json"))
    options = parser.parse_args()
    if options.steps < options.warm_up + 2 or options.warm_up < 1:
        parser.error(f"{options.steps} steps with {options.warm_up} of warm-up leave none to time")
    result = measure(options)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{'':<24}{'texts/s':>9}{'lowest':>9}{'highest':>9}{'loss':>8}{'Spearman':>10}")
    for side, row in result["sides"].items():
        rate = row["texts_per_second"]
        print(
            f"{side:<24}{rate['median']:>9.0f}{rate['min']:>9.0f}{rate['max']:>9.0f}{row['loss']['median']:>8.3f}"
            f"{row['spearman']:>10.2f}"
        )
    ratio = result["times_faster_than_peer"]
    print(
        f"{ratio['median']:.2f} times as fast ({ratio['min']:.2f} to {ratio['max']:.2f}), starting at Spearman "
        f"{result['spearman_before']:.2f}"
    )


if __name__ == "__main__":
    main()
