"""`retr eval` in a process of its own, on a tiny model and small files of pairs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import Retr, make_tiny_model, random_texts

HEADER = "sentence1\tsentence2\tlabel\n"


def pairs(start: int, count: int) -> str:
    """Lines of pairs: every second one is a text with its last character exchanged, the others are strangers."""
    texts = random_texts(start + count + 1)
    return "".join(
        f"{texts[row]}\t{texts[row][:-1] + '甲' if row % 2 else texts[row + 1]}\t{row % 2}\n"
        for row in range(start, start + count)
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The test's folder with test.tsv and dev.tsv, and data/lcqmc/{dev,test}.txt."""
    (tmp_path / "data" / "lcqmc").mkdir(parents=True)
    for name, content in (("test", pairs(0, 60)), ("dev", pairs(100, 60))):
        (tmp_path / f"{name}.tsv").write_text(HEADER + content, encoding="utf-8")
        (tmp_path / "data" / "lcqmc" / f"{name}.txt").write_text(content, encoding="utf-8")
    return tmp_path


def test_eval_of_a_set_prints_a_table_with_md5_and_intervals(files: Path, tiny_model: Path, retr: Retr) -> None:
    done = retr("eval", "lcqmc", "--data", "data", "--model", tiny_model, "--backend", "torch", "--bootstrap", "200")
    assert done.returncode == 0, done.stderr
    assert "lcqmc test: 60 pairs" in done.stderr
    first, second = done.stdout.splitlines()[:2]
    assert first == "lcqmc test: 60 pairs, 30 with label 1"
    assert re.fullmatch(r"md5 [0-9a-f]{32}  data/lcqmc/test\.txt", second)
    assert re.search(r"Pearson +Spearman +% of attainable +AUC +accuracy +F1", done.stdout)
    assert "95 % intervals of 200 bootstrap resamples" in done.stdout
    assert "attainable Spearman: 86.61" in done.stdout  # sqrt(1 - 2 (30^3 - 30) / (60^3 - 60))
    assert "the best on lcqmc dev" in done.stdout
    assert "nan" not in done.stdout.lower()


def test_eval_of_two_models_gives_a_row_each_and_the_paired_difference(
    files: Path, tiny_model: Path, retr: Retr
) -> None:
    other = make_tiny_model(files / "other", seed=1)
    done = retr("eval", "test.tsv", "--model", tiny_model, "--model", other, "--backend", "torch", "--json", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    one, two = (json.loads(line) for line in done.stdout.splitlines())
    assert (one["n"], one["positives"], one["split"], one["difference"]) == (60, 30, None, None)
    assert one["accuracy"] == {"value": None, "interval": None}
    assert "--threshold-from FILE" in one["undefined"]["accuracy"]
    assert two["difference"]["to"] == str(tiny_model)
    gained = two["spearman"]["value"] - one["spearman"]["value"]
    assert two["difference"]["spearman"]["value"] == pytest.approx(gained, abs=1e-12)
    low, high = two["difference"]["spearman"]["interval"]
    assert low <= high
    assert one["share"]["value"] == pytest.approx(one["spearman"]["value"] / one["attainable_spearman"], abs=1e-12)


def test_eval_says_what_the_transform_was_fitted_on(files: Path, tiny_model: Path, retr: Retr) -> None:
    model = ("--model", tiny_model, "--backend", "torch", "--transform", "whiten-8", "--bootstrap", "20")
    done = retr("eval", "lcqmc", *model, "--data", "data", "--markdown")
    assert re.search(r"8 dimensions, torch, float32; fitted on lcqmc dev \(\d+ sentences\)", done.stdout)
    assert sum(line.startswith("| ") for line in done.stdout.splitlines()) == 2
    record = json.loads(retr("eval", "test.tsv", *model, "--fit", "dev.tsv", "--json").stdout)
    assert record["system"]["transform"] == "whiten-8"
    assert record["system"]["dimension"] == 8
    assert record["system"]["fitted_on"].startswith("dev.tsv (")


def test_eval_of_an_index_measures_its_own_encoder_and_transform(files: Path, tiny_model: Path, retr: Retr) -> None:
    (files / "corpus.txt").write_text("\n".join(random_texts(200)), encoding="utf-8")
    built = retr("index", "corpus.txt", "--model", tiny_model, "--transform", "whiten-8", "--backend", "torch")
    assert built.returncode == 0, built.stderr
    done = retr("eval", "test.tsv", "-i", "indexes/corpus", "--threshold-from", "dev.tsv", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["system"]["name"] == "indexes/corpus"
    assert record["system"]["transform"] == "whiten-8"
    assert record["threshold"]["from"] == "dev.tsv"
    same = retr(
        *("eval", "test.tsv", "--model", tiny_model, "--backend", "torch", "--transform", "whiten-8"),
        *("--fit", "corpus.txt", "--json"),
    )
    # The same encoder, and the same transform fitted on the same texts.
    assert json.loads(same.stdout)["spearman"]["value"] == pytest.approx(record["spearman"]["value"], abs=1e-6)


def test_eval_of_a_centred_fusion_fits_its_means_on_other_texts(files: Path, tiny_model: Path, retr: Retr) -> None:
    fusion = ("eval", "test.tsv", "--model", f"{tiny_model}+0.3*center({tiny_model})", "--bootstrap", "0", "--json")
    refused = retr(*fusion)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Give --fit FILE" in refused.stderr
    done = retr(*fusion, "--fit", "dev.tsv")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["system"]["fitted_on"].startswith("dev.tsv (")


def test_eval_latex_is_a_tabular(files: Path, tiny_model: Path, retr: Retr) -> None:
    done = retr("eval", "test.tsv", "--model", tiny_model, "--backend", "torch", "--bootstrap", "0", "--latex")
    assert done.stdout.count(r"\begin{tabular}") == done.stdout.count(r"\end{tabular}") == 1
    assert r"\scriptsize" not in done.stdout
    assert "undefined" in done.stdout


def test_eval_of_one_class_says_why_auc_is_undefined(files: Path, tiny_model: Path, retr: Retr) -> None:
    (files / "ones.tsv").write_text(HEADER + "甲乙\t甲丙\t1\n乙丙\t丁戊\t1\n", encoding="utf-8")
    done = retr("eval", "ones.tsv", "--model", tiny_model, "--backend", "torch", "--threshold-from", "dev.tsv")
    assert done.returncode == 0, done.stderr
    assert "Pearson, Spearman, % of attainable, AUC undefined: all labels are 1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nope"], 2, "no set and no file 'nope': expected one of lcqmc, atec"),
        (["lcqmc"], 2, "give --data DIR, or set RETR_DATA"),
        (["lcqmc", "--data", "none"], 1, "no folder 'none'"),
        (["bq", "--data", "data"], 1, "the test split of bq is not in 'data': looked for senteval_cn/BQ.test.data"),
        (["lcqmc", "--data", "data", "--split", "valid"], 2, "has no split 'valid': expected one of train, dev, test"),
        (["lcqmc", "--data", "data", "--split", "train"], 1, "the train split of lcqmc is not in 'data'"),
        (["test.tsv", "--split", "test"], 2, "a file is measured whole"),
        (["bad.tsv"], 1, "bad.tsv line 3: 2 columns, expected 3"),
        (["words.tsv"], 1, "words.tsv line 2: the label is 'yes', expected a number"),
        (["empty.tsv"], 1, "empty.tsv holds no pair"),
        (["test.tsv", "--threshold-from", "test.tsv"], 2, "is test.tsv itself, which is measured"),
        (["lcqmc", "--data", "data", "--threshold-from", "test"], 2, "nothing is learnt from a test split"),
        (["lcqmc", "--data", "data", "--transform", "whiten-8", "--fit", "test"], 2, "nothing is learnt from a test"),
        (["test.tsv", "--transform", "whiten-8"], 2, "Give --fit FILE"),
        (["test.tsv", "--transform", "auto"], 2, "--transform auto sees a corpus"),
        (["test.tsv", "--transform", "shrink-8"], 2, "unknown transform 'shrink-8'"),
        (["test.tsv", "--fit", "dev.tsv"], 2, "there is nothing to fit"),
        (["test.tsv", "--json", "--latex"], 2, "exclude each other"),
        (["test.tsv", "-i", "indexes/none"], 1, "no index at 'indexes/none'"),
        (["test.tsv", "-i", "indexes/none", "--pool", "cls"], 2, "--pool cls is for --model"),
        (["test.tsv", "--bootstrap", "-1"], 2, "--bootstrap"),
    ],
)
def test_eval_bad_input_is_one_clear_line(
    arguments: list[str], code: int, message: str, files: Path, retr: Retr, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RETR_DATA", raising=False)
    (files / "bad.tsv").write_text(HEADER + "甲\t乙\t1\n甲\t1\n", encoding="utf-8")
    (files / "words.tsv").write_text(HEADER + "甲\t乙\tyes\n", encoding="utf-8")
    (files / "empty.tsv").write_text("", encoding="utf-8")
    done = retr("eval", *arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
