"""What tells a pair's label without its sense: found, told, and kept out of batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_up_pairs import pairs_of, write_pairs

from retrieval.evaluation.correlation import spearman
from retrieval.training.batches import plan
from retrieval.training.examples import TextPairs
from retrieval.training.material import Gathering, Reading, cosent
from retrieval.training.objectives import CosentObjective
from retrieval.training.shortcuts import deal_ends, end_of, shortcuts


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("怎么退款？", "？"),
        ("怎么退款?? ~", "?? ~"),
        ("怎么，退款", ""),
        ("How do I get a refund?", "?"),
        ("怎么学C++", ""),
        ("便宜10%。", "。"),
        ("？！", ""),  # nothing but that
        ("", ""),
    ],
)
def test_the_end_of_a_text_is_its_final_punctuation(text: str, end: str) -> None:
    assert end_of(text) == end


@given(texts=st.lists(st.text(alphabet="退款a？?。 ", max_size=6), max_size=12), seed=st.integers(0, 99))
def test_ends_are_dealt_out_and_nothing_else_changes(texts: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    dealt = deal_ends(texts)
    bodies = [text[: len(text) - len(end_of(text))] for text in texts]
    ends = [new[len(body) :] for new, body in zip(dealt, bodies, strict=True)]
    assert all(new.startswith(body) for new, body in zip(dealt, bodies, strict=True))
    assert sorted(ends) == sorted(map(end_of, texts))
    torch.manual_seed(seed)
    assert deal_ends(texts) == dealt


def lopsided(count: int = 400) -> TextPairs:
    """Pairs that are alike are longer, and end in a question mark."""
    random = np.random.default_rng(0)
    pairs = pairs_of(count)
    first = [text * 2 + "？" if label else text for text, label in zip(pairs.first, pairs.labels, strict=True)]
    second = [text + "？" if label else text for text, label in zip(pairs.second, pairs.labels, strict=True)]
    order = random.permutation(count)
    return TextPairs(
        "lopsided.tsv", "1" * 64, [first[i] for i in order], [second[i] for i in order], pairs.labels[order]
    )


def test_what_goes_with_the_labels_is_told_with_the_files(tmp_path: Path) -> None:
    assert shortcuts(pairs_of(400)) == []
    found = shortcuts(lopsided())
    named = ["pairs with longer sentences", "pairs with final punctuation"]
    assert [words.split(" are ")[0] for words in found] == named
    assert all("more often alike than others (Spearman " in words for words in found)
    pairs = lopsided()
    upside_down = TextPairs(pairs.name, pairs.sha256, pairs.first, pairs.second, 1 - pairs.labels)
    assert all("less often alike" in words for words in shortcuts(upside_down))
    source = write_pairs(tmp_path / "lopsided.tsv", lopsided())
    gathering = Gathering(Reading())
    cosent(gathering, [str(source)], 20.0, 16, in_batch=0.0, deals=True)
    notes = gathering.material(lambda model: []).notes
    assert [note for note in notes if "more often alike" in note] == [f"{source}: {words}" for words in found]


class Heard:
    """Stands where a model does, and notes the texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def vectors(self, texts: list[str]) -> torch.Tensor:
        self.texts = list(texts)
        return torch.nn.functional.normalize(torch.arange(2.0 * len(texts)).reshape(-1, 2) + 1, dim=1)


@pytest.mark.parametrize("deals", [True, False])
def test_within_batches_neither_length_nor_final_punctuation_goes_with_the_labels(deals: bool) -> None:
    pairs = lopsided(2000)
    objective = CosentObjective([pairs], deals=deals)
    by_length, by_end = [], []
    for step, batch in enumerate(plan(objective.lengths, 32, 60, 0)):
        torch.manual_seed(step)
        model = Heard()
        objective.loss(model, 0, batch.rows)  # type: ignore[arg-type]
        labels = pairs.labels[batch.rows]
        if np.ptp(labels) == 0:
            continue
        counted = [len(text) - (len(end_of(text)) if deals else 0) for text in model.texts]
        both = np.array(counted, np.float64).reshape(2, -1).sum(axis=0)
        ends = np.array([bool(end_of(text)) for text in model.texts], np.float64).reshape(2, -1).sum(axis=0)
        by_length.append(spearman(both, labels) or 0.0)
        by_end.append(spearman(ends, labels) or 0.0)
    assert len(by_length) > 20
    lengths = np.array([len(one) + len(other) for one, other in zip(pairs.first, pairs.second, strict=True)], float)
    assert (spearman(lengths, pairs.labels) or 0) > 0.3  # in the file
    assert abs(np.mean(by_length)) < 0.1
    assert abs(np.mean(by_end)) < 0.1 if deals else np.mean(by_end) > 0.9
