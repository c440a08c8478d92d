"""Training as a whole: batches, steps, checkpoints, resume after a kill, what is written, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_pairs import pairs_of

from retrieval.encoders.load import resolve_settings
from retrieval.errors import TrainingError, UsageError
from retrieval.training import losses
from retrieval.training.batches import MIXES, plan
from retrieval.training.checkpoints import Point, RunFolder, State
from retrieval.training.choice import (
    DevSets,
    Scores,
    best_of,
    check_blend,
    choose_blend,
    set_weights,
    short_names,
    weights_of,
)
from retrieval.training.examples import NliPairs
from retrieval.training.loop import DivergedError, LoopSettings, Stage, rate, train
from retrieval.training.model import TrainableEncoder
from retrieval.training.objectives import (
    CosentObjective,
    InBatchObjective,
    NliObjective,
    StsObjective,
    distinct,
    related,
)
from retrieval.training.simbert import SimbertObjective, WritingEncoder
from retrieval.types import NoProgress


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
    assert np.mean(spreads) < 3  # of a random batch it is 88


@pytest.mark.parametrize(("mix", "share"), [("sqrt", 1 / 3), ("size", 1 / 5), ("even", 1 / 2), ("3,1", 3 / 4)])
def test_sources_have_their_turn_by_the_mix(mix: str, share: float) -> None:
    # 100 and 400 examples: by the root 10 to 20, by size 1 to 4.
    planned = plan([np.ones(100, np.int64), np.ones(400, np.int64)], 8, 4000, 0, mix)
    assert abs(np.mean([batch.source == 0 for batch in planned]) - share) < 0.03


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        ("3,1,1", r"'3,1,1' has 3 weights, expected one of each of 2 sources"),
        ("3,0", r"'3,0': expected one of sqrt, size, even, or a weight above 0 of each source"),
        ("3,nan", "'3,nan'"),
        ("much", "'much'"),
        ("", "''"),
    ],
)
def test_a_mix_that_fits_no_sources_is_refused(mix: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan([np.ones(9, np.int64)] * 2, 4, 5, 0, mix)


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


def test_the_in_batch_loss_is_added_on_labels_of_0_and_1_alone(tiny_model: Path) -> None:
    model = load(tiny_model)
    model.model.eval()
    rows, grades = np.arange(12), pairs_of(12)
    grades = replace(grades, labels=grades.labels * 4 + 1)
    with torch.no_grad():
        for pairs, added in ((pairs_of(12), True), (grades, False)):
            plain, both = (
                float(CosentObjective([pairs], in_batch=weight).loss(model, 0, rows)) for weight in (0.0, 0.5)
            )
            first, second = (model.vectors(side) for side in (pairs.first, pairs.second))
            shared = torch.eye(12, dtype=torch.bool)
            ranking = float(losses.in_batch_ranking(first, second, torch.tensor(pairs.labels == 1), shared))
            assert both == pytest.approx(plain + 0.5 * ranking * added, rel=1e-4)
            assert both > plain or not added


def test_pairs_that_share_a_sentence_on_either_side_are_related() -> None:
    first, second = ["a", "b", "c", "a"], ["x", "y", "b", "z"]
    expected = [[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]]
    assert related(first, second, np.arange(4)).tolist() == np.array(expected, dtype=bool).tolist()


def test_training_lifts_the_dev_sets_and_leaves_word_embeddings_alone(tiny_model: Path, tmp_path: Path) -> None:
    model = load(tiny_model)
    words = model.encoder.model.get_input_embeddings().weight.detach().clone()
    dev = DevSets([pairs_of(100, seed=7)])
    before = dev.scores(model).by_set["made up"]
    state = train(
        model,
        [Stage(CosentObjective([pairs_of(200)]), 30)],
        LoopSettings(lr=1e-3, eval_every=10),
        RunFolder(tmp_path / "run", {}),
        lambda: dev.scores(model),
        NoProgress(),
    )
    assert [point.step for point in state.curve] == [0, 10, 20, 30]
    assert state.curve[0].loss is None
    assert state.curve[0].mean == before
    assert state.curve[1].loss is not None
    assert state.curve[-1].loss is not None
    assert state.curve[-1].loss < state.curve[1].loss
    assert state.best is not None
    assert state.best.mean > before
    assert torch.equal(words, model.encoder.model.get_input_embeddings().weight)


def test_two_batches_a_step_are_one_of_twice_the_size(tiny_model: Path, tmp_path: Path) -> None:
    # Regression is a mean over pairs, so that two batches of 8 are one of 16. Without dropout, and in float32.
    pairs, losses, weights = pairs_of(16), [], []
    for batch in (16, 8):
        model = load(tiny_model, precision="float32")
        for module in model.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = 0.0
        loop = LoopSettings(batch=batch, accumulate=16 // batch, lr=1e-3, clip=1e9)
        state = train(
            model, [Stage(StsObjective([pairs]), 1)], loop, RunFolder(tmp_path / f"{batch}", {}), None, NoProgress()
        )
        losses.append(state.curve[0].loss)
        weights.append(torch.cat([value.flatten() for value in weights_of(model).values()]))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    # AdamW's first step is the gradient's sign: where that is near 0, rounding decides.
    assert float(((weights[0] - weights[1]).abs() < 1e-5).float().mean()) > 0.98
    start = torch.cat([value.flatten() for value in weights_of(load(tiny_model)).values()])
    assert float(((weights[0] - start).abs() > 1e-4).float().mean()) > 0.9


def inferences(count: int) -> NliPairs:
    pairs = pairs_of(count, seed=3)
    return NliPairs("inferences", "", pairs.first, pairs.second, np.arange(count) % 3)


def staged(tiny_model: Path, headed: Path) -> tuple[TrainableEncoder, list[Stage]]:
    model = load(tiny_model)
    objectives = [
        NliObjective(inferences(60), model.dimension),
        CosentObjective([pairs_of(60)]),
        InBatchObjective([pairs_of(60, seed=2)]),
    ]
    return model, [Stage(objective, steps) for objective, steps in zip(objectives, (3, 4, 2), strict=True)]


def writing(tiny_model: Path, headed: Path) -> tuple[TrainableEncoder, list[Stage]]:
    model = WritingEncoder(resolve_settings(headed, pooling="cls"), device="cpu")
    return model, [Stage(SimbertObjective([pairs_of(60)]), 7)]


@pytest.mark.parametrize(("make", "points"), [(staged, 6), (writing, 5)])
def test_a_run_that_stops_between_any_two_steps_ends_with_the_same_weights(
    tiny_model: Path,
    headed: Path,
    tmp_path: Path,
    make: Callable[[Path, Path], tuple[TrainableEncoder, list[Stage]]],
    points: int,
) -> None:
    def run(folder: Path, stop_after: int | None) -> dict[str, torch.Tensor] | None:
        """None where it was stopped."""
        (model, stages), calls = make(tiny_model, headed), 0

        def dev() -> Scores:
            nonlocal calls
            calls += 1
            if calls == stop_after:
                raise KeyboardInterrupt
            return Scores({"made up": 1.0}, 1.0)

        loop = LoopSettings(batch=8, lr=1e-3, eval_every=2)
        try:
            state = train(model, stages, loop, RunFolder(folder, {}), dev, NoProgress())
        except KeyboardInterrupt:
            return None
        assert len(state.curve) == points
        return weights_of(model)

    whole = run(tmp_path / "whole", None)
    assert whole is not None
    for stop in range(1, points + 1):  # before any; of the stages after steps 2 and 3, 2 and 4, and 2
        assert run(tmp_path / f"{stop}", stop) is None
        resumed = run(tmp_path / f"{stop}", None)
        assert resumed is not None
        assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def test_a_loss_that_is_no_number_stops_and_names_the_batch(tiny_model: Path, tmp_path: Path) -> None:
    model = load(tiny_model)
    steps = 0

    class Broken(CosentObjective):
        def loss(self, model: TrainableEncoder, source: int, rows: np.ndarray) -> torch.Tensor:
            nonlocal steps
            steps += 1
            found = super().loss(model, source, rows)
            return found * float("nan") if steps == 5 else found

    folder = RunFolder(tmp_path / "run", {})
    with pytest.raises(
        DivergedError,
        match=r"the loss is nan at step 5, in the batch of 32 from made up that begins with '.+' \| '.+'; '",
    ):
        train(
            model,
            [Stage(Broken([pairs_of(64)]), 9)],
            LoopSettings(eval_every=2),
            folder,
            lambda: Scores({"made up": 1.0}, 1.0),
            NoProgress(),
        )
    found = folder.load()
    assert found is not None
    assert found[0].step == 4
    assert folder.load_best() is not None
    assert all(torch.isfinite(value).all() for value in weights_of(model).values())


def test_patience_ends_a_stage(tiny_model: Path, tmp_path: Path) -> None:
    scores = iter([0.0, 1.0, 3.0, 2.0, 3.0, 2.0, 9.0])
    state = train(
        load(tiny_model),
        [Stage(CosentObjective([pairs_of(64)]), 12)],
        LoopSettings(eval_every=1, patience=3),
        RunFolder(tmp_path / "run", {}),
        lambda: Scores({"made up": (value := next(scores))}, value),
        NoProgress(),
    )
    assert [point.dev["made up"] for point in state.curve] == [0.0, 1.0, 3.0, 2.0, 3.0, 2.0]
    assert state.best is not None
    assert state.best.step == 2
    assert state.stopped == "at step 5: no gain in 3 measurements"


def test_parts_of_the_sources_and_other_sets_count_the_same() -> None:
    values = {"lcqmc dev": 80.0, "bq dev": 60.0, "sts-b dev": 10.0}
    assert DevSets([], ["lcqmc dev", "bq dev"]).mean(values) == (70 + 10) / 2
    assert DevSets([], list(values)).mean(values) == DevSets([]).mean(values) == 50
    assert DevSets([]).mean({}) == 0


def test_a_blend_lies_between_and_the_best_is_kept(tiny_model: Path) -> None:
    model = load(tiny_model)
    start = weights_of(model)
    end = {name: value + 1 for name, value in start.items()}
    set_weights(model, start, end, 0.25)
    assert all(torch.allclose(value, start[name] + 0.25, atol=1e-6) for name, value in weights_of(model).items())
    found = choose_blend(model, start, [end], DevSets([pairs_of(60)]), (0.0, 1.0))
    assert found.keys() == {(0, 0.0), (0, 1.0)}
    _, best = best_of(found)
    assert all(torch.allclose(value, start[name] + best, atol=1e-6) for name, value in weights_of(model).items())


def test_part_of_the_way_to_the_last_weights_may_do_better_than_the_best_of_the_curve(tiny_model: Path) -> None:
    model = load(tiny_model)
    start = weights_of(model)
    name = next(iter(start))

    class Wanted(DevSets):
        """The nearer to 1.5 steps from the start, the better."""

        def scores(self, model: TrainableEncoder) -> Scores:
            moved = float((weights_of(model)[name] - start[name]).mean())
            return Scores({}, -abs(moved - 1.5))

    ends = [{key: value + steps for key, value in start.items()} for steps in (1, 2)]
    found = choose_blend(model, start, ends, Wanted([]))
    assert best_of(found) == (1, 0.75)
    assert float((weights_of(model)[name] - start[name]).mean()) == pytest.approx(1.5, abs=1e-5)
    assert best_of({(0, 1.0): Scores({}, 2.0), (1, 0.5): Scores({}, 2.0)}) == (0, 1.0)


def test_files_are_shown_without_their_folders_unless_they_are_mixed_up() -> None:
    assert short_names(["lcqmc dev", "/long/way/pairs.tsv"]) == {
        "lcqmc dev": "lcqmc dev",
        "/long/way/pairs.tsv": "pairs.tsv",
    }
    assert short_names(["a/x.tsv", "b/x.tsv"]) == {"a/x.tsv": "a/x.tsv", "b/x.tsv": "b/x.tsv"}


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
