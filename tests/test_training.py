"""Training as a whole: batches, steps, checkpoints, resume after a kill, what is written, what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Retr, random_texts
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.errors import TrainingError, UsageError
from retrieval.training.batches import MIXES, plan
from retrieval.training.checkpoints import Point, RunFolder, State
from retrieval.training.choice import DevSets, check_blend, choose_blend, set_weights, weights_of
from retrieval.training.examples import TextPairs
from retrieval.training.loop import DivergedError, LoopSettings, Stage, rate, train
from retrieval.training.model import TrainableEncoder
from retrieval.training.objectives import InBatchObjective, PairObjective, distinct
from retrieval.types import NoProgress

SAME, OTHER = 1.0, 0.0


def pairs_of(count: int, seed: int = 0) -> TextPairs:
    """Half of them differ in one character, half are two texts."""
    texts = random_texts(2 * count, seed=seed)
    first, second = texts[:count], texts[count:]
    second = [
        one[:-1] + other[-1:] if row % 2 else other for row, (one, other) in enumerate(zip(first, second, strict=True))
    ]
    labels = np.array([SAME if row % 2 else OTHER for row in range(count)])
    return TextPairs("made up", "0" * 64, first, second, labels)


def write_pairs(path: Path, pairs: TextPairs) -> Path:
    rows = [f"{a}\t{b}\t{label:g}" for a, b, label in zip(pairs.first, pairs.second, pairs.labels, strict=True)]
    path.write_text("\n".join(["sentence1\tsentence2\tlabel", *rows]) + "\n", encoding="utf-8")
    return path


def load(folder: Path, **options: str) -> TrainableEncoder:
    torch.manual_seed(0)
    return TrainableEncoder(resolve_settings(folder), device="cpu", **options)


@given(
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    size=st.integers(1, 16),
    count=st.integers(1, 60),
    seed=st.integers(0, 9),
    mix=st.sampled_from(sorted(MIXES)),
)
@settings(max_examples=60, deadline=None)
def test_every_example_has_its_turn_before_one_has_a_second(
    sizes: list[int], size: int, count: int, seed: int, mix: str
) -> None:
    lengths = [np.random.default_rng(seed).integers(1, 50, each) for each in sizes]
    planned = plan(lengths, size, count, seed, mix)
    assert len(planned) == count
    for source, each in enumerate(sizes):
        seen = [row for batch in planned if batch.source == source for row in batch.rows.tolist()]
        turns = np.bincount(seen, minlength=each)
        # Batches of a window are shuffled, so turns may lie apart by what one window holds.
        assert len(seen) < each or turns.max() - turns.min() <= 2
        assert all(len(batch.rows) == min(size, each) for batch in planned if batch.source == source)
    again = plan(lengths, size, count, seed, mix)
    assert all(np.array_equal(one.rows, other.rows) for one, other in zip(planned, again, strict=True))


def test_a_batch_holds_texts_of_about_one_length() -> None:
    lengths = [np.arange(1600) % 100]
    spreads = [np.ptp(lengths[0][batch.rows]) for batch in plan(lengths, 16, 100, 0)]
    assert np.mean(spreads) < 30  # of a random batch it is 88


@pytest.mark.parametrize(("mix", "share"), [("sqrt", 1 / 3), ("size", 1 / 5), ("even", 1 / 2)])
def test_sources_have_their_turn_by_the_mix(mix: str, share: float) -> None:
    # 100 and 400 examples: by the root 10 to 20, by size 1 to 4.
    planned = plan([np.ones(100, np.int64), np.ones(400, np.int64)], 8, 4000, 0, mix)
    assert abs(np.mean([batch.source == 0 for batch in planned]) - share) < 0.03


def test_the_rate_rises_then_falls() -> None:
    # Ten steps, two of them warm-up: 1/3, 2/3, then 8/8, 7/8, ...
    assert [round(rate(step, 10, 0.2), 4) for step in range(10)] == [
        *(0.3333, 0.6667),
        *(1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125),
    ]
    assert rate(0, 1, 0.0) == 1.0


def test_a_pair_that_repeats_a_text_is_left_out_of_a_batch() -> None:
    first, second = ["a", "b", "c", "a"], ["x", "y", "x", "z"]
    assert distinct(first, second, np.arange(4)).tolist() == [0, 1]


def test_training_lifts_the_dev_sets_and_leaves_word_embeddings_alone(tiny_model: Path, tmp_path: Path) -> None:
    model = load(tiny_model)
    words = model.encoder.model.get_input_embeddings().weight.detach().clone()
    dev = DevSets([pairs_of(100, seed=7)])
    before = dev.scores(model)["made up"]
    state = train(
        model,
        [Stage(PairObjective("cosent", [pairs_of(200)]), 30)],
        LoopSettings(lr=1e-3, eval_every=10),
        RunFolder(tmp_path / "run", {}),
        lambda: dev.scores(model),
        NoProgress(),
    )
    assert [point.step for point in state.curve] == [10, 20, 30]
    assert state.curve[-1].loss < state.curve[0].loss
    assert state.best is not None
    assert state.best.mean > before
    assert torch.equal(words, model.encoder.model.get_input_embeddings().weight)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_accumulation_is_the_gradient_of_the_larger_batch(tiny_model: Path, tmp_path: Path, accumulate: int) -> None:
    # Regression is a mean over pairs, so that two batches of 8 are one of 16. Without dropout, and in float32.
    pairs, results = pairs_of(16), []
    for batch in (16, 16 // accumulate):
        model = load(tiny_model, precision="float32")
        for module in model.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.encoder.model.config.attention_probs_dropout_prob = 0.0
        for module in model.model.modules():
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = 0.0
        loop = LoopSettings(batch=batch, accumulate=16 // batch, lr=1e-3, clip=1e9)
        stage = Stage(PairObjective("regression", [pairs]), 1)
        state = train(model, [stage], loop, RunFolder(tmp_path / f"{batch}", {}), None, NoProgress())
        results.append(state.curve[0].loss)
    assert results[0] == pytest.approx(results[1], abs=1e-5)


def test_a_run_that_stops_between_any_two_steps_ends_with_the_same_weights(tiny_model: Path, tmp_path: Path) -> None:
    def run(folder: Path, stop_after: int | None) -> dict[str, torch.Tensor] | None:
        """None where it was stopped."""
        model, calls = load(tiny_model), 0

        def dev() -> dict[str, float]:
            nonlocal calls
            calls += 1
            if calls == stop_after:
                raise KeyboardInterrupt
            return {"made up": 1.0}

        stages = [
            Stage(PairObjective("cosent", [pairs_of(60)]), 7),
            Stage(InBatchObjective([pairs_of(60, seed=2)]), 5),
        ]
        try:
            train(model, stages, LoopSettings(batch=8, lr=1e-3, eval_every=2), RunFolder(folder, {}), dev, NoProgress())
        except KeyboardInterrupt:
            return None
        return weights_of(model)

    whole = run(tmp_path / "whole", None)
    assert whole is not None
    for stop in range(1, 8):  # points after steps 2, 4, 6, 7 and 2, 4, 5
        assert run(tmp_path / f"{stop}", stop) is None
        resumed = run(tmp_path / f"{stop}", None)
        assert resumed is not None
        assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def test_a_loss_that_is_no_number_stops_and_names_the_batch(tiny_model: Path, tmp_path: Path) -> None:
    model = load(tiny_model)
    steps = 0

    class Broken(PairObjective):
        def loss(self, model: TrainableEncoder, source: int, rows: np.ndarray) -> torch.Tensor:
            nonlocal steps
            steps += 1
            found = super().loss(model, source, rows)
            return found * float("nan") if steps == 5 else found

    folder = RunFolder(tmp_path / "run", {})
    with pytest.raises(
        DivergedError, match=r"the loss is nan at step 5, in the batch of 32 from made up with rows \d+"
    ):
        train(
            model,
            [Stage(Broken("cosent", [pairs_of(64)]), 9)],
            LoopSettings(eval_every=2),
            folder,
            lambda: {"made up": 1.0},
            NoProgress(),
        )
    found = folder.load()
    assert found is not None
    assert found[0].step == 4
    assert folder.load_best() is not None
    assert all(torch.isfinite(value).all() for value in weights_of(model).values())


def test_patience_ends_a_stage(tiny_model: Path, tmp_path: Path) -> None:
    scores = iter([1.0, 3.0, 2.0, 3.0, 2.0, 9.0])
    state = train(
        load(tiny_model),
        [Stage(PairObjective("cosent", [pairs_of(64)]), 12)],
        LoopSettings(eval_every=1, patience=3),
        RunFolder(tmp_path / "run", {}),
        lambda: {"made up": next(scores)},
        NoProgress(),
    )
    assert [point.dev["made up"] for point in state.curve] == [1.0, 3.0, 2.0, 3.0, 2.0]
    assert state.best is not None
    assert state.best.step == 2
    assert state.stopped == "no gain in 3 measurements"


def test_a_blend_lies_between_and_the_best_is_kept(tiny_model: Path) -> None:
    model = load(tiny_model)
    start = weights_of(model)
    end = {name: value + 1 for name, value in start.items()}
    set_weights(model, start, end, 0.25)
    assert all(torch.allclose(value, start[name] + 0.25, atol=1e-6) for name, value in weights_of(model).items())
    found = choose_blend(model, start, end, DevSets([pairs_of(60)]), (0.0, 1.0))
    best = max(found, key=lambda blend: found[blend]["made up"])
    assert all(torch.allclose(value, start[name] + best, atol=1e-6) for name, value in weights_of(model).items())


@pytest.mark.parametrize("text", ["0", "1.5", "-1", "nan", "half"])
def test_a_blend_outside_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected auto"):
        check_blend(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch", 0), ("lr", 0.0), ("lr", float("nan")), ("warmup", 2.0), ("clip", -1.0), ("mix", "some"), ("seed", -1)],
)
def test_settings_outside_are_refused(name: str, value: float | str) -> None:
    with pytest.raises(UsageError, match=f"{value}" if name == "mix" else name.replace("warmup", "warm-up")):
        LoopSettings(**{name: value})  # type: ignore[arg-type]


def test_another_run_in_the_folder_is_refused_and_named(tmp_path: Path) -> None:
    about = {"settings": {"lr": 1e-5}, "data": [{"name": "a.tsv", "sha256": "1"}]}
    RunFolder(tmp_path / "run", about)
    RunFolder(tmp_path / "run", about)
    with pytest.raises(TrainingError, match=r'data 1 sha256 "1" -> "2"; settings lr 1e-05 -> 2e-05'):
        RunFolder(tmp_path / "run", {"settings": {"lr": 2e-5}, "data": [{"name": "a.tsv", "sha256": "2"}]})


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", {})
    folder.save(State(step=3, curve=[Point(0, 3, 0.5, {}, 1.0)]), {"model.w": torch.ones(3)})
    found = folder.load()
    assert found is not None
    assert found[0].curve[0].loss == 0.5
    (tmp_path / "run" / "last" / "state.safetensors").write_bytes(b"no")
    with pytest.raises(TrainingError, match="is damaged"):
        folder.load()


def start_training(folder: Path, tiny_model: Path, output: str, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "retrieval.cli.main", "train", "cosent", "pairs.tsv", "--model", str(tiny_model)]
    command += ["-o", output, "--steps", "40", "--eval-every", "4", "--lr", "1e-3", "--no-advise", "--quiet", *more]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition() and process.poll() is None:
        time.sleep(0.01)


def test_a_run_killed_at_any_moment_ends_with_the_same_model(tiny_model: Path, tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.tsv", pairs_of(300))
    assert start_training(tmp_path, tiny_model, "whole").wait(timeout=120) == 0
    state = tmp_path / "killed.training" / "last" / "state.json"
    killed = 0
    for wanted in (4, 12, 20, 36):
        process = start_training(tmp_path, tiny_model, "killed")

        def has_come(wanted: int = wanted) -> bool:
            try:
                return bool(json.loads(state.read_text())["step"] >= wanted)
            except (OSError, ValueError):
                return False

        wait_for(has_come, process)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed >= 3  # it may have been faster once
    assert start_training(tmp_path, tiny_model, "killed").wait(timeout=120) == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert not (tmp_path / "killed.training").exists()
    records = [json.loads((tmp_path / name / "training.json").read_text()) for name in ("whole", "killed")]
    curves = [[(point["step"], point["loss"], point["dev"]) for point in record["curve"]] for record in records]
    assert curves[0] == curves[1]


def test_the_folder_is_plain_sentence_transformers_and_serves_retr(
    tiny_model: Path, tmp_path: Path, retr: Retr
) -> None:
    pairs = write_pairs(tmp_path / "pairs.tsv", pairs_of(200))
    test = write_pairs(tmp_path / "test.tsv", pairs_of(100, seed=5))
    done = retr(
        *("train", "cosent", pairs, "--model", tiny_model, "-o", "out", "--steps", "20", "--lr", "1e-3"),
        *("--eval-every", "10", "--test", test),
    )
    assert done.returncode == 0, done.stderr
    assert "test.tsv: Spearman" in done.stdout
    assert "transform" in done.stdout
    record = json.loads((tmp_path / "out" / "training.json").read_text(encoding="utf-8"))
    assert {file["role"] for file in record["data"]} == {"training", "test, scored once"}
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert record["data"][0]["sha256"] in card
    assert "retr train cosent" in card
    assert "does not help" in card or "helps" in card

    texts = random_texts(20, seed=3)
    ours = load_encoder(resolve_settings(tmp_path / "out"), "cpu").encode(texts)
    sentence_transformers = pytest.importorskip("sentence_transformers")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    assert np.abs(ours - theirs).max() < 1e-5
    start = load_encoder(resolve_settings(tiny_model), "cpu").encode(texts)
    assert np.abs(ours - start).max() > 1e-3

    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    assert retr("index", "texts.txt", "--model", "out").returncode == 0
    hit = json.loads(retr("query", texts[0], "--json", "-k", "1").stdout)
    assert hit["text"] == texts[0]

    again = retr("train", "cosent", pairs, "--model", tiny_model, "-o", "out", "--steps", "20")
    assert again.returncode == 1
    assert "--fresh trains anew" in again.stderr


def test_pairs_of_a_test_set_are_not_trained_on(tiny_model: Path, tmp_path: Path, retr: Retr) -> None:
    known = pairs_of(100)
    pairs = write_pairs(tmp_path / "pairs.tsv", known)
    turned = TextPairs("", "", known.second[:10], known.first[:10], known.labels[:10])
    test = write_pairs(tmp_path / "test.tsv", turned)
    done = retr(
        *("train", "cosent", pairs, "--model", tiny_model, "-o", "out", "--steps", "2", "--no-advise"),
        *("--test", test),
    )
    assert done.returncode == 0, done.stderr
    assert "10 of 100 pairs stand in" in done.stderr


def test_changed_settings_and_data_are_refused_until_fresh(tiny_model: Path, tmp_path: Path, retr: Retr) -> None:
    pairs = write_pairs(tmp_path / "pairs.tsv", pairs_of(100))
    process = start_training(tmp_path, tiny_model, "out", "--patience", "0")
    state = tmp_path / "out.training" / "last" / "state.json"
    wait_for(state.exists, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    same = ("train", "cosent", pairs, "--model", tiny_model, "-o", "out", "--steps", "40", "--no-advise")
    changed = retr(*same, "--eval-every", "4", "--lr", "2e-3")
    assert changed.returncode == 1
    assert "settings lr 0.001 -> 0.002" in changed.stderr
    write_pairs(pairs, pairs_of(120))
    changed = retr(*same, "--eval-every", "4", "--lr", "1e-3")
    assert changed.returncode == 1
    assert "data 1 rows 100 -> 120" in changed.stderr
    assert "sha256" in changed.stderr
    assert state.exists()
    fresh = retr(*same, "--eval-every", "4", "--lr", "1e-3", "--fresh")
    assert fresh.returncode == 0, fresh.stderr


def test_a_full_disk_while_saving_keeps_what_was_saved(tiny_model: Path, tmp_path: Path) -> None:
    # A limit on the size of a file is the full disk that every machine has.
    write_pairs(tmp_path / "pairs.tsv", pairs_of(100))
    command = [sys.executable, "-m", "retrieval.cli.main", "train", "cosent", "pairs.tsv", "--model", str(tiny_model)]
    command += ["-o", "out", "--steps", "8", "--eval-every", "4", "--no-advise"]
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
        f"sys.argv = {['retr', *command[3:]]!r}; runpy.run_module('retrieval.cli.main', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", limited], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1
    error = done.stderr.decode()
    assert "cannot be saved" in error
    assert "make room" in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cosent", "one.tsv"), "all 40 labels are 1"),
        (("cosent", "scores.tsv"), "line 8: the score is 6"),
        (("cosent", "nowhere.tsv"), "nowhere.tsv"),
        (("simbert", "pairs.tsv", "--batch", "1"), "a batch of 1"),
        (("simcse", "pairs.tsv", "--batch", "1"), "a batch of 1"),
        (("sbert", "--stage", "triplets:pairs.tsv"), "anchor"),
        (("sbert", "--stage", "pairs.tsv"), "nli:FILE"),
        (("cosent", "pairs.tsv", "pairs.tsv"), "named twice"),
        (("cosent", "pairs.tsv", "--hold-out", "1"), "hold-out is 1"),
        (("cosent", "pairs.tsv", "--precision", "int8"), "int8"),
        (("cosent", "pairs.tsv", "--freeze", "all"), "'all'"),
        (("cosent", "pairs.tsv", "--steps", "0"), "steps are 0"),
        (("cosent", "pairs.tsv", "-o", "pairs.tsv"), "is a file"),
        (("cosent", "pairs.tsv", "-o", "other"), "no folder that retr train wrote"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tiny_model: Path, tmp_path: Path, retr: Retr, arguments: tuple[str, ...], words: str
) -> None:
    pairs = pairs_of(40)
    write_pairs(tmp_path / "pairs.tsv", pairs)
    write_pairs(tmp_path / "one.tsv", TextPairs("", "", pairs.first, pairs.second, np.ones(40)))
    write_pairs(tmp_path / "scores.tsv", TextPairs("", "", pairs.first, pairs.second, np.arange(40) % 8.0))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    done = retr("train", *arguments, *(() if "-o" in arguments else ("-o", "out")), "--model", tiny_model)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before
