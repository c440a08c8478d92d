"""Examples to train on: sets by name, own files, NLI files, labels that cannot be right, parts held out."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_jsonl
from made_up_pairs import pairs_of as random_pairs
from made_up_pairs import write_pairs

from retrieval.errors import CorpusError, UsageError
from retrieval.training.data import read_nli, read_texts, read_training_pairs, read_triplets
from retrieval.training.examples import TextPairs, check_labels_differ, noise, positives, scaled, split_off
from retrieval.training.material import Gathering, Reading

HEADER = "sentence1\tsentence2\tlabel\n"
TRIPLETS = "anchor\tpositive\tnegative\n"
NLI = [
    ("一个人在跑步", "有人在动", "entailment"),
    ("一个人在跑步", "他在比赛", "neutral"),
    ("一个人在跑步", "没有人", "contradiction"),
]


def write(path: Path, content: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return str(path)


def pairs_of(*rows: tuple[str, str, float], name: str = "a.tsv") -> TextPairs:
    first, second, labels = zip(*rows, strict=True)
    return TextPairs(name, "", list(first), list(second), np.array(labels, dtype=np.float64))


# Pairs: sets by name and own files.


def test_a_set_is_named_with_its_split_and_alone_means_train(tmp_path: Path) -> None:
    path = tmp_path / "lcqmc" / "dev.txt"
    write(path, "甲\t乙\t1\n丙\t丁\t0\n")
    pairs = read_training_pairs("LCQMC:dev", tmp_path)
    assert (pairs.name, pairs.first, pairs.second, pairs.labels.tolist()) == (
        "lcqmc dev",
        ["甲", "丙"],
        ["乙", "丁"],
        [1, 0],
    )
    assert pairs.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(CorpusError, match=r"the train split of lcqmc is not in .*\. There is lcqmc:dev$"):
        read_training_pairs("lcqmc", tmp_path)
    write(tmp_path / "lcqmc" / "train.txt", "戊\t己\t1\n")
    assert read_training_pairs("lcqmc", tmp_path).name == "lcqmc train"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("lcqmc:test", "nothing is learnt from a test split, .* use lcqmc:train or lcqmc:dev"),
        ("afqmc:test", "nothing is learnt from a test split"),
        ("lcqmc:valid", "lcqmc has no split 'valid' to train on: expected train or dev"),
        ("lcqmc:", "lcqmc has no split ''"),
        ("nonsense:dev", "no set and no file 'nonsense:dev': expected SET:SPLIT .*lcqmc:dev, or a file of pairs"),
        ("-", "no set and no file '-'"),
    ],
)
def test_names_that_cannot_be_trained_on_are_refused(source: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "lcqmc" / "test.txt", "甲\t乙\t1\n")
    with pytest.raises(UsageError, match=message):
        read_training_pairs(source, tmp_path)


def test_a_set_without_a_folder_says_how_to_name_one() -> None:
    with pytest.raises(UsageError, match="give --data DIR, or set RETR_DATA"):
        read_training_pairs("atec:dev", None)


def test_a_copy_of_a_test_split_is_refused_under_any_name(tmp_path: Path) -> None:
    content = '{"sentence1": "甲", "sentence2": "乙", "label": "1"}\n'
    copy = write(tmp_path / "own" / "mine.jsonl", content)
    assert len(read_training_pairs(copy, tmp_path)) == 1
    write(tmp_path / "afqmc_public" / "test.json", content)
    with pytest.raises(UsageError, match=r"mine\.jsonl is afqmc test: nothing is learnt from a test split"):
        read_training_pairs(copy, tmp_path)
    with pytest.raises(UsageError, match=r"mine\.jsonl is afqmc test"):
        read_texts(copy, tmp_path)


def test_own_pairs_are_read_from_every_format_with_their_lines(tmp_path: Path) -> None:
    rows = [("甲", "乙", 0.5), ("丙", "丁", 1.0)]
    write(tmp_path / "a.tsv", HEADER + "\n" + "".join(f"{a}\t{b}\t{c}\n" for a, b, c in rows))
    write(tmp_path / "a.csv", "score,sentence1,sentence2\n" + "".join(f"{c},{a},{b}\n" for a, b, c in rows))
    write_jsonl(tmp_path / "a.jsonl", [{"sentence1": a, "sentence2": b, "score": c} for a, b, c in rows])
    pq.write_table(pa.table(dict(zip(HEADER.split(), zip(*rows, strict=True), strict=True))), tmp_path / "a.parquet")
    lines = {"a.tsv": [3, 4], "a.csv": [2, 3], "a.jsonl": [1, 2], "a.parquet": [0, 1]}
    for name, expected in lines.items():
        pairs = read_training_pairs(str(tmp_path / name), None)
        assert list(zip(pairs.first, pairs.second, pairs.labels.tolist(), strict=True)) == rows, name
        assert [pairs.line(row) for row in range(2)] == expected, name


# Scores.


def test_scores_are_scaled_by_the_grades_there_can_be() -> None:
    assert scaled(pairs_of(("a", "b", 0), ("c", "d", 1), ("e", "f", 0.25))).tolist() == [0, 1, 0.25]
    assert scaled(pairs_of(("a", "b", 0), ("c", "d", 4), ("e", "f", 2.5))).tolist() == [0, 0.8, 0.5]  # / 5


def test_sicks_grades_begin_with_1(tmp_path: Path) -> None:
    write(tmp_path / "SICK" / "SICK_train.txt", "id\tA\tB\tscore\tj\n1\ta\tb\t1\tN\n2\tc\td\t4.5\tN\n")
    assert scaled(read_training_pairs("sick", tmp_path)).tolist() == [0, 0.875]  # (4.5 - 1) / (5 - 1)


def test_a_part_keeps_the_grades_and_lines_of_the_whole() -> None:
    pairs = pairs_of(("a", "b", 0), ("c", "d", 5), ("e", "f", 1), ("g", "h", 0.5))
    part = pairs.take([3, 2])
    assert scaled(part).tolist() == [0.1, 0.2]  # not 0.5 and 1, which the part alone would mean
    assert [part.line(row) for row in range(2)] == [4, 3]


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("a.tsv", (0, -0.5), r"a\.tsv line 3: the score is -0.5, expected all from 0 to 1, or grades from 0 to 5"),
        ("a.tsv", (3, 50), r"a\.tsv line 3: the score is 50, expected .* grades from 0 to 5: map the scores"),
        ("a.parquet", (-1, 1), r"a\.parquet row 0: the score is -1"),
    ],
)
def test_scores_outside_the_range_are_named_with_the_line(
    name: str, labels: tuple[float, float], message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if name.endswith(".tsv"):
        write(path, HEADER + "".join(f"甲\t乙\t{label}\n" for label in labels))
    else:
        pq.write_table(pa.table({"sentence1": ["甲"] * 2, "sentence2": ["乙"] * 2, "label": labels}), path)
    with pytest.raises(CorpusError, match=message):
        read_training_pairs(str(path), None)


def test_one_class_only_is_refused_where_an_order_is_learnt() -> None:
    pairs = pairs_of(("a", "b", 1), ("c", "d", 1))
    for call in (check_labels_differ, scaled):
        with pytest.raises(CorpusError, match=r"a\.tsv: all 2 labels are 1, expected at least two different ones"):
            call(pairs)
    assert len(positives(pairs)) == 2
    check_labels_differ(pairs_of(("a", "b", 1), ("c", "d", 0)))


def test_positives_are_label_1_or_the_upper_half_of_the_grades() -> None:
    binary = positives(pairs_of(("a", "b", 1), ("c", "d", 0), ("e", "f", 1)))
    assert (binary.first, binary.second, binary.line(1)) == (["a", "e"], ["b", "f"], 3)
    assert positives(pairs_of(("a", "b", 2.5), ("c", "d", 2.6), ("e", "f", 5))).first == ["c", "e"]
    assert positives(pairs_of(("a", "b", 0.5), ("c", "d", 0.75))).first == ["c"]
    with pytest.raises(CorpusError, match=r"a\.tsv: none of the 2 labels is 1, the largest is 0"):
        positives(pairs_of(("a", "b", 0), ("c", "d", 0)))
    with pytest.raises(CorpusError, match=r"none of the 2 labels is above 2\.5 of 0 to 5, the largest is 2"):
        positives(pairs_of(("a", "b", 1), ("c", "d", 2)))


# Noise.


def test_labels_that_contradict_are_counted_with_their_lines() -> None:
    found = noise(
        pairs_of(
            ("a", "a", 0),  # 1: equal, labelled as different
            ("a", "a", 1),  # 2: and the other label
            ("b", "c", 1),  # 3
            ("c", "b", 0),  # 4: 3 in the other order, with another label
            ("b", "c", 1),  # 5: 3 again
            ("b", "c", 0),  # 6: no further conflict: the pair is counted once
            ("d", "e", 0),  # 7
            ("e", "d", 0),  # 8: the other order is no exact duplicate
        )
    )
    assert (found.equal, found.equal_lines) == (1, (1,))
    assert (found.conflicts, found.conflict_lines) == (2, ((1, 2), (3, 4)))
    assert (found.duplicates, found.duplicate_lines) == (1, ((3, 5),))
    assert found.words == [
        "1 x equal sentences labelled as different: line 1",
        "2 x the same pair with different labels: lines 1 and 2; 3 and 4",
        "1 x the same pair with the same label again: lines 5 as 3",
    ]


def test_noise_of_grades_and_the_first_few_lines() -> None:
    rows = [("a", "a", 2.0)] * 7 + [("b", "b", 4.0)]
    found = noise(pairs_of(*rows))
    assert (found.equal, found.equal_lines) == (7, (1, 2, 3, 4, 5))  # 2 is in the lower half of 0 to 5
    assert found.duplicates == 6
    assert found.words[0].endswith("lines 1; 2; 3; 4; 5; ...")
    assert noise(pairs_of(("a", "b", 0), ("a", "c", 1))).words == []


# A part held out.


def chained(count: int, seed: int = 0) -> TextPairs:
    """Pairs of which many share sentences, in groups of several sizes."""
    draw = random.Random(seed)
    rows = [(f"g{group} {draw.randrange(4)}", f"g{group} {draw.randrange(4, 8)}", 0.0) for group in range(count // 3)]
    rows += [(f"g{draw.randrange(count // 3)} {draw.randrange(4)}", f"x{row}", 1.0) for row in range(count - len(rows))]
    draw.shuffle(rows)
    return pairs_of(*rows)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_no_sentence_stands_on_both_sides_of_a_split(share: float, seed: int) -> None:
    pairs = chained(600, seed)
    train, held = split_off(pairs, share, seed)
    assert set(train.first + train.second).isdisjoint(held.first + held.second)
    assert len(train) + len(held) == 600
    assert len(held) == pytest.approx(600 * share, abs=3)
    rows = [
        (line, a, b) for part in (train, held) for line, a, b in zip(part.lines, part.first, part.second, strict=True)
    ]
    assert sorted(rows) == [(row + 1, a, b) for row, (a, b) in enumerate(zip(pairs.first, pairs.second, strict=True))]


def test_a_split_is_decided_by_its_seed() -> None:
    pairs = chained(300)
    assert split_off(pairs, 0.2, 1)[1].first == split_off(pairs, 0.2, 1)[1].first
    assert split_off(pairs, 0.2, 1)[1].first != split_off(pairs, 0.2, 2)[1].first


def test_pairs_linked_through_others_stay_together() -> None:
    # a-b, b-c, c-d are one group of 3, however the order; e-f and g-h are free
    pairs = pairs_of(("a", "b", 1), ("c", "d", 1), ("e", "f", 0), ("c", "b", 0), ("g", "h", 0))
    for seed in range(20):
        train, _ = split_off(pairs, 0.4, seed)
        assert {"a", "b", "c", "d"} <= set(train.first + train.second)


@pytest.mark.parametrize(("count", "left_out"), [(300, True), (60, False)])
def test_weights_are_not_chosen_by_sentences_that_another_source_trains_on(
    tmp_path: Path, count: int, left_out: bool
) -> None:
    dev, source, other = random_pairs(count), random_pairs(400, seed=1), random_pairs(500, seed=2)
    other.second[:40] = dev.first[:40]
    other.first[100:200] = source.second[:100]
    named = [
        str(write_pairs(tmp_path / f"{name}.tsv", pairs))
        for name, pairs in (("dev", dev), ("source", source), ("other", other))
    ]
    gathering = Gathering(Reading(dev=named[:1], hold_out=0.2))
    training = gathering.pairs(named[1:])
    material = gathering.material(lambda model: [])
    seen = {text for each in training for text in (*each.first, *each.second)}
    chosen, *held = material.dev.pairs
    shared = sum(not seen.isdisjoint(pair) for pair in zip(dev.first, dev.second, strict=True))
    assert 20 < shared <= 40
    assert len(chosen) == count - shared * left_out
    words = "are left out" if left_out else "what it says may be too high"
    assert any(f"{named[0]}: {shared} of {count} pairs" in note and words in note for note in material.notes)
    assert [each.name for each in held] == named[1:]
    for each in (*held, *([chosen] if left_out else [])):
        assert seen.isdisjoint([*each.first, *each.second])


def test_what_cannot_be_held_out_is_refused() -> None:
    star = pairs_of(*[("a", f"b{row}", 1.0) for row in range(10)])
    with pytest.raises(UsageError, match=r"1 of the 10 pairs of a\.tsv cannot be held out: they share .* has 10"):
        split_off(star, 0.1, 0)
    for share in (0, 1, -0.1, float("nan")):
        with pytest.raises(UsageError, match="cannot be held out: expected one between 0 and 1"):
            split_off(star, share, 0)


# Triplets.


def test_triplets_are_read_from_every_format(tmp_path: Path) -> None:
    rows = [("甲", "乙", "丙"), ("丁", "戊", "己")]
    records = [dict(zip(TRIPLETS.split(), row, strict=True)) for row in rows]
    write(tmp_path / "a.tsv", TRIPLETS + "".join("\t".join(row) + "\n" for row in rows))
    write(tmp_path / "a.csv", "negative,anchor,positive\n" + "".join(f"{c},{a},{b}\n" for a, b, c in rows))
    write_jsonl(tmp_path / "a.jsonl", records)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    for name in ("a.tsv", "a.csv", "a.jsonl", "a.parquet"):
        path = tmp_path / name
        triplets = read_triplets(str(path))
        assert list(zip(triplets.anchor, triplets.positive, triplets.negative, strict=True)) == rows, name
        assert triplets.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.tsv",
            "anchor\tpositive\n甲\t乙\n",
            "no column 'negative', expected anchor, positive and negative named in",
        ),
        ("a.tsv", "甲\t乙\n", "no column 'anchor', expected anchor, positive and negative .*; its columns are 甲, 乙"),
        ("a.tsv", TRIPLETS + "甲\t乙\t丙\n甲\t乙\n", "line 3: 2 columns, expected 3 as in the header"),
        ("a.jsonl", '{"anchor": "甲", "positive": "乙"}\n', "line 1 has no column 'negative'"),
        ("a.csv", "anchor,positive,negative\n甲, ,丙\n", "line 2: positive is ' ', expected a text that shows"),
        ("a.jsonl", '{"anchor": "甲", "positive": ["乙"], "negative": "丙"}\n', 'line 1: positive is \\["乙"\\]'),
        ("a.tsv", TRIPLETS, "a.tsv holds no triplet: it is empty"),
    ],
)
def test_triplets_that_lack_something_are_named_with_the_line(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CorpusError, match=message):
        read_triplets(write(tmp_path / name, content))


def test_triplets_are_no_text_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a text file, expected triplets as \.tsv"):
        read_triplets(write(tmp_path / "a.txt", "甲\t乙\t丙\n"))


# NLI.


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "".join(f"{a}\t{b}\t{c}\n" for a, b, c in NLI)),  # as OCNLI and CNSD-SNLI are published
        ("a.tsv", "".join(f"{a}\t{b}\t{c.upper()}\r\n" for a, b, c in NLI)),
        ("a.tsv", HEADER + "".join(f"{a}\t{b}\t{c}\n" for a, b, c in NLI)),
        ("a.txt", "gold_label\tx\tsentence1\tsentence2\n" + "".join(f"{c}\t\t{a}\t{b}\n" for a, b, c in NLI)),
        ("a.csv", "premise,hypothesis,label\n" + "".join(f"{a},{b},{k}\n" for k, (a, b, _) in enumerate(NLI))),
        ("a.tsv", "".join(f"{a}\t{b}\t{c}\n" for (a, b, _), c in zip(NLI, ["蕴含", "中立", "矛盾"], strict=True))),
    ],
)
def test_nli_is_read_in_every_form(name: str, content: str, tmp_path: Path) -> None:
    pairs = read_nli(write(tmp_path / name, content))
    assert list(zip(pairs.first, pairs.second, strict=True)) == [(a, b) for a, b, _ in NLI]
    assert pairs.labels.dtype == np.int64
    assert [pairs.classes[label] for label in pairs.labels] == ["entailment", "neutral", "contradiction"]
    assert pairs.skipped == 0


def test_nli_without_a_gold_label_is_skipped_and_counted(tmp_path: Path) -> None:
    labels = ["-", -1, "-1", -1.0, 0, 2.0, "neutral"]
    write_jsonl(tmp_path / "a.jsonl", [{"premise": "甲", "hypothesis": "乙", "label": label} for label in labels])
    pairs = read_nli(str(tmp_path / "a.jsonl"))
    assert (pairs.labels.tolist(), pairs.skipped) == ([0, 2, 1], 4)
    table = {"sentence1": ["甲"] * 3, "sentence2": ["乙"] * 3, "label": pa.array([1, -1, 0], pa.int64())}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    pairs = read_nli(str(tmp_path / "a.parquet"))
    assert (pairs.labels.tolist(), pairs.skipped) == ([1, 0], 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "甲\t乙\n", r"a\.txt line 1: 2 columns, expected 3 apart by tabs: premise, hypothesis and label"),
        (
            "a.txt",
            "甲\t乙\tneutral\n甲\t乙\tmaybe\n",
            "line 2: the label is 'maybe', expected entailment, neutral, con",
        ),
        ("a.txt", "甲\t乙\t3\n", "line 1: the label is '3', expected .* or 0, 1, 2 in this order, or -"),
        ("a.txt", "甲\t乙\t\n", "line 1: the label is ''"),
        ("a.txt", "甲\t\tneutral\n", "line 1: the hypothesis is '', expected a text"),
        ("a.jsonl", '{"premise": "甲", "hypothesis": "乙", "label": null}\n', "line 1: the label is null"),
        ("a.jsonl", '{"premise": "甲", "hypothesis": "乙", "label": true}\n', "line 1: the label is true"),
        ("a.jsonl", '{"premise": "甲", "label": 1}\n', "line 1 has no column 'sentence2' or 'hypothesis'"),
        ("a.txt", "甲\t乙\tneutral\n丙\t丁\t1\n", r"a\.txt: all 2 labels are neutral, expected at least two of"),
        ("a.txt", "甲\t乙\t-\n", "holds no inference: none of its 1 pairs has a gold label"),
        ("a.txt", "", "holds no inference: it is empty"),
        ("a.csv", "甲,乙,neutral\n", "no column 'sentence1' or 'premise'"),
    ],
)
def test_bad_nli_is_named_with_the_line(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        read_nli(write(tmp_path / name, content))


# Texts.


def test_texts_are_a_corpus_a_set_or_a_file_of_pairs(tmp_path: Path) -> None:
    assert read_texts(write(tmp_path / "a.txt", "甲\n乙\n\n甲\n")).texts == ["甲", "乙"]
    assert sorted(read_texts(write(tmp_path / "a.tsv", HEADER + "丙\t丁\t1\n")).texts) == sorted(["丙", "丁"])
    write(tmp_path / "senteval_cn" / "BQ.train.data", "戊\t己\t1\n己\t戊\t0\n")
    found = read_texts("bq", tmp_path)
    assert (found.name, found.texts) == ("bq train", ["戊", "己"])
    assert len(found.sha256) == 64


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda folder: read_texts("-"), UsageError, "not from standard input"),
        (lambda folder: read_texts("lcqmc:test", folder), UsageError, "nothing is learnt from a test split"),
        (lambda folder: read_texts(str(folder / "none.txt")), CorpusError, "no such file or folder"),
        (
            lambda folder: read_texts(write(folder / "a.txt", "甲\n甲\n")),
            CorpusError,
            "holds 1 distinct text, expected",
        ),
    ],
)
def test_texts_that_cannot_be_trained_on_are_refused(
    call: Callable[[Path], object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        call(tmp_path)


@pytest.mark.data
def test_real_sets_are_read_split_and_looked_through(data_folder: Path) -> None:
    pairs = read_training_pairs("lcqmc:dev", data_folder)
    assert (len(pairs), len(positives(pairs))) == (8802, 4402)
    train, held = split_off(pairs, 0.1, 0)
    assert (len(train), len(held)) == (7922, 880)
    assert set(train.first + train.second).isdisjoint(held.first + held.second)
    assert len(split_off(read_training_pairs("bq:dev", data_folder), 0.1, 0)[1]) == 1000  # one group has 674 pairs
    assert noise(pairs).words == []
    assert noise(read_training_pairs("afqmc:train", data_folder)).equal == 1
    assert noise(read_training_pairs("sts-b:train", data_folder)).conflicts == 12
    for path, classes in (("ocnli/dev.txt", [947, 1103, 900]), ("cnsd_snli/dev.txt", [3162, 3053, 3099])):
        assert np.bincount(read_nli(str(data_folder / path)).labels).tolist() == classes
    with pytest.raises(CorpusError, match="line 1: 2 columns, expected 3"):
        read_nli(str(data_folder / "ocnli" / "test.txt"))
    assert len(read_texts("lcqmc:dev", data_folder)) == 15917
