"""`retr train` as a user gives it: the folder and its card, stages, kills, refusals, paraphrases."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_tiny_model, random_texts, run_here
from made_up_pairs import pairs_of, write_pairs, write_rows
from safetensors.numpy import load_file

from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.training.card import Advice
from retrieval.training.examples import TextPairs

Done = subprocess.CompletedProcess[str]


def record_of(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return record


def same_weights(one: Path, other: Path) -> bool:
    first, second = (load_file(folder / "model.safetensors") for folder in (one, other))
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A run of two sources, with a dev set in a folder of its own and a test set that holds ten of the pairs."""
    folder = tmp_path_factory.mktemp("trained")
    known, others = pairs_of(200), pairs_of(60, seed=5)
    write_pairs(folder / "pairs.tsv", known)
    write_pairs(folder / "more.tsv", pairs_of(80, seed=6))
    (folder / "far away").mkdir()
    write_pairs(folder / "far away" / "dev.tsv", pairs_of(60, seed=7))
    turned = TextPairs(
        "",
        "",
        [*others.first, *known.second[:10]],
        [*others.second, *known.first[:10]],
        np.concatenate([others.labels, known.labels[:10]]),
    )
    write_pairs(folder / "test.tsv", turned)
    done = run_here(
        folder,
        *("train", "cosent", "pairs.tsv", "more.tsv", "--model", tiny_model, "-o", "out", "--steps", "20"),
        *("--lr", "1e-3", "--eval-every", "10", "--test", "test.tsv", "--dev", folder / "far away" / "dev.tsv"),
    )
    assert done.returncode == 0, done.stderr
    return folder, done


def test_what_came_of_it_is_told(trained: tuple[Path, Done]) -> None:
    _, done = trained
    assert re.search(r"out: trained in (under )?\d+ seconds\. The weights after step \d+, which did best", done.stdout)
    assert "test.tsv: Spearman" in done.stdout
    assert "transform" in done.stdout
    assert "10 of 200 pairs stand in test.tsv too, and are left out" in done.stderr
    assert re.search(r"step 10: loss \S+; dev dev.tsv \S+, pairs.tsv \S+, more.tsv \S+; mean", done.stderr)
    assert "far away" not in done.stderr


def tables(card: str) -> dict[str, list[list[str]]]:
    """The rows of each section's table, without its head."""
    found = {}
    for section in card.split("\n## ")[1:]:
        rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
        found[section.splitlines()[0]] = rows if rows[:1] == [[""]] else rows[1:]
    return found


def test_the_card_says_what_the_record_holds(trained: tuple[Path, Done]) -> None:
    folder, _ = trained
    record, card = record_of(folder / "out"), (folder / "out" / "README.md").read_text(encoding="utf-8")
    rows = {file["name"]: file for file in record["data"]}
    assert rows["pairs.tsv"]["rows"] == 200
    assert rows["pairs.tsv"]["held_out"] == 19  # a tenth of the 190 that are not in the test set
    assert rows["pairs.tsv"]["trained"] == 171
    assert (rows["more.tsv"]["trained"], rows["more.tsv"]["held_out"]) == (72, 8)
    assert rows["test.tsv"]["role"] == "test, scored once"
    assert [file["rows"] for file in record["data"]] == [60, 70, 200, 80]

    found = tables(card)
    (score,) = record["tests"]
    figures = ("start", "trained", "start_cut", "trained_cut")
    assert found["Test sets, scored once, at the end"] == [
        ["test.tsv", "70", *(f"{score[name]:.2f}" for name in figures)]
    ]
    assert [row[0] for row in found["Curve"]] == [str(point["step"]) for point in record["curve"]] == ["0", "10", "20"]
    for row, point in zip(found["Curve"], record["curve"], strict=True):
        other, *parts = point["dev"].values()
        means = (other + sum(parts) / 2) / 2
        assert point["mean"] == pytest.approx(means)
        loss = "" if point["step"] == 0 else f"{point['loss']:.4f}"
        assert row[2:] == [loss, *(f"{value:.2f}" for value in (*point["dev"].values(), means))]
    counts = ("rows", "trained", "held_out")
    assert found["Data"] == [
        [file["name"], file["role"], *(str(file.get(key, "")) for key in counts), file["sha256"]]
        for file in record["data"]
    ]
    assert [row[0] for row in found["Poolings and transforms"]][1:] == list(record["advice"]["by_transform"])
    # Without a transform the advice counts pairs as the choice of weights did, up to half precision.
    part = re.search(r"([\d.]+) of the way", record["chosen"])
    other, *parts = record["blends"][part[1] if part else "1"].values()
    assert record["advice"]["raw"] == pytest.approx((other + sum(parts) / 2) / 2, abs=2)
    settings = dict(row for row in found["Settings"] if len(row) == 2)
    assert settings["lr"] == "0.001"
    assert settings["steps"] == "20"
    assert settings["pooling"] == "last-avg"
    assert "None" not in settings.values()
    for words in (record["command"], record["chosen"], *record["notes"], f"on {record['machine']['cpu']}"):
        assert words in card
    assert "does not help" in card or "helps" in card
    assert "retr paraphrase" not in card


@pytest.mark.parametrize(
    ("best", "lowered", "verdict", "told"),
    [
        (41.2, "bq dev 51.68 -> 50.78", "helps this encoder:", True),
        (40.9, "bq dev 51.68 -> 50.78", "helps this encoder a little:", True),
        (41.2, "", "helps this encoder:", False),
        (40.0, "a 2.00 -> 1.00", "does not help this encoder:", False),
    ],
)
def test_the_advice_names_what_a_transform_lowers(best: float, lowered: str, verdict: str, told: bool) -> None:
    means = {"none": 40.5, "soft-256": best, "rotate-64": 36.0}
    sentence = Advice("last-avg", 40.5, ("cls", "none", 42.0), means, lowered).sentence
    assert sentence.startswith(f"A transform {verdict}")
    assert f"soft-256, comes to {best:.2f} on the dev sets, raw 40.50 ({best - 40.5:+.2f})" in sentence
    assert (f", but it lowers {lowered}. Best of all poolings: cls" in sentence) is told


def test_the_folder_is_plain_sentence_transformers(trained: tuple[Path, Done], tiny_model: Path) -> None:
    folder, _ = trained
    texts = random_texts(20, seed=3)
    ours = load_encoder(resolve_settings(folder / "out"), "cpu").encode(texts)
    sentence_transformers = pytest.importorskip("sentence_transformers")
    theirs = sentence_transformers.SentenceTransformer(str(folder / "out"), device="cpu").encode(texts)
    assert np.abs(ours - theirs).max() < 1e-5
    start = load_encoder(resolve_settings(tiny_model), "cpu").encode(texts)
    assert np.abs(ours - start).max() > 1e-3


def test_the_folder_serves_retr_and_is_not_replaced_unasked(trained: tuple[Path, Done], tiny_model: Path) -> None:
    folder, _ = trained
    texts = random_texts(20, seed=3)
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    assert run_here(folder, "index", "texts.txt", "--model", "out", "--backend", "torch").returncode == 0
    asked = run_here(folder, "query", texts[0], "--json", "-k", "1")
    assert json.loads(asked.stdout)["text"] == texts[0], asked.stderr
    weights = (folder / "out" / "model.safetensors").read_bytes()
    again = run_here(folder, "train", "cosent", "pairs.tsv", "--model", tiny_model, "-o", "out", "--steps", "20")
    assert again.returncode == 1
    assert "--fresh trains anew" in again.stderr
    assert (folder / "out" / "model.safetensors").read_bytes() == weights


STAGES = ("--stage", "nli:nli.tsv", "--stage", "sts:sts.tsv", "--stage", "triplets:triplets.tsv")


def in_stages(tiny_model: Path, output: str, lr: str = "1e-3") -> list[str]:
    command = ["train", "sbert", *STAGES, "--model", str(tiny_model), "-o", output, "--steps", "16", "--lr", lr]
    return [*command, "--eval-every", "4", "--no-advise", "--blend", "1"]


@pytest.fixture(scope="module")
def staged(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three stages."""
    folder = tmp_path_factory.mktemp("staged")
    pairs = pairs_of(120, seed=8)
    classes = (("entailment", "neutral", "contradiction")[row % 3] for row in range(120))
    write_rows(folder / "nli.tsv", "premise hypothesis label", zip(pairs.first, pairs.second, classes, strict=True))
    graded = pairs_of(100, seed=9)
    grades = (row % 6 for row in range(100))
    write_rows(folder / "sts.tsv", "sentence1 sentence2 score", zip(graded.first, graded.second, grades, strict=True))
    three = random_texts(240, seed=10)
    write_rows(
        folder / "triplets.tsv", "anchor positive negative", zip(three[:80], three[80:160], three[160:], strict=True)
    )
    done = run_here(folder, *in_stages(tiny_model, "whole"))
    assert done.returncode == 0, done.stderr
    assert "step 16 of stage 2 (sts): loss" in done.stderr
    return folder


def test_stages_follow_one_another_and_the_curve_names_them(staged: Path) -> None:
    record, card = record_of(staged / "whole"), (staged / "whole" / "README.md").read_text(encoding="utf-8")
    at = [(point["stage"], point["objective"], point["step"]) for point in record["curve"]]
    names = ("nli", "sts", "triplets")
    assert at == [(0, "nli", 0), *((stage, name, step) for stage, name in enumerate(names) for step in (4, 8, 12, 16))]
    assert set(record["curve"][0]["dev"]) == {"nli.tsv", "sts.tsv", "triplets.tsv"}
    assert [row[:2] for row in tables(card)["Curve"]] == [
        [f"{stage + 1}, {name}", str(step)] for stage, name, step in at
    ]
    assert re.search(r"The weights after step \d+ of stage \d \((nli|sts|triplets)\), which did best", card)
    assert "nli:nli.tsv, sts:sts.tsv, triplets:triplets.tsv" in card
    held = {file["name"]: (file["rows"], file["trained"], file["held_out"]) for file in record["data"]}
    assert held == {"nli.tsv": (120, 108, 12), "sts.tsv": (100, 90, 10), "triplets.tsv": (80, 72, 8)}


def test_a_run_killed_in_any_stage_ends_with_the_same_model_and_refuses_another(staged: Path, tiny_model: Path) -> None:
    command = [sys.executable, "-m", "retrieval.cli.main", *in_stages(tiny_model, "killed"), "--quiet"]
    state = staged / "killed.training" / "last" / "state.json"

    def place() -> tuple[int, int]:
        try:
            content = json.loads(state.read_text())
        except (OSError, ValueError):
            return 0, 0
        return content["stage"], content["step"]

    killed = []
    for wanted in ((0, 4), (1, 4), (2, 8)):
        process = subprocess.Popen(command, cwd=staged)
        while place() < wanted and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        if process.wait() == -signal.SIGKILL:
            killed.append(place())
    assert len(killed) >= 2  # the machine may have been faster once
    assert any(stage == 1 for stage, _ in killed)

    if state.exists():
        changed = run_here(staged, *in_stages(tiny_model, "killed", lr="2e-3"))
        assert changed.returncode == 1
        assert "settings lr 0.001 -> 0.002" in changed.stderr
        held = run_here(staged, *in_stages(tiny_model, "killed"), "--hold-out", "0.2")
        assert "settings hold_out 0.1 -> 0.2" in held.stderr
        rows = (staged / "sts.tsv").read_text(encoding="utf-8")
        (staged / "sts.tsv").write_text(f"{rows}又一句\t再一句\t5\n", encoding="utf-8")
        more = run_here(staged, *in_stages(tiny_model, "killed"))
        assert more.returncode == 1
        assert "data 2 rows 100 -> 101; data 2 sha256" in more.stderr
        (staged / "sts.tsv").write_text(rows, encoding="utf-8")
        resumed = run_here(staged, *in_stages(tiny_model, "killed"))
        assert resumed.returncode == 0, resumed.stderr
        assert re.search(r"going on after step \d+ of stage \d \(\w+\)", resumed.stderr)
    assert same_weights(staged / "whole", staged / "killed")
    assert not (staged / "killed.training").exists()
    curves = [
        [(point["stage"], point["step"], point["loss"], point["dev"]) for point in record_of(staged / name)["curve"]]
        for name in ("whole", "killed")
    ]
    assert curves[0] == curves[1]


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """The full disk that every machine has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_while_saving_keeps_what_was_saved(tiny_model: Path, tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.tsv", pairs_of(100))
    command = ["train", "cosent", "pairs.tsv", "--model", str(tiny_model), "-o", "out", "--steps", "8"]
    command += ["--eval-every", "4", "--no-advise"]
    with files_up_to(100_000):
        done = run_here(tmp_path, *command)
    assert done.returncode == 1
    assert "cannot be saved" in done.stderr
    assert "make room" in done.stderr
    assert not (tmp_path / "out").exists()
    again = run_here(tmp_path, *command)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_loss_that_is_no_number_ends_with_what_was_good(tiny_model: Path, tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.tsv", pairs_of(100))
    command = ["train", "cosent", "pairs.tsv", "--model", str(tiny_model), "--steps", "9", "--precision", "float32"]
    command += ["--lr", "1e30", "--clip", "1e30", "--no-advise"]
    where = r"the loss is nan at step \d, in the batch of 32 from pairs.tsv that begins with '.+' \| '.+'"
    done = run_here(tmp_path, *command, "-o", "measured", "--eval-every", "1")
    assert done.returncode == 1
    assert re.search(where + r".*The best weights until then, after step \d, are in '.*measured'", done.stderr)
    assert re.search(r"lowered the dev sets: the starting model did better on them, mean \S+ against", done.stderr)
    assert re.search(r"training lowered pairs.tsv \S+ -> \S+", done.stderr)
    weights = load_file(tmp_path / "measured" / "model.safetensors")
    assert all(np.isfinite(value).all() for value in weights.values())
    assert re.search("Stopped early since " + where, (tmp_path / "measured" / "README.md").read_text(encoding="utf-8"))
    done = run_here(tmp_path, *command, "-o", "saved", "--eval-every", "1", "--hold-out", "0")
    assert done.returncode == 1
    assert re.search(where + r".*The checkpoint of step \d is kept in '.*saved.training/last'", done.stderr)
    assert (tmp_path / "saved.training" / "last" / "state.safetensors").exists()
    done = run_here(tmp_path, *command, "-o", "nothing")
    assert done.returncode == 1
    assert re.search(where + ".*No checkpoint had been saved", done.stderr)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["measured", "pairs.tsv", "saved.training"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cosent", "one.tsv"), "all 40 labels are 1"),
        (("sbert", "--stage", "sts:one.tsv"), "all 40 labels are 1"),
        (("cosent", "scores.tsv"), "line 8: the score is 6"),
        (("cosent", "nowhere.tsv"), "nowhere.tsv"),
        (("cosent", "pairs.tsv", "--batch", "1"), "a batch of 1"),
        (("cosent", "pairs.tsv", "--in-batch", "-1"), "has the weight -1, expected 0 or more"),
        (("cosent", "pairs.tsv", "--mix", "2,1"), "'2,1' has 2 weights, expected one of each of 1 sources"),
        (("simbert", "pairs.tsv", "--batch", "1"), "a batch of 1"),
        (("simcse", "pairs.tsv", "--batch", "1"), "a batch of 1"),
        (("sbert", "--stage", "triplets:pairs.tsv"), "has no column 'anchor'"),
        (("sbert", "--stage", "triplets:two.tsv"), "has no column 'negative'"),
        (("sbert", "--stage", "pairs.tsv"), "nli:FILE"),
        (("cosent", "pairs.tsv", "pairs.tsv"), "named twice"),
        (("cosent", "pairs.tsv", "--hold-out", "1"), "hold-out is 1"),
        (("cosent", "pairs.tsv", "--precision", "int8"), "int8"),
        (("cosent", "pairs.tsv", "--freeze", "all"), "'all'"),
        (("cosent", "pairs.tsv", "--steps", "0"), "steps are 0"),
        (("cosent", "pairs.tsv", "--max-length", "99"), "max length 99 is more than the 64 tokens"),
        (("cosent", "pairs.tsv", "-o", "pairs.tsv"), "is a file"),
        (("cosent", "pairs.tsv", "-o", "other"), "no folder that retr train wrote"),
        (("simbert", "pairs.tsv", "--generate", "pairs.tsv"), "needs a model that can write, and"),
        (("simbert", "pairs.tsv", "--generate", "pairs.tsv", "--encoder-only"), "exclude each other"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tiny_model: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    pairs = pairs_of(40)
    write_pairs(tmp_path / "pairs.tsv", pairs)
    write_pairs(tmp_path / "one.tsv", TextPairs("", "", pairs.first, pairs.second, np.ones(40)))
    write_pairs(tmp_path / "scores.tsv", TextPairs("", "", pairs.first, pairs.second, np.arange(40) % 8.0))
    write_rows(tmp_path / "two.tsv", "anchor positive", zip(pairs.first, pairs.second, strict=True))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    given = ("train", *arguments, *(() if "-o" in arguments else ("-o", "out")), "--model", tiny_model)
    done = run_here(tmp_path, *given)
    assert done.returncode in (1, 2)
    *notes, error = done.stderr.splitlines()
    assert words in error
    assert all(note.startswith("the encoder alone is trained") for note in notes)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.fixture(scope="module")
def writer(headed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A SimBERT whole, and what it wrote after it was trained."""
    folder = tmp_path_factory.mktemp("writer")
    write_pairs(folder / "pairs.tsv", pairs_of(200, seed=4))
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in random_texts(6, seed=5, longest=8)))
    done = run_here(
        folder,
        *("train", "simbert", "pairs.tsv", "--model", headed, "-o", "out", "--steps", "30", "--lr", "3e-3"),
        *("--batch", "16", "--eval-every", "10", "--no-advise", "--blend", "1", "--generate", "texts.txt"),
        *("--count", "3", "--seed", "2", "--max-length", "20"),
    )
    assert done.returncode == 0, done.stderr
    return folder, done


def test_simbert_learns_to_write_where_there_is_a_head(writer: tuple[Path, Done], headed: Path) -> None:
    folder, done = writer
    record, card = record_of(folder / "out"), (folder / "out" / "README.md").read_text(encoding="utf-8")
    assert record["settings"]["writes"] is True
    assert (record["start"]["pooling"], record["start"]["max_length"]) == ("cls", 20)
    assert {point["objective"] for point in record["curve"]} == {"in-batch softmax and paraphrases"}
    assert record["curve"][-1]["loss"] < record["curve"][1]["loss"]
    assert "retr paraphrase TEXT --model out" in card
    assert "let it write: retr paraphrase TEXT" in done.stderr
    (file,) = (file for file in record["data"] if file["role"] == "training")
    assert file["trained"] + file["held_out"] // 2 == pytest.approx(100, abs=10)  # half of the pairs are alike
    start, now = load_file(headed / "model.safetensors"), load_file(folder / "out" / "model.safetensors")
    assert not np.array_equal(start["cls.predictions.bias"], now["cls.predictions.bias"])
    assert run_here(folder, "index", "texts.txt", "--model", "out", "--backend", "torch").returncode == 0


def test_what_was_trained_writes_the_same_later_on(writer: tuple[Path, Done]) -> None:
    folder, done = writer
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert lines
    texts = (folder / "texts.txt").read_text(encoding="utf-8").splitlines()
    assert {text for text, _, _ in lines} <= set(texts)
    later = ("paraphrase", "--model", "out", "--count", "3", "--seed", "2")
    again = run_here(folder, *later, *texts)
    assert again.stdout == done.stdout
    piped = run_here(folder, *later, "-", "--json", stdin="\n".join([*texts, "", ""]))
    assert "skipped 1 blank line" in piped.stderr
    records = [json.loads(line) for line in piped.stdout.splitlines()]
    assert [list(record) for record in records] == [["text", "rank", "paraphrase", "score"]] * len(lines)
    assert [[one["text"], one["paraphrase"], f"{one['score']:.4f}"] for one in records] == lines
    assert run_here(folder, *later[:-1], "3", *texts).stdout != done.stdout


def test_a_model_without_a_head_is_trained_alone_with_a_note(tiny_model: Path, headed: Path, tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.tsv", pairs_of(100))
    command = ["train", "simbert", "pairs.tsv", "--steps", "2", "--no-advise", "--blend", "1"]
    done = run_here(tmp_path, *command, "--model", tiny_model, "-o", "alone")
    assert done.returncode == 0, done.stderr
    assert f"the encoder alone is trained: {tiny_model} has no language-model head" in done.stderr
    record = record_of(tmp_path / "alone")
    assert record["settings"]["writes"] is False
    assert record["start"]["pooling"] == "last-avg"
    assert "has no language-model head" in record["notes"][0]
    for options, pooling in ((("--encoder-only",), "last-avg"), (("--encoder-only", "--pool", "cls"), "cls")):
        done = run_here(tmp_path, *command, "--model", headed, "-o", pooling, *options)
        assert done.returncode == 0, done.stderr
        assert "the encoder alone is trained" not in done.stderr
        assert record_of(tmp_path / pooling)["start"]["pooling"] == pooling
        assert not any(name.startswith("cls.") for name in load_file(tmp_path / pooling / "model.safetensors"))
    done = run_here(tmp_path, "paraphrase", "一句话", "--model", "alone")
    assert done.returncode == 1
    assert "has no language-model head" in done.stderr
    assert "retr train simbert makes a model that can" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("",), "the text '' is blank"),
        (("-",), "standard input holds none"),
        (("一句话", "--count", "0"), "0 paraphrases a text"),
        (("一句话", "--top-p", "2"), "top-p 2.0"),
        (("一句话", "--temperature", "0"), "temperature 0.0"),
        (("一句话", "--seed", "-1"), "seed -1"),
    ],
)
def test_what_cannot_be_written_is_told(writer: tuple[Path, Done], arguments: tuple[str, ...], words: str) -> None:
    done = run_here(writer[0], "paraphrase", *arguments, "--model", "out")
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_a_model_that_is_no_bert_is_told(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "roberta", "roberta")
    done = run_here(tmp_path, "paraphrase", "一句话", "--model", "roberta")
    assert done.returncode == 1
    assert "is a roberta with" in done.stderr
