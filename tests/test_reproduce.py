"""Published rows measured again: every row on stand-in weights, what is kept after a kill, what absent weights say."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import conftest
import numpy as np
import pytest
from conftest import CHARACTERS, Retr, make_tiny_model, random_texts

if importlib.util.find_spec("jieba") is None or importlib.util.find_spec("gensim") is None:
    pytest.skip("the extra word2vec is not installed", allow_module_level=True)

from test_elmo import make_model as make_elmo

from retrieval.cli.output import TerminalProgress
from retrieval.cli.reproduce import _charts
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.errors import CorpusError, EncoderError, RetrError, UsageError
from retrieval.evaluation import reproduce_rows, results
from retrieval.evaluation.published import TABLES, WEIGHTS
from retrieval.evaluation.reproduce import Reproduction, reproduce
from retrieval.evaluation.reproduce_report import as_html, as_markdown, as_text, reports_of
from retrieval.evaluation.reproduce_rows import ReproduceOptions
from retrieval.transforms.flow import Flow
from retrieval.types import NoProgress

HIDDEN = 264
"""Of the stand-ins: more than the 256 that whitening-256 keeps."""
ROWS = [row.id for table in TABLES.values() for row in table.rows]
BERT_ROWS = [row.id for row in TABLES["lcqmc"].rows if row.weights == "bert"]
# float32 sums in another order; ranks of near-equal cosines may change places.
TOLERANCE = 1e-4


class Notes(NoProgress):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, message: str) -> None:
        self.lines.append(message)


def pair_lines(start: int, count: int, graded: bool = False) -> Iterator[tuple[str, str, float]]:
    """Every second pair is a text with its last character exchanged, the others are strangers."""
    texts = random_texts(start + count + 1)
    for row in range(start, start + count):
        alike = bool(row % 2)
        yield texts[row], texts[row][:-1] + "甲" if alike else texts[row + 1], (row % 6 if graded else int(alike))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LCQMC's dev and test and STS-B's three files in their official forms, and sentences for NLI."""
    root = tmp_path_factory.mktemp("data")
    (root / "lcqmc").mkdir()
    (root / "stsbenchmark_en").mkdir()
    for split, start in (("dev", 0), ("test", 150)):
        lines = [f"{one}\t{other}\t{label:g}\n" for one, other, label in pair_lines(start, 150)]
        (root / "lcqmc" / f"{split}.txt").write_text("".join(lines), encoding="utf-8")
    for split, start in (("train", 400), ("dev", 600), ("test", 700)):
        lines = [
            f"main\tfile\t2012\t{number:04d}\t{label:.3f}\t{one}\t{other}\n"
            for number, (one, other, label) in enumerate(pair_lines(start, 100, graded=True))
        ]
        (root / "stsbenchmark_en" / f"sts-{split}.csv").write_text("".join(lines), encoding="utf-8")
    (root / "nli.txt").write_text("\n".join(random_texts(400, seed=7)) + "\n", encoding="utf-8")
    return root


def make_word2vec(path: Path) -> Path:
    random = np.random.default_rng(3)
    rows = [f"{character} {' '.join(map(repr, random.normal(size=8).tolist()))}" for character in CHARACTERS]
    path.write_text("\n".join([f"{len(rows)} 8", *rows]) + "\n", encoding="utf-8")
    return path


def make_sbert(folder: Path) -> Path:
    """A sentence-transformers folder as the published one: DistilBERT, its mean, a dense layer."""
    make_tiny_model(folder, "distilbert", seed=4)
    entries = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    entries += [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(entries), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}', encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Random weights in the form of each row's."""
    root = tmp_path_factory.mktemp("stand-ins")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conftest, "HIDDEN", HIDDEN)
        bert_like = {name: make_tiny_model(root / name, seed=seed) for seed, name in enumerate(("bert", "roberta"))}
        simbert, english = make_tiny_model(root / "simbert", seed=2), make_tiny_model(root / "bert-en", seed=3)
        sbert = make_sbert(root / "sbert")
    found = {**bert_like, "simbert": simbert, "bert-en": english, "sbert": sbert}
    found |= {"word2vec": make_word2vec(root / "vectors.txt"), "elmo": make_elmo(root / "zhs.model")}
    assert found.keys() == WEIGHTS.keys()
    return {name: str(path) for name, path in found.items()}


@pytest.fixture(autouse=True)
def short_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small flow, fitted for two epochs, is a flow."""
    monkeypatch.setattr(Flow, "fit", functools.partial(Flow.fit, epochs=2, steps=2, width=16))


def options(data: Path, output: Path, **changes: Any) -> ReproduceOptions:
    return ReproduceOptions(data, output, **{"backend": "torch", "resamples": 50, **changes})


@pytest.fixture(scope="module")
def whole(data: Path, models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reproduction]:
    """All rows of both tables, measured once."""
    output = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flow, "fit", functools.partial(Flow.fit, epochs=2, steps=2, width=16))
        return output, reproduce(options(data, output, models=models, nli=str(data / "nli.txt")))


def test_every_published_row_is_measured_on_stand_in_weights(whole: tuple[Path, Reproduction]) -> None:
    output, found = whole
    assert [row.id for _, row in found.rows] == ROWS
    assert len(TABLES["lcqmc"].rows) == 15
    assert len(TABLES["stsb-en"].rows) == 7
    assert found.failed == {}
    for table, row in found.rows:
        record = found.records[row.id]
        assert record["status"] == "finished", record
        assert record["published"]["spearman"] == row.spearman
        names = ["test"] if table.name == "stsb-en" else ["dev", "test", "dev + test"]
        assert [split["name"] for split in record["splits"]] == names
        assert [split["n"] for split in record["splits"]] == ([100] if table.name == "stsb-en" else [150, 150, 300])
        for split in record["splits"]:
            low, high = split["spearman"]["interval"]
            assert -1 <= low <= split["spearman"]["value"] <= high <= 1
            assert split["pearson"]["value"] is not None
        assert (record["fitted_on"] is None) == (row.transform == "none")
        assert record["weights"]["given"] is True
    on_disk = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert on_disk["rows"] == found.records
    # What was encoded for rows that are all finished is needed no more.
    assert list((output / "embeddings").iterdir()) == []


def test_dimensions_are_those_that_the_row_keeps(whole: tuple[Path, Reproduction]) -> None:
    kept = {row: whole[1].records[row]["dimension"] for row in ROWS}
    assert (kept["word2vec"], kept["elmo"], kept["bert-cls"], kept["flow"]) == (8, 12, HIDDEN, HIDDEN)
    assert kept["whitening-256"] == kept["en-whitening-256"] == kept["en-whitening-256-nli"] == 256
    assert 256 < kept["whitening"] <= HIDDEN


def test_what_a_transform_was_fitted_on_is_said(whole: tuple[Path, Reproduction], data: Path) -> None:
    records = whole[1].records
    assert records["flow"]["fitted_on"] == "600 sentences of lcqmc dev + test, as often as they stand there"
    assert records["en-flow"]["fitted_on"].startswith("600 sentences of stsb-en train + dev + test")
    assert records["en-flow-nli"]["fitted_on"] == f"400 distinct sentences of {data / 'nli.txt'}"
    assert records["en-raw"]["key"]["settings"]["max_length"] == 64


def _read(data: Path, *splits: str) -> tuple[list[str], list[str], list[float]]:
    lines = [line for split in splits for line in (data / "lcqmc" / f"{split}.txt").read_text("utf-8").splitlines()]
    first, second, labels = zip(*(line.split("\t") for line in lines), strict=True)
    return list(first), list(second), list(map(float, labels))


def _spearman(one: np.ndarray, other: np.ndarray, labels: list[float]) -> float:
    stats = pytest.importorskip("scipy.stats")
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    return float(stats.spearmanr(cosines, labels).statistic)


def test_raw_and_whitened_figures_are_those_of_the_plain_formulas(
    whole: tuple[Path, Reproduction], data: Path, models: dict[str, str]
) -> None:
    encoder = load_encoder(resolve_settings(models["bert"], pooling="first-last-avg"), "cpu")
    first, second, labels = _read(data, "dev", "test")
    one, other = (encoder.encode(texts).astype(np.float64) for texts in (first, second))
    # Su et al. 2021, eq. 6 to 8, as their code has it: every sentence of the set, as often as it stands there.
    both = np.concatenate([one, other])
    mean = both.mean(0)
    u, s, _ = np.linalg.svd(np.cov(both.T))
    kernel = u[:, :256] / np.sqrt(s[:256])
    expected = {
        "bert-first-last-avg": _spearman(one, other, labels),
        "whitening-256": _spearman((one - mean) @ kernel, (other - mean) @ kernel, labels),
    }
    for row, value in expected.items():
        assert whole[1].records[row]["splits"][-1]["spearman"]["value"] == pytest.approx(value, abs=TOLERANCE)
    dev = whole[1].records["bert-first-last-avg"]["splits"][0]
    assert dev["spearman"]["value"] == pytest.approx(_spearman(one[:150], other[:150], labels[:150]), abs=TOLERANCE)


def test_reports_hold_the_published_figures_beside_ours(whole: tuple[Path, Reproduction]) -> None:
    reports = reports_of(whole[1].records, list(TABLES))
    here = f"{100 * whole[1].records['bert-cls']['splits'][-1]['spearman']['value']:.2f}"
    text, markdown, page = as_text(reports), as_markdown(reports), as_html(reports, [])
    for shown in (text, markdown, page):
        for table in TABLES.values():
            for row in table.rows:
                assert f"{row.id}*" in shown.replace("\\", "")
                assert f"{100 * row.spearman:.2f}" in shown
        assert here in shown
        assert "given with --model" in shown
        assert "300 pairs, without train, which was not there" in shown
        assert "wait" not in shown
    (line,) = (line for line in text.splitlines() if line.startswith("bert-cls*"))
    assert line.split()[2:6] == ["27.87", f"{100 * _last(whole, 'bert-cls', 'pearson'):.2f}", "33.11", here]
    assert markdown.count("\n| ") == len(ROWS) + 2
    assert "src=" not in page
    assert "http" not in page.split("</style>")[0]


def _last(whole: tuple[Path, Reproduction], row: str, measure: str) -> float:
    return float(whole[1].records[row]["splits"][-1][measure]["value"])


def test_page_has_a_chart_a_table_where_matplotlib_is_installed(whole: tuple[Path, Reproduction]) -> None:
    pytest.importorskip("matplotlib")
    reports = reports_of(whole[1].records, list(TABLES))
    page = as_html(reports, [report.chart() for report in reports])
    assert page.count("<svg") == 2
    assert "whitening-256*" in page.split("<svg")[1]


def test_a_second_run_measures_nothing_again_and_says_so(
    whole: tuple[Path, Reproduction], data: Path, models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(reproduce_rows, "load_to_build", refuse)
    notes = Notes()
    again = reproduce(options(data, whole[0], models=models, nli=str(data / "nli.txt")), notes)
    assert again.records == whole[1].records
    (line,) = notes.lines
    assert line.startswith("finished before, and kept (--fresh measures them again): word2vec, elmo, bert-cls")
    # Without the weights the figures stay too.
    notes = Notes()
    assert reproduce(options(data, whole[0]), notes).records == whole[1].records
    assert "though what they need is not here now: word2vec" in notes.lines[0]


def test_a_run_that_is_broken_off_after_three_rows_goes_on_from_there(
    data: Path, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options(data, tmp_path / "out", tables=("lcqmc",), only=("bert", "word2vec"), models=models)
    put, count = results.Results.put, 0

    def put_three(self: results.Results, row: str, record: dict[str, Any]) -> None:
        nonlocal count
        put(self, row, record)
        count += 1
        if count == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(results.Results, "put", put_three)
        with pytest.raises(KeyboardInterrupt):
            reproduce(given)
    kept = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["rows"]
    assert list(kept) == ["word2vec", "bert-cls", "bert-last-avg"]
    notes = Notes()
    found = reproduce(given, notes)
    assert "finished before, and kept (--fresh measures them again): word2vec, bert-cls, bert-last-avg" in notes.lines
    assert {row: found.records[row] for row in kept} == kept
    assert all(found.records[row]["status"] == "finished" for row in BERT_ROWS)


def test_a_run_that_dies_while_it_encodes_loses_one_shard(
    data: Path, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce_rows, "SHARD_ROWS", 100)
    given = options(data, tmp_path / "out", tables=("lcqmc",), only=("bert-cls",), models=models)
    load, left = reproduce_rows.load_to_build, 2

    def load_dying(*arguments: Any, **named: Any) -> Any:
        encoder = load(*arguments, **named)
        encode = encoder.encode

        def dying(*texts: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return encode(*texts, **more)

        encoder.encode = dying
        return encoder

    monkeypatch.setattr(reproduce_rows, "load_to_build", load_dying)
    with pytest.raises(KeyboardInterrupt):
        reproduce(given)
    assert len(list((tmp_path / "out" / "embeddings" / "lcqmc-bert-cls").glob("*.safetensors"))) == 2
    left, notes = 3, Notes()  # 451 sentences are 5 shards
    found = reproduce(given, notes)
    assert "lcqmc-bert-cls: 2 of 5 shards are there already" in notes.lines
    assert found.records["bert-cls"]["status"] == "finished"
    # The rows that share no embedding with bert-cls are not asked for, and what was encoded is gone.
    assert list((tmp_path / "out" / "embeddings").iterdir()) == []


def test_embeddings_stay_for_the_rows_that_share_them(
    data: Path, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"tables": ("lcqmc",), "models": models}
    reproduce(options(data, tmp_path / "out", only=("bert-first-last-avg",), **given))
    assert [path.name for path in (tmp_path / "out" / "embeddings").iterdir()] == ["lcqmc-bert-first-last-avg"]
    monkeypatch.setattr(reproduce_rows, "load_to_build", lambda *arguments, **named: pytest.fail("encoded again"))
    found = reproduce(options(data, tmp_path / "out", only=("whitening", "whitening-256", "flow"), **given))
    assert found.failed == {}
    assert list((tmp_path / "out" / "embeddings").iterdir()) == []


def test_other_weights_are_measured_again_and_failing_ones_leave_the_old_figures(
    data: Path, models: dict[str, str], tmp_path: Path
) -> None:
    given = {"tables": ("lcqmc",), "only": ("bert-cls", "word2vec")}
    first = reproduce(options(data, tmp_path / "out", models=models, **given))
    notes = Notes()
    other = {**models, "bert-cls": models["roberta"]}
    found = reproduce(options(data, tmp_path / "out", models=other, **given), notes)
    assert "bert-cls: measured again, for other weights than before" in notes.lines
    assert found.records["bert-cls"]["weights"]["source"] == models["roberta"]
    assert found.records["word2vec"] == first.records["word2vec"]
    # A model of another kind is no such row's; the other row goes on, and the figures from before stay.
    wrong = {"word2vec": models["bert"], "bert-cls": models["bert"]}
    found = reproduce(options(data, tmp_path / "out", models=wrong, **given))
    assert found.failed.keys() == {"word2vec"}
    assert found.failed["word2vec"].endswith("is taken for transformer, and word2vec wants word vectors")
    assert found.records["word2vec"] == first.records["word2vec"]
    assert found.records["bert-cls"]["weights"]["source"] == models["bert"]


def test_rows_without_weights_say_what_they_wait_for_and_ask_no_network(
    data: Path, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked = []

    def offline(hub_id: str, local_files_only: bool = False, **named: object) -> str:
        asked.append((hub_id, local_files_only))
        raise ConnectionError

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    found = reproduce(options(data, tmp_path / "out", models={"word2vec": models["word2vec"]}))
    assert {local for _, local in asked} == {True}
    assert found.records["word2vec"]["status"] == "finished"
    waits = {row: found.records[row]["waits_for"] for row in ROWS if row != "word2vec"}
    for row, wanted in (
        ("elmo", "the folder zhs.model"),
        ("bert-cls", "google-bert/bert-base-chinese"),
        ("flow", "google-bert/bert-base-chinese"),
        ("roberta-cls", "hfl/chinese-roberta-wwm-ext"),
        ("sbert-cls", "sentence-transformers/distiluse-base-multilingual-cased-v1"),
        ("simbert-cls", "WangZeJun/simbert-base-chinese"),
        ("en-raw", "google-bert/bert-base-uncased"),
    ):
        assert wanted in waits[row]
        assert "--model " in waits[row]
    assert "MNLI" not in waits["en-whitening"]
    assert "MNLI train and of SNLI" in waits["en-whitening-nli"]
    # With --download the hub is asked, and what it says is the reason.
    found = reproduce(options(data, tmp_path / "out", only=("simbert", "bert"), download=True))
    assert asked.count(("google-bert/bert-base-chinese", False)) == 1  # not once a row
    assert ("WangZeJun/simbert-base-chinese", False) in asked
    assert (
        "which the hub did not give (no network: ConnectionError): try again"
        in found.records["simbert-cls"]["waits_for"]
    )


def test_weights_in_the_local_cache_of_the_hub_are_found(
    data: Path, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "hub" / "models--WangZeJun--simbert-base-chinese"
    shutil.copytree(models["simbert"], cached / "snapshots" / "0123abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123abc", encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    found = reproduce(options(data, tmp_path / "out", only=("simbert-cls", "sbert-cls")))
    record = found.records["simbert-cls"]
    assert record["weights"] | {"sha256": ""} == {
        "source": "WangZeJun/simbert-base-chinese",
        "given": False,
        "sha256": "",
    }
    assert found.records["sbert-cls"]["status"] == "waiting"
    assert "simbert-cls*" not in as_text(reports_of(found.records, ["lcqmc"]))


def test_a_set_that_is_not_there_is_waited_for_and_one_split_is_measured_alone(
    data: Path, models: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "data" / "lcqmc").mkdir(parents=True)
    shutil.copy(data / "lcqmc" / "test.txt", tmp_path / "data" / "lcqmc")
    given = {"only": ("word2vec", "en-raw"), "models": models}
    found = reproduce(options(tmp_path / "data", tmp_path / "out", **given))
    assert [split["name"] for split in found.records["word2vec"]["splits"]] == ["test"]
    assert "the data of stsb-en (one of stsbenchmark_en/sts-test.csv" in found.records["en-raw"]["waits_for"]
    # With another split the row is another, and is measured again.
    shutil.copy(data / "lcqmc" / "dev.txt", tmp_path / "data" / "lcqmc")
    notes = Notes()
    found = reproduce(options(tmp_path / "data", tmp_path / "out", **given), notes)
    assert "word2vec: measured again, for other data than before" in notes.lines
    assert found.records["word2vec"]["splits"][-1]["name"] == "dev + test"


def test_fit_takes_a_split_or_a_file(data: Path, models: dict[str, str], tmp_path: Path) -> None:
    given = {"only": ("whitening",), "models": models}
    dev = reproduce(options(data, tmp_path / "out", fit="dev", **given)).records["whitening"]
    assert dev["fitted_on"] == "300 sentences of lcqmc dev, as often as they stand there"
    file = reproduce(options(data, tmp_path / "out", fit=str(data / "nli.txt"), **given)).records["whitening"]
    assert file["fitted_on"] == f"400 distinct sentences of {data / 'nli.txt'}"
    assert dev["splits"][-1]["spearman"]["value"] != file["splits"][-1]["spearman"]["value"]
    waiting = reproduce(options(data, tmp_path / "other", fit="train", **given)).records["whitening"]
    assert waiting["waits_for"] == "the train split of lcqmc, which --fit names"


def test_fewer_dimensions_than_a_row_keeps_fail_that_row_alone(data: Path, tiny_model: Path, tmp_path: Path) -> None:
    given = {"only": ("bert-first-last-avg", "whitening", "whitening-256"), "models": {"bert": str(tiny_model)}}
    found = reproduce(options(data, tmp_path / "out", **given))
    assert found.failed.keys() == {"whitening-256"}
    assert "cannot keep m = 256" in found.failed["whitening-256"]
    assert found.records["whitening"]["status"] == "finished"
    assert "whitening-256 failed: cannot keep m" in as_text(reports_of(found.records, ["lcqmc"]))


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"only": ("bert-clss",)}, UsageError, "no row 'bert-clss' in lcqmc, stsb-en: expected one of word2vec, elmo,"),
        ({"only": ("en-raw",), "tables": ("lcqmc",)}, UsageError, "no row 'en-raw' in lcqmc: expected one of"),
        ({"tables": ("afqmc",)}, UsageError, "no table 'afqmc': expected one of lcqmc, stsb-en"),
        ({"models": {"brt": "x"}}, UsageError, "--model brt=x: no row 'brt', expected one of word2vec, elmo, bert,"),
        ({"models": {"bert": "a+0.3*b"}}, UsageError, "expected one model"),
        ({"models": {"bert": "use-multilingual"}}, UsageError, "expected one model"),
        ({"models": {"bert": "/no/such/folder"}}, EncoderError, "no model folder at '/no/such/folder'"),
        ({"fit": "test"}, UsageError, "--fit test: expected target"),
        ({"fit": "nowhere.txt"}, CorpusError, "nowhere.txt"),
        ({"nli": "nowhere.txt"}, CorpusError, "nowhere.txt"),
        ({"backend": "tf"}, UsageError, "unknown backend 'tf'"),
        ({"data": Path("nowhere")}, CorpusError, "no folder 'nowhere'"),
    ],
)
def test_bad_options_are_named_with_the_choices_before_anything_is_written(
    changes: dict[str, Any], kind: type[RetrError], message: str, data: Path, tmp_path: Path
) -> None:
    given = {"data": data, "output": tmp_path / "out", "backend": "torch", **changes}
    with pytest.raises(kind) as caught:
        reproduce(ReproduceOptions(**given))
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(data: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="holds something else"):
        reproduce(options(data, tmp_path / "other"))
    with pytest.raises(UsageError, match="is a file"):
        reproduce(options(data, tmp_path / "other" / "manifest.json"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "results.json").write_text('{"format": 1, "rows"', encoding="utf-8")
    with pytest.raises(RetrError, match="is not what this retr reproduce wrote"):
        reproduce(options(data, tmp_path / "broken"))
    assert (tmp_path / "broken" / "results.json").read_text(encoding="utf-8") == '{"format": 1, "rows"'


def test_command_without_weights_prints_the_table_and_fails(data: Path, tmp_path: Path, retr: Retr) -> None:
    done = retr("reproduce", "--data", data, "--table", "lcqmc")
    assert done.returncode == 1
    assert "simbert-cls" in done.stdout
    assert "76.12" in done.stdout
    assert "bert-cls, bert-last-avg, bert-last2-avg, bert-first-last-avg, whitening" in done.stdout
    assert done.stderr.splitlines()[-1] == (
        "retr: no row was measured: what each waits for stands in the table's last lines"
    )
    assert max(map(len, done.stdout.split("\n\n")[1].splitlines())) <= 120
    names = {path.name for path in (tmp_path / "reproduce").iterdir()}
    assert {"results.json", "reproduce.md", "reproduce.html"} <= names


def test_command_measures_what_is_there_and_prints_json(
    data: Path, models: dict[str, str], tmp_path: Path, retr: Retr
) -> None:
    command = ("reproduce", "--data", data, "-o", "out", "--only", "word2vec,elmo", "--bootstrap", "20")
    done = retr(*command, "--model", f"word2vec={models['word2vec']}", "--json", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    word2vec, elmo = map(json.loads, done.stdout.splitlines())
    assert (word2vec["row"], word2vec["status"], elmo["status"]) == ("word2vec", "finished", "waiting")
    assert word2vec["published"]["pearson"] == 0.5221
    assert word2vec["splits"][-1]["n"] == 300
    # The same command with the folder that was waited for goes on.
    done = retr(*command, "--model", f"elmo={models['elmo']}")
    assert done.returncode == 0
    assert "finished before, and kept, though what they need is not here now: word2vec" in done.stderr
    assert "elmo: Spearman " in done.stderr
    assert "wait" not in done.stdout.split("\n\n\n")[0].split("elmo*")[1].partition("bert-cls, ")[0]


def test_command_that_is_killed_after_three_rows_goes_on(
    data: Path, models: dict[str, str], tmp_path: Path, retr: Retr
) -> None:
    command = ["reproduce", "--data", str(data), "-o", "out", "--table", "lcqmc", "--backend", "torch"]
    command += ["--only", "word2vec,bert,roberta", "--bootstrap", "20"]
    command += [word for name in ("word2vec", "bert", "roberta") for word in ("--model", f"{name}={models[name]}")]
    run = [sys.executable, "-m", "retrieval.cli.main", *command]
    process = subprocess.Popen(run, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = tmp_path / "out" / "results.json"
    kept: dict[str, Any] = {}
    while len(kept) < 3 and process.poll() is None:
        time.sleep(0.02)
        if file.exists():
            kept = json.loads(file.read_text(encoding="utf-8"))["rows"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert 3 <= len(kept) < 12
    done = retr(*command)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("finished before, and kept"))
    assert line.partition(": ")[2].split(", ") == list(kept)
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert {row: rows[row] for row in kept} == kept
    assert sum(record["status"] == "finished" for record in rows.values()) == 12


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--only", "nope"], 2, "no row 'nope' in lcqmc, stsb-en: expected one of word2vec"),
        (["--model", "bert"], 2, "--model bert: expected ROW=FOLDER"),
        (["--model", "bert=a", "--model", "bert=b"], 2, "--model bert= is given twice"),
        (["--model", "bert=./nowhere"], 1, "no model folder at './nowhere'"),
        (["--table", "sick"], 2, "no table 'sick'"),
        (["--bootstrap", "-1"], 2, "--bootstrap"),
        (["--data", "nowhere"], 1, "no folder 'nowhere'"),
    ],
)
def test_command_bad_input_is_one_clear_line(
    arguments: list[str], code: int, message: str, data: Path, tmp_path: Path, retr: Retr
) -> None:
    done = retr("reproduce", "--data", data, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "reproduce").exists()


def test_command_without_data_says_how_to_give_it(retr: Retr, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETR_DATA", raising=False)
    done = retr("reproduce")
    assert (done.returncode, done.stdout) == (2, "")
    assert "give --data DIR, or set RETR_DATA" in done.stderr


def test_page_without_matplotlib_says_that_its_charts_are_missing(
    whole: tuple[Path, Reproduction], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    reports = reports_of(whole[1].records, list(TABLES))
    charts = _charts(reports, TerminalProgress())
    assert "the page is without its charts: charts need the package matplotlib" in capsys.readouterr().err
    page = as_html(reports, charts)
    assert "<svg" not in page
    assert "whitening-256*" in page
