"""What one sentence alone tells of a label: measured on other pairs, and kept out of batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_up_pairs import pairs_of, write_pairs

from retrieval.evaluation.correlation import spearman
from retrieval.training.batches import plan
from retrieval.training.examples import TextPairs
from retrieval.training.material import Gathering, Reading, cosent
from retrieval.training.objectives import CosentObjective
from retrieval.training.propensity import TELLING, propensity

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
    for topical, low, high in ((True, 0.5, 0.65), (False, -0.1, 0.1)):
        pairs = made_up(1200, topical=topical)
        assert low < (spearman(propensity(pairs), pairs.labels) or 0.0) < high, topical


def test_a_pairs_own_label_does_not_count() -> None:
    random = np.random.default_rng(0)
    own = [chr(0x4E00 + place) * 3 for place in range(600)]  # a sentence of its own, which would name the label
    twice = [text + text for text in own]
    labels = (random.random(600) < 0.5).astype(np.float64)
    values = propensity(TextPairs("own.tsv", "3" * 64, own, twice, labels))
    assert abs(spearman(values, labels) or 0.0) < 0.15
    # Neither do those of pairs that share a sentence with it, directly or through others.
    linked = TextPairs("linked.tsv", "4" * 64, ["甲乙丙"] * 600, own, np.ones(600) * np.arange(600) % 2)
    assert np.ptp(propensity(linked)) == 0.0


def test_final_punctuation_is_not_looked_at() -> None:
    pairs = made_up(300, topical=True)
    asked = [text + "？" if label else text for text, label in zip(pairs.first, pairs.labels, strict=True)]
    values = propensity(TextPairs(pairs.name, pairs.sha256, asked, pairs.second, pairs.labels))
    np.testing.assert_array_equal(values, propensity(pairs))


@pytest.mark.parametrize("matched", [True, False])
def test_within_batches_labels_do_not_go_with_what_one_sentence_tells(matched: bool) -> None:
    pairs = made_up(4096, topical=True)
    values = propensity(pairs)
    objective = CosentObjective([pairs], propensities=[values] if matched else None)
    told, spreads = [], []
    for batch in plan(objective.alike, 32, 128, 0):
        labels = pairs.labels[batch.rows]
        told.append(spearman(values[batch.rows], labels) or 0.0)
        spreads.append(np.ptp(objective.alike[0].lengths[batch.rows]))
    assert (np.mean(told) < 0.2) if matched else (np.mean(told) > 0.4)
    assert np.mean(spreads) < 8  # of two sentences; in the file 30
    seen = np.bincount(np.concatenate([batch.rows for batch in plan(objective.alike, 32, 128, 0)]))
    assert (seen == 1).all()


def test_sources_that_tell_much_are_matched_and_named(tmp_path: Path) -> None:
    telling, plain = made_up(1200, topical=True), pairs_of(400)
    sources = [str(write_pairs(tmp_path / "telling.tsv", telling)), str(write_pairs(tmp_path / "plain.tsv", plain))]
    for matched in (True, False):
        gathering = Gathering(Reading(hold_out=0.0))
        ((make, _),) = cosent(gathering, sources, 20.0, 16, in_batch=0.0, deals=True, matched=matched)
        objective = make(None)  # type: ignore[arg-type]
        notes = [note for note in gathering.material(lambda model: []).notes if "one sentence alone" in note]
        assert [each.propensities is None for each in objective.alike] == [not matched, True]
        assert len(notes) == matched
        assert not matched or notes[0].startswith(f"{sources[0]}: one sentence alone tells much of the label")
    assert (spearman(propensity(plain), plain.labels) or 0.0) < TELLING
