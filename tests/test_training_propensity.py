"""What one sentence alone tells of a label, and weights under which it tells nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_pairs import pairs_of, write_pairs

from retrieval.evaluation.correlation import spearman
from retrieval.training.choice import DevSets
from retrieval.training.examples import TextPairs, split_off
from retrieval.training.material import Gathering, Reading, cosent
from retrieval.training.propensity import balanced, propensities

_COMMON = [chr(0x4E00 + place) for place in range(300)]


def made_up(count: int, *, topical: bool, seed: int = 0) -> TextPairs:
    """Pairs of random characters, a quarter of them in both sentences where the label is 1.

    Parameters
    ----------
    topical : whether sentences of one topic, which two characters tell, are alike four times in five, others one in
        five.
    """
    random = np.random.default_rng(seed)
    first, second, labels = [], [], []
    for _ in range(count):
        topic = int(random.random() < 0.5)
        label = float(random.random() < (0.2 + 0.6 * topic if topical else 0.5))
        length = int(random.integers(4, 20))
        one, other = (random.choice(_COMMON, length) for _ in range(2))
        if label:
            other[: length // 4] = one[: length // 4]
        named = "笑话" if topic else "游戏"
        first.append("".join(one) + named)
        second.append("".join(other) + named)
        labels.append(label)
    return TextPairs("made up.tsv", "2" * 64, first, second, np.array(labels))


def test_a_topic_tells_and_what_two_sentences_share_does_not() -> None:
    for topical, low, high in ((True, 0.5, 0.7), (False, -0.1, 0.1)):
        known, pairs = made_up(1500, topical=topical), made_up(1000, topical=topical, seed=1)
        assert low < (spearman(propensities(known, pairs), pairs.labels) or 0.0) < high, topical


def test_final_punctuation_does_not_count() -> None:
    known, pairs = made_up(300, topical=True), made_up(100, topical=True, seed=1)
    asked = [text + "？" if label else text for text, label in zip(known.first, known.labels, strict=True)]
    values = propensities(TextPairs(known.name, known.sha256, asked, known.second, known.labels), pairs)
    np.testing.assert_array_equal(values, propensities(known, pairs))


@given(
    values=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    seed=st.integers(0, 9),
)
def test_labels_are_shared_out_alike_among_the_classes(values: list[int], seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 2, len(values)).astype(np.float64)
    weights = balanced(np.array(values, dtype=np.float64), labels)
    assert (weights > 0).all()
    for rows in np.array_split(np.argsort(values, kind="stable"), min(8, len(values))):
        if np.ptp(labels[rows]):
            share = np.average(labels[rows], weights=weights[rows])
            assert share == pytest.approx(labels.mean())


def test_what_one_sentence_tells_gains_nothing_under_the_weights() -> None:
    known, pairs = made_up(3000, topical=True), made_up(2000, topical=True, seed=1)
    values = propensities(known, pairs)
    weights = balanced(values, pairs.labels)
    assert (spearman(values, pairs.labels) or 0) > 0.5
    assert abs(spearman(values, pairs.labels, weights) or 0) < 0.1
    # A score that knows the label itself is as good as before.
    random = np.random.default_rng(0)
    knowing = pairs.labels + random.normal(size=len(pairs))
    assert spearman(knowing, pairs.labels, weights) == pytest.approx(spearman(knowing, pairs.labels), abs=0.1)


def test_pairs_held_out_carry_the_weights_and_what_tells_is_named(tmp_path: Path) -> None:
    telling = made_up(1500, topical=True)
    sources = [
        str(write_pairs(tmp_path / "telling.tsv", telling)),
        str(write_pairs(tmp_path / "plain.tsv", pairs_of(400))),
    ]
    gathering = Gathering(Reading(hold_out=0.2))
    cosent(gathering, sources, 20.0, 16, in_batch=0.0, deals=True)
    material = gathering.material(lambda model: [])
    notes = [note for note in material.notes if "one sentence alone" in note]
    assert [note.split(": ")[0] for note in notes] == sources[:1]
    assert "pairs held out are weighted so that this gains nothing" in notes[0]
    kept, held = split_off(telling, 0.2, 0)
    part = material.dev.pairs[0]
    assert part.weights is not None
    np.testing.assert_array_equal(part.weights, balanced(propensities(kept, held), held.labels))
    sampled = material.dev.sampled(50).pairs[0]
    assert sampled.weights is not None
    assert len(sampled.weights) == 50


def test_grades_are_not_weighted(tmp_path: Path) -> None:
    pairs = pairs_of(200)
    graded = TextPairs("graded.tsv", "5" * 64, pairs.first, pairs.second, np.arange(200) % 5.0)
    gathering = Gathering(Reading(hold_out=0.2))
    cosent(gathering, [str(write_pairs(tmp_path / "graded.tsv", graded))], 20.0, 16, in_batch=0.0, deals=True)
    dev: DevSets = gathering.material(lambda model: []).dev
    assert [each.weights for each in dev.pairs] == [None]
