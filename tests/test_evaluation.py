"""Correlations against scipy and scikit-learn, intervals against a plain bootstrap."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics
from test_pairs import HEADER, write_set

from retrieval.encoders.base import EncoderCounts, EncoderSettings
from retrieval.errors import TransformError, UsageError
from retrieval.evaluation.bootstrap import interval, resampled
from retrieval.evaluation.correlation import (
    accuracy,
    attainable_spearman,
    auc,
    average_ranks,
    best_thresholds,
    f1,
    pearson,
    spearman,
)
from retrieval.evaluation.evaluate import System, evaluate, make_task
from retrieval.evaluation.measures import MEASURES, Thresholds, difference, measure
from retrieval.evaluation.report import as_json, as_latex, as_markdown, as_table
from retrieval.evaluation.scoring import EncodedTexts
from retrieval.transforms.spec import parse_transform

TOLERANCE = 1e-12  # float64 sums over some hundred values, in another order than scipy's

Floats = NDArray[np.float64]
numbers = st.floats(-100, 100, allow_subnormal=False).map(lambda value: round(value, 3))


def floats(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def noisy(n: int = 300, seed: int = 0, decimals: int = 1) -> tuple[Floats, Floats]:
    """Scores with many ties, and labels 0 and 1 that agree with them more often than not."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, n).astype(np.float64)
    return np.round(random.normal(size=n) + labels, decimals), labels


# Worked values


def test_average_ranks_of_ties_are_their_mean() -> None:
    # 10 takes rank 1; the two 20s share ranks 2 and 3; 30 takes 4.
    assert average_ranks(floats(20, 10, 30, 20)).tolist() == [2.5, 1, 4, 2.5]
    assert average_ranks(floats()).tolist() == []


def test_pearson_of_a_worked_example() -> None:
    # (1, 2, 3) and (1, 3, 2), centred: (-1, 0, 1) . (-1, 1, 0) = 1, lengths sqrt(2) and sqrt(2).
    assert pearson(floats(1, 2, 3), floats(1, 3, 2)) == pytest.approx(0.5, abs=TOLERANCE)


def test_spearman_of_a_worked_example_with_ties() -> None:
    # Ranks (1, 2, 3, 4) and labels' (1.5, 1.5, 3.5, 3.5), centred: 1.5 + .5 + .5 + 1.5 = 4, squares 5 and 4.
    assert spearman(floats(0.1, 0.2, 0.3, 0.4), floats(0, 0, 1, 1)) == pytest.approx(4 / math.sqrt(20), abs=TOLERANCE)


def test_auc_counts_ties_as_half() -> None:
    # Label 1 has .5 and .9, label 0 has .1 and .5: three of four pairs are right, one is a tie.
    assert auc(floats(0.5, 0.9, 0.1, 0.5), floats(1, 1, 0, 0)) == 3.5 / 4


def test_accuracy_and_f1_of_a_worked_example() -> None:
    # From .5 on: taken (yes, no, yes, no), labels (1, 1, 0, 0): TP 1, FP 1, FN 1, TN 1.
    scores, labels = floats(0.9, 0.1, 0.5, 0.2), floats(1, 1, 0, 0)
    assert accuracy(scores, labels, 0.5) == 0.5
    assert f1(scores, labels, 0.5) == 0.5


def test_attainable_spearman_of_balanced_labels_is_the_root_of_three_quarters() -> None:
    labels = np.repeat([0.0, 1.0], 6250)
    assert attainable_spearman(labels) == pytest.approx(math.sqrt(3) / 2, abs=1e-8)
    # n = 4 in two halves: 1 - 2 (8 - 2) / (64 - 4) = .8
    assert attainable_spearman(floats(0, 0, 1, 1)) == pytest.approx(math.sqrt(0.8), abs=TOLERANCE)
    assert attainable_spearman(floats(1, 2, 3)) == 1


def test_best_thresholds_lie_between_scores() -> None:
    # Accuracy: taking .8 and .6 is right 4 of 4 times.
    assert best_thresholds(floats(0.8, 0.2, 0.6, 0.4), floats(1, 0, 1, 0)) == (0.5, 0.5)
    # One of four has label 1, at the lowest score: to take none is right 3 times; F1 needs all taken, 2 / 5.
    scores, labels = floats(0.1, 0.2, 0.3, 0.4), floats(1, 0, 0, 0)
    for_accuracy, for_f1 = best_thresholds(scores, labels)
    assert for_accuracy > 0.4
    assert for_f1 == 0.1
    # Neighbouring floats: the threshold takes the upper one alone.
    low, high = 0.5, math.nextafter(0.5, 1)
    assert best_thresholds(floats(low, high), floats(0, 1)) == (high, high)


# Laws


@given(st.lists(st.tuples(numbers, st.sampled_from([0.0, 1.0])), min_size=2, max_size=40))
def test_correlations_agree_with_scipy_and_scikit_learn(rows: list[tuple[float, float]]) -> None:
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    np.testing.assert_array_equal(average_ranks(scores), stats.rankdata(scores))
    if scores.min() == scores.max() or labels.min() == labels.max():
        assert pearson(scores, labels) is spearman(scores, labels) is None
    else:
        assert pearson(scores, labels) == pytest.approx(stats.pearsonr(scores, labels)[0], abs=TOLERANCE)
        assert spearman(scores, labels) == pytest.approx(stats.spearmanr(scores, labels)[0], abs=TOLERANCE)
    if labels.min() == labels.max():
        assert auc(scores, labels) is None
    else:
        assert auc(scores, labels) == pytest.approx(metrics.roc_auc_score(labels, scores), abs=TOLERANCE)


@given(st.lists(st.tuples(numbers, st.sampled_from([0.0, 1.0])), min_size=1, max_size=30))
def test_no_threshold_is_better_than_the_best(rows: list[tuple[float, float]]) -> None:
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    for_accuracy, for_f1 = best_thresholds(scores, labels)
    assert f1(scores, labels, for_accuracy) is not None or not labels.any()
    for threshold in [*scores, scores.max() + 1]:
        assert (accuracy(scores, labels, for_accuracy) or 0) >= (accuracy(scores, labels, threshold) or 0) - TOLERANCE
        assert (f1(scores, labels, for_f1) or 0) >= (f1(scores, labels, threshold) or 0) - TOLERANCE


@given(st.lists(st.integers(0, 5), min_size=2, max_size=50))
def test_attainable_spearman_is_that_of_a_perfect_scorer_without_ties(grades: list[int]) -> None:
    labels = np.array(grades, dtype=np.float64)
    perfect = np.argsort(np.argsort(labels, kind="stable")).astype(np.float64)
    expected = spearman(perfect, labels)
    assert attainable_spearman(labels) == (None if expected is None else pytest.approx(expected, abs=TOLERANCE))


@given(st.integers(0, 2**32 - 1))
def test_spearman_and_auc_do_not_change_under_rising_functions(seed: int) -> None:
    scores, labels = noisy(50, seed)
    assert spearman(np.exp(scores), labels) == spearman(scores, labels)
    assert auc(np.exp(scores), labels) == auc(scores, labels)


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 4)), min_size=2, max_size=20),
)
def test_weights_count_as_so_many_pairs(rows: list[tuple[int, int, int]]) -> None:
    one, other, weights = np.array(rows, dtype=np.float64).T
    times = weights.astype(int)
    expected = spearman(np.repeat(one, times), np.repeat(other, times))
    found = spearman(one, other, weights)
    assert (found is None) == (expected is None)
    assert found is None or found == pytest.approx(expected, abs=TOLERANCE)
    alike = spearman(one, other, np.full(len(one), 0.7))
    assert alike is None or alike == pytest.approx(spearman(one, other), abs=TOLERANCE)


def test_spearman_without_ties_is_auc_in_other_words() -> None:
    # rho = attainable (2 AUC - 1), exactly, where no two scores are equal.
    scores, labels = noisy(301, decimals=12)
    rho, attainable, area = spearman(scores, labels), attainable_spearman(labels), auc(scores, labels)
    assert rho is not None
    assert attainable is not None
    assert area is not None
    assert rho == pytest.approx(attainable * (2 * area - 1), abs=TOLERANCE)


# Intervals


def plain_bootstrap(scores: Floats, labels: Floats, cuts: tuple[float, float], count: int) -> dict[str, list[float]]:
    """The straightforward bootstrap: draw, copy, compute with scipy and scikit-learn."""
    random = np.random.default_rng(0)
    found: dict[str, list[float]] = {name: [] for name in ("pearson", "spearman", "auc", "accuracy", "f1")}
    for _ in range(count):
        rows = random.integers(len(scores), size=len(scores))
        x, y = scores[rows], labels[rows]
        found["pearson"].append(float(stats.pearsonr(x, y)[0]))
        found["spearman"].append(float(stats.spearmanr(x, y)[0]))
        found["auc"].append(float(metrics.roc_auc_score(y, x)))
        found["accuracy"].append(float(metrics.accuracy_score(y, x >= cuts[0])))
        found["f1"].append(float(metrics.f1_score(y, x >= cuts[1])))
    return found


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_intervals_agree_with_a_straightforward_bootstrap(offset: float) -> None:
    scores, labels = noisy()
    scores, cuts = scores + offset, (offset + 0.4, offset + 0.1)
    expected = plain_bootstrap(scores, labels, cuts, 60)
    measured = measure(scores, labels, Thresholds(*cuts), resamples=60)
    for name, values in expected.items():
        np.testing.assert_allclose(measured.samples[name], values, rtol=0, atol=1e-11 if offset else TOLERANCE)
        low, high = measured.values[name].interval or (None, None)
        assert (low, high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])), abs=1e-11)


def test_resamples_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels = noisy(40)
    whole = resampled(scores, labels, (0.5, 0.5), 30)
    monkeypatch.setattr("retrieval.evaluation.bootstrap._BLOCK_VALUES", 100)
    for name, values in resampled(scores, labels, (0.5, 0.5), 30).items():
        np.testing.assert_array_equal(values, whole[name])


def test_paired_difference_is_that_of_the_same_resamples() -> None:
    scores, labels = noisy()
    other = np.round(scores + np.random.default_rng(9).normal(size=len(scores)), 1)
    cuts = (0.4, 0.1)
    one, two = plain_bootstrap(scores, labels, cuts, 40), plain_bootstrap(other, labels, cuts, 40)
    first, second = (measure(each, labels, Thresholds(*cuts), resamples=40) for each in (scores, other))
    found = difference(first, second)
    for name in one:
        expected = np.quantile(np.array(two[name]) - np.array(one[name]), [0.025, 0.975])
        assert found[name].interval == pytest.approx(tuple(expected), abs=1e-11)
    assert difference(first, first)["spearman"].interval == (0, 0)
    assert difference(first, first)["spearman"].value == 0


def test_resamples_without_a_value_are_left_out() -> None:
    # One of three pairs has label 1: a resample without it, or of it alone, has no correlation.
    samples = resampled(floats(0.1, 0.2, 0.9), floats(0, 0, 1), None, 200)["spearman"]
    assert 0 < np.isnan(samples).sum() < 200
    low, high = interval(samples) or (math.nan, math.nan)
    assert math.isfinite(low)
    assert low <= high
    assert interval(floats(math.nan, math.nan)) is None


# Undefined values


@pytest.mark.parametrize(
    ("scores", "labels", "name", "why"),
    [
        (floats(1, 1, 1), floats(0, 1, 0), "spearman", "all scores are equal"),
        (floats(1, 2, 3), floats(1, 1, 1), "pearson", "all labels are 1"),
        (floats(1, 2, 3), floats(1, 1, 1), "auc", "all labels are 1"),
        (floats(1, 2, 3), floats(1, 1, 1), "share", "all labels are 1"),
        (floats(1), floats(1), "spearman", "there is one pair"),
        (floats(1, 2, 3), floats(0, 2, 3), "auc", "labels are graded, not 0 and 1"),
        (floats(1, 2, 3), floats(0, 2, 3), "f1", "labels are graded, not 0 and 1"),
        (floats(1, 2, 3), floats(0, 0, 0), "f1", "no pair has label 1 or is taken to have it"),
    ],
)
def test_undefined_values_are_none_with_the_reason(scores: Floats, labels: Floats, name: str, why: str) -> None:
    found = measure(scores, labels, Thresholds(9, 9), resamples=20).values[name]
    assert (found.value, found.interval, found.why) == (None, None, why)


@pytest.mark.parametrize("labels", [floats(1, 1, 1), floats(0, 2, 5), floats(0, 1, 1)])
def test_no_defined_value_is_nan(labels: Floats) -> None:
    for value in measure(floats(0.1, 0.1, 0.1), labels, Thresholds(0, 0), resamples=20).values.values():
        assert value.value is None or math.isfinite(value.value)
        assert (value.value is None) == bool(value.why)


# Scoring

VECTORS = {"甲": (1, 0, 0), "乙": (1, 1, 0), "丙": (0, 0, 2), "丁": (0, 0, 0), "戊": (3, 1, 1)}


class Fake:
    """An encoder of known vectors that remembers what it was asked."""

    settings = EncoderSettings("fake", "cls", "", "", 8)
    dimension, fingerprint, family, backend, precision = 3, "f", "raw", "none", "float32"
    counts = EncoderCounts()

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: list[str], kind: str = "document", on_batch: object = None) -> NDArray[np.float32]:
        self.asked += texts
        return np.array([VECTORS[text] for text in texts], dtype=np.float32).reshape(-1, 3)


def test_cosines_of_a_worked_example_encode_each_text_once() -> None:
    encoder = Fake()
    encoded = EncodedTexts(encoder, ["甲", "甲", "乙", "丙", "丁", "戊", "甲"])
    assert encoder.asked == ["甲", "乙", "丙", "丁", "戊"]
    assert (len(encoded), encoded.without_vector) == (5, 1)
    # 甲.乙 = 1 / (1 sqrt 2); a text with itself is exactly 1; one without a vector is 0.
    cosines = encoded.cosines(["甲", "甲", "戊", "丁"], ["乙", "丙", "戊", "甲"])
    assert cosines.tolist() == [pytest.approx(math.sqrt(0.5), abs=1e-7), 0, 1, 0]


def test_a_transform_of_more_dimensions_than_the_texts_carry_is_an_error() -> None:
    encoded = EncodedTexts(Fake(), list(VECTORS))
    spec = parse_transform("whiten-3")
    assert spec is not None
    assert encoded.fit(spec, ["甲", "乙", "丙", "戊"]).m == 3
    with pytest.raises(TransformError, match="cannot keep m = 3"):
        encoded.fit(spec, ["甲", "乙", "丙"])


def test_a_flow_is_fitted_on_the_texts_given(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"文{number}" for number in range(150)]
    vectors = np.random.default_rng(0).normal(3, [1, 2, 4], size=(150, 3)).astype(np.float32)
    monkeypatch.setattr(
        "test_evaluation.VECTORS", {text: row.tolist() for text, row in zip(texts, vectors, strict=True)}
    )
    encoded = EncodedTexts(Fake(), texts)
    spec = parse_transform("flow")
    assert spec is not None
    flow = encoded.fit(spec, texts)
    assert (flow.dimension, flow.m) == (3, 3)
    raw, moved = (encoded.cosines(texts[:-1], texts[1:], transform) for transform in (None, flow))
    # About 3 off the origin, all cosines are high; a standard Gaussian's are not.
    assert raw.mean() > 0.4 > 0.2 > abs(moved.mean())


def _task_file(folder: Path, name: str, rows: list[tuple[str, str, float]]) -> str:
    (folder / name).write_text(HEADER + "".join(f"{a}\t{b}\t{c:g}\n" for a, b, c in rows), encoding="utf-8")
    return str(folder / name)


def test_threshold_comes_from_other_pairs_and_the_difference_is_to_the_first(tmp_path: Path) -> None:
    measured = _task_file(tmp_path, "a.tsv", [("甲", "乙", 1), ("甲", "丙", 0), ("乙", "戊", 1)])
    tuning = _task_file(tmp_path, "dev.tsv", [("甲", "戊", 1), ("丙", "乙", 0)])
    task = make_task(measured, threshold_from=tuning)
    systems = [System(name, lambda: (Fake(), None, "")) for name in ("one", "two")]
    (results,) = evaluate([task], systems, resamples=50)
    # On dev: 甲.戊 = 3 / sqrt(11) = .904534, 丙.乙 = 0: half-way is .452267.
    assert results[0].thresholds is not None
    assert results[0].thresholds.accuracy == pytest.approx(1.5 / math.sqrt(11), abs=1e-7)
    assert results[0].measures.values["accuracy"].value == 1
    assert results[0].differences is None
    assert results[1].baseline == "one"
    assert results[1].differences is not None
    assert results[1].differences["pearson"].value == 0


def test_reports_hold_the_values_and_undefined_never_nan(tmp_path: Path) -> None:
    graded = _task_file(tmp_path, "a_b.tsv", [("甲", "乙", 4), ("甲", "丙", 0.5), ("乙", "戊", 3)])
    results = evaluate([make_task(graded)], [System("m_1", lambda: (Fake(), None, ""))] * 2, resamples=50)[0]
    table, markdown, latex = as_table(results), as_markdown(results), as_latex(results)
    for text in (table, markdown, latex):
        assert "nan" not in text.lower()
        assert "undefined" in text
        assert results[0].task.pairs.md5 in text
    assert "AUC, accuracy, F1 undefined: labels are graded, not 0 and 1" in table
    assert "| 1 m\\_1, cls, none |" in markdown
    assert r"1 m\_1, cls, none &" in latex
    assert {line.count("|") for line in markdown.splitlines() if line.startswith("|")} == {8}
    record = json.loads(json.dumps(as_json(results[1]), allow_nan=False))
    assert list(record)[:7] == ["dataset", "split", "path", "md5", "n", "positives", "attainable_spearman"]
    assert set(MEASURES) < set(record)
    assert record["auc"] == {"value": None, "interval": None}
    assert record["undefined"]["auc"] == "labels are graded, not 0 and 1"
    assert record["difference"]["to"] == "m_1"
    assert record["positives"] is None


def test_tasks_refuse_to_learn_from_what_is_measured(tmp_path: Path) -> None:
    for split, row in (("test", "甲\t乙\t1\n"), ("dev", "甲\t丙\t0\n")):
        write_set(tmp_path, f"lcqmc/{split}.txt", row)
    measured = tmp_path / "lcqmc" / "test.txt"
    with pytest.raises(UsageError, match="--fit test: nothing is learnt from a test split"):
        make_task("lcqmc", folder=tmp_path, fit="test", needs_fit=True)
    with pytest.raises(UsageError, match="is lcqmc test itself"):
        make_task("lcqmc", folder=tmp_path, fit=str(measured), needs_fit=True)
    with pytest.raises(UsageError, match="is lcqmc test: nothing is learnt from a test split"):
        make_task("lcqmc", folder=tmp_path, split="dev", fit=str(measured), needs_fit=True)
    with pytest.raises(UsageError, match="--threshold-from test: nothing is learnt"):
        make_task("lcqmc", folder=tmp_path, threshold_from="test")
    with pytest.raises(UsageError, match="--fit dev: that split is measured"):
        make_task("lcqmc", folder=tmp_path, split="dev", needs_fit=True)
    task = make_task("LCQMC", folder=tmp_path, needs_fit=True)
    assert task.tuning is not None
    assert task.tuning.split == "dev"
    assert task.fit_texts == ["甲", "丙"]
    assert task.fit_name == "lcqmc dev (2 sentences)"
    assert make_task("lcqmc", folder=tmp_path, split="dev").why_no_threshold.startswith("the threshold comes from dev")


def test_sentences_to_fit_on_are_a_corpus_or_pairs(tmp_path: Path) -> None:
    measured = _task_file(tmp_path, "a.tsv", [("甲", "乙", 1)])
    other = _task_file(tmp_path, "b.tsv", [("丙", "丁", 1), ("丙", "甲", 0)])
    (tmp_path / "texts.txt").write_text("子\n丑\n子\n", encoding="utf-8")
    assert sorted(make_task(measured, fit=other, needs_fit=True).fit_texts or []) == sorted(["丙", "丁", "甲"])
    assert make_task(measured, fit=str(tmp_path / "texts.txt"), needs_fit=True).fit_texts == ["子", "丑"]
    with pytest.raises(UsageError, match="Give --fit FILE"):
        make_task(measured, needs_fit=True)
