"""Rows held out of a trial fit, moments kept beside an index, and queries against them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Retr, random_texts
from numpy.typing import NDArray

from retrieval import Index
from retrieval.encoders.base import Encoder
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.errors import TransformError, UsageError
from retrieval.index import folder as layout
from retrieval.transforms.held_out import NORM_ALARM, SHIFT_ALARM, Fitness, SplitMoments
from retrieval.transforms.moments import Moments
from retrieval.transforms.spec import TransformSpec, parse_transform
from retrieval.transforms.whitening import Whitening
from retrieval.types import NoProgress


def normal(rows: int, dimension: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(rows, dimension)).astype(np.float32)


def moments_of(rows: NDArray[np.float32]) -> Moments:
    moments = Moments(rows.shape[1])
    moments.update(rows)
    return moments


def split_of(*chunks: NDArray[np.float32]) -> SplitMoments:
    split = SplitMoments(chunks[0].shape[1])
    for chunk in chunks:
        split.update(chunk)
    return split


def spec_of(text: str) -> TransformSpec:
    spec = parse_transform(text)
    assert spec is not None
    return spec


class Notes(NoProgress):
    """A progress that remembers what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_fitness_of_worked_values() -> None:
    fitted = moments_of(np.array([[1, 0], [-1, 0], [0, 2], [0, -2]] * 100, dtype=np.float32))
    others = moments_of(np.array([[3, 0], [3, 4]] * 200, dtype=np.float32))
    transform, _ = Whitening.fit(fitted, 2)
    fitness = Fitness.of(transform, fitted, others)
    # Variances 1/2 and 2: the others, whitened, are (3 sqrt 2, 0) and (3 sqrt 2, 4 / sqrt 2), of squares 18 and 26,
    # beside m = 2 for the fitted.
    assert fitness.norm_ratio == pytest.approx(np.sqrt(22 / 2), rel=1e-6)
    # Means (0, 0) and (3, 2), trace 5/2, n = 400 each: 13 / 2.5 - 2 / 400
    assert fitness.mean_shift == pytest.approx(np.sqrt(5.2 - 0.005), rel=1e-6)


@pytest.mark.parametrize("name", ["whiten-5", "rotate-5", "soft-5", "whiten-5:beta=0.5"])
def test_norm_ratio_is_that_of_the_transformed_rows_themselves(name: str) -> None:
    spec, fitted, others = spec_of(name), normal(300, 8) + 1, 2 * normal(50, 8, 1) + 3
    transform, _ = Whitening.fit(moments_of(fitted), spec.m, beta=spec.beta, gamma=spec.gamma)
    lengths = [np.sqrt((transform.transform(rows) ** 2).sum(axis=1).mean()) for rows in (others, fitted)]
    ratio = Fitness.of(transform, moments_of(fitted), moments_of(others)).norm_ratio
    assert ratio == pytest.approx(lengths[0] / lengths[1], rel=1e-5)


def test_few_rows_a_dimension_raise_the_alarm_and_many_do_not() -> None:
    spec = spec_of("whiten-64")
    for rows, alarm in ((100, True), (110, True), (64 * 3, False), (64 * 20, False)):
        fitness = split_of(normal(rows, 64)).trial(spec)
        assert fitness is not None
        assert (fitness.norm_ratio > NORM_ALARM) == alarm == bool(fitness.alarms("rows"))
        assert fitness.norm_ratio == pytest.approx(np.sqrt(0.9 * rows / (0.9 * rows - 64)), rel=0.3)


def test_as_many_dimensions_as_rows_allow_are_far_beyond_the_alarm() -> None:
    fitness = split_of(normal(110, 98)).trial(spec_of("whiten-98"))
    assert fitness is not None
    assert fitness.norm_ratio > 5
    (alarm,) = fitness.alarms("held-out rows")
    assert alarm.startswith("held-out rows are ")
    assert "keep fewer dimensions" in alarm


def test_rows_outside_of_all_that_was_fitted_on_raise_the_alarm_by_their_shortness() -> None:
    fitness = split_of(normal(40, 256)).trial(spec_of("whiten-30"))
    assert fitness is not None
    assert fitness.norm_ratio < 1 / NORM_ALARM
    assert "keep fewer dimensions" in fitness.alarms("held-out rows")[0]


def test_mean_shift_is_nothing_for_rows_of_one_kind_however_few_and_alarms_for_others() -> None:
    fitted = moments_of(normal(1000, 32))
    transform, _ = Whitening.fit(fitted, 16)
    for rows in (1, 5, 50):
        assert Fitness.of(transform, fitted, moments_of(normal(rows, 32, seed=rows))).mean_shift < SHIFT_ALARM
    drifted = Fitness.of(transform, fitted, moments_of(normal(50, 32, 9) + 0.8))
    assert drifted.mean_shift == pytest.approx(0.8, rel=0.1)
    assert "of another kind" in drifted.alarms("the queries")[-1]


def test_split_moments_are_the_same_under_any_chunking_and_leave_out_zeros() -> None:
    rows = normal(95, 6)
    with_zeros = np.insert(rows, [0, 30, 95], 0, axis=0)
    one, other = split_of(rows), split_of(with_zeros[:7], with_zeros[7:40], with_zeros[40:])
    assert (one.fitted.rows, one.held_out.rows) == (other.fitted.rows, other.held_out.rows) == (86, 9)
    for part in ("fitted", "held_out"):
        np.testing.assert_array_equal(getattr(one, part).covariance(), getattr(other, part).covariance())
    np.testing.assert_array_equal(one.held_out.mean(), moments_of(rows[9::10]).mean())
    np.testing.assert_allclose(one.whole().covariance(), moments_of(rows).covariance(), rtol=1e-12, atol=1e-15)
    with_zeros[50, 1] = np.nan
    with pytest.raises(TransformError, match="row 50 holds NaN"):
        split_of(with_zeros[:33], with_zeros[33:])


def test_a_corpus_too_small_to_hold_rows_out_has_no_trial() -> None:
    assert split_of(normal(9, 4)).trial(spec_of("whiten-2")) is None
    assert split_of(np.ones((40, 4), np.float32)).trial(spec_of("whiten-2")) is None
    assert split_of(np.ones((40, 4), np.float32)).trial(spec_of("rotate-1")) == Fitness(1.0, 0.0)


def test_saved_split_moments_are_those_of_the_embeddings_named(tmp_path: Path) -> None:
    path, split = tmp_path / "m.safetensors", split_of(normal(95, 6))
    split.save(path, "abc")
    loaded = SplitMoments.load(path, "abc")
    for each in (split, loaded):
        each.update(normal(44, 6, 1))
    np.testing.assert_array_equal(split.whole().covariance(), loaded.whole().covariance())
    with pytest.raises(TransformError, match="of other embeddings"):
        SplitMoments.load(path, "abd")


def test_a_floor_below_the_usual_needs_exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.transforms.held_out.USUAL", 0)
    split = split_of(normal(95, 6))
    assert split.serves(spec_of("whiten-3"))
    assert not split.serves(spec_of("whiten-3:eps=0"))
    assert SplitMoments(6, exact=True).serves(spec_of("whiten-3:eps=0"))


@pytest.fixture(scope="module")
def encoder(tiny_model: Path) -> Encoder:
    return load_encoder(resolve_settings(tiny_model), "cpu")


def test_another_transform_takes_the_moments_that_the_index_keeps(
    corpus: Path, tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Index.build(corpus, tmp_path / "i", encoder=encoder, transform="whiten-8")
    assert layout.MOMENTS in first.manifest.files
    assert first.manifest.transform["held_out_norm_ratio"] == pytest.approx(1, abs=0.2)
    assert 0 <= first.manifest.transform["mean_shift"] < SHIFT_ALARM
    wanted = Index.build(corpus, tmp_path / "other", encoder=encoder, transform="rotate-16:gamma=0.3,eps=0")

    def refuse(self: SplitMoments, embeddings: Any) -> None:
        raise AssertionError("a pass over the embeddings")

    monkeypatch.setattr(SplitMoments, "update", refuse)
    second = Index.build(corpus, tmp_path / "i", encoder=encoder, transform="rotate-16:gamma=0.3,eps=0")
    transform = second.manifest.transform
    assert [transform[key] for key in ("name", "beta", "gamma", "m", "eps")] == [
        "rotate-16:gamma=0.3,eps=0", 0, 0.3, 16, 0,
    ]  # fmt: skip
    same = [(tmp_path / name / layout.TRANSFORM).read_bytes() for name in ("i", "other")]
    assert same[0] == same[1]
    assert wanted.manifest.transform == transform
    corpus.write_text("\n".join(random_texts(400, seed=5)), encoding="utf-8")
    with pytest.raises(AssertionError, match="a pass over"):
        Index.build(corpus, tmp_path / "i", encoder=encoder, transform="whiten-8")


def test_a_build_that_fits_too_many_dimensions_warns(tmp_path: Path, encoder: Encoder) -> None:
    (tmp_path / "few.txt").write_text("\n".join(random_texts(36)), encoding="utf-8")
    notes = Notes()
    index = Index.build(tmp_path / "few.txt", tmp_path / "i", encoder=encoder, transform="whiten-31", progress=notes)
    assert index.manifest.transform["held_out_norm_ratio"] > NORM_ALARM
    assert any("warning: vectors held out of a trial fit are" in note for note in notes.notes)


def test_queries_are_compared_with_the_documents(corpus: Path, tmp_path: Path, encoder: Encoder) -> None:
    index = Index.build(corpus, tmp_path / "i", encoder=encoder, transform="whiten-8")
    fitness = index.fitness(random_texts(100, seed=3))
    assert fitness.norm_ratio == pytest.approx(1, abs=0.3)
    assert fitness.alarms("the queries") == []
    assert index.fitness(["7"] * 50).mean_shift > SHIFT_ALARM
    with pytest.raises(UsageError, match="query 2 is blank"):
        index.fitness(["a", " "])
    plain = Index.build(corpus, tmp_path / "plain", encoder=encoder, transform="none")
    assert layout.MOMENTS not in plain.manifest.files
    with pytest.raises(UsageError, match=r"keeps no moments\.safetensors"):
        plain.fitness(["a"])


def test_info_shows_how_queries_fit(corpus: Path, tmp_path: Path, encoder: Encoder, retr: Retr) -> None:
    Index.build(corpus, tmp_path / "i", encoder=encoder, transform="whiten-8:gamma=0.9")
    (tmp_path / "queries.txt").write_text("7\n\n7\r\n7\n", encoding="utf-8")
    done = retr("info", "-i", "i", "--queries", "queries.txt")
    assert done.returncode == 0, done.stderr
    assert "transform    whiten-8:gamma=0.9 (beta 1, gamma 0.9, eps 1e-09), fitted on 500 vectors" in done.stdout
    assert "held out     a tenth of the vectors: " in done.stdout
    assert "queries      3 texts: " in done.stdout
    assert "warning: the mean of the queries lies " in done.stderr
    content = json.loads(retr("info", "-i", "i", "--queries", "queries.txt", "--json", "-q").stdout)
    assert content["queries"].keys() == {"count", "norm_ratio", "mean_shift"}
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf-8")
    for name, message in (("absent.txt", "cannot be read: No such file"), ("blank.txt", "hold no text")):
        done = retr("info", "-i", "i", "--queries", name)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
