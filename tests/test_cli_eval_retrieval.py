"""`retr eval --retrieval` in a process of its own, on a tiny model and small sets."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import Retr, random_texts, write_jsonl

from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.evaluation.trec import read_qrels, read_run
from retrieval.transforms.apply import unit_vectors

PAIRS = 40


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """data/lcqmc: paraphrases differ in the last character; titles.txt: distractors; a BEIR folder `faq`."""
    texts = random_texts(PAIRS + 160)
    (tmp_path / "data" / "lcqmc").mkdir(parents=True)
    lines = [f"{text}\t{text[:-1]}甲\t1\n{text}\t{other}\t0\n" for text, other in itertools.pairwise(texts[:PAIRS])]
    lines.append(f"{texts[0]}\t{texts[0]}\t1\n")
    (tmp_path / "data" / "lcqmc" / "test.txt").write_text("".join(lines), encoding="utf-8")
    dev = "".join(f"{text}\t{text[::-1]}\t1\n" for text in texts[-60:])
    (tmp_path / "data" / "lcqmc" / "dev.txt").write_text(dev, encoding="utf-8")
    (tmp_path / "titles.txt").write_text("\n".join([texts[1], *texts[PAIRS:140]]) + "\n", encoding="utf-8")
    (tmp_path / "faq" / "qrels").mkdir(parents=True)
    write_jsonl(
        tmp_path / "faq" / "corpus.jsonl",
        [{"_id": f"d{row}", "title": "", "text": text} for row, text in enumerate(texts[:50])],
    )
    write_jsonl(
        tmp_path / "faq" / "queries.jsonl", [{"_id": f"q{row}", "text": f"{texts[row]}乙"} for row in range(10)]
    )
    judged = "".join(f"q{row}\td{row}\t{1 + row % 2}\n" for row in range(10))
    (tmp_path / "faq" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged, encoding="utf-8")
    return tmp_path


LCQMC = ("eval", "--retrieval", "lcqmc", "--data", "data", "--distractors", "titles.txt", "--backend", "torch")


def test_known_items_table_has_a_row_a_transform_and_says_what_was_measured(
    files: Path, tiny_model: Path, retr: Retr
) -> None:
    transforms = ("--transform", "none", "--transform", "whiten-8")
    done = retr(*LCQMC, "--model", tiny_model, *transforms, "--bootstrap", "100")
    assert done.returncode == 0, done.stderr
    out = done.stdout
    # 40 texts, the paraphrases of 39, and the 100 of 101 distractors that are not among them.
    assert out.splitlines()[0] == "lcqmc test: 39 queries, 179 documents, 39 relevant documents"
    assert re.search(r"system +recall@1 +recall@10 +MRR@10 +nDCG@10 +MAP@100 +top 1 unjudged", out)
    assert "2 minus 1" in out
    assert "95 % intervals of 100 bootstrap resamples" in out
    assert "judging gap" in out
    assert "pairs of a sentence with itself, which ask for nothing: 1 (" in out
    assert "distractors that are sentences of the set, and count as those: 1 (" in out
    assert re.search(r"2: 8 dimensions, torch, float32, prompts '' .*; fitted on the corpus \(\d+ documents\)", out)
    assert done.stderr.count("documents") == 1  # encoded once


def test_run_and_qrels_out_are_worth_the_same_when_they_come_back(files: Path, tiny_model: Path, retr: Retr) -> None:
    out = ("--run-out", "a.run", "--qrels-out", "a.qrels", "--json", "--k", "1,5")
    done = retr(*LCQMC, "--model", tiny_model, *out)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    again = retr("eval", "--qrels", "a.qrels", "--run", "a.run", "--k", "1,5", "--depth", "100", "--json")
    assert again.returncode == 0, again.stderr
    scored = json.loads(again.stdout)
    assert scored["measures"] == record["measures"]
    assert set(record["measures"]) == {
        *(f"{name}@{k}" for name in ("recall", "MRR", "nDCG", "judged") for k in (1, 5)),
        "MAP@100",
    }
    run, qrels = read_run(files / "a.run"), read_qrels(files / "a.qrels")
    assert run.keys() == qrels.keys()
    assert all(query not in found for query, found in run.items())  # its own row


def test_the_ranking_is_that_of_plain_cosines(files: Path, tiny_model: Path, retr: Retr) -> None:
    done = retr(*LCQMC, "--model", tiny_model, "--run-out", "a.run", "--task-out", "task", "--depth", "20", "--json")
    assert done.returncode == 0, done.stderr
    read = [
        {record["_id"]: record["text"] for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
        for path in (files / "task" / "corpus.jsonl", files / "task" / "queries.jsonl")
    ]
    documents, queries = read
    encoder = load_encoder(resolve_settings(tiny_model), "cpu")
    vectors = unit_vectors(encoder.encode(list(documents.values())), None)
    asked = unit_vectors(encoder.encode(list(queries.values())), None)
    names, run = list(documents), read_run(files / "a.run")
    for query, cosines in zip(queries, asked @ vectors.T, strict=True):
        best = [names[row] for row in np.argsort(-cosines) if names[row] != query][:20]
        assert list(run[query])[:3] == best[:3]
        np.testing.assert_allclose(list(run[query].values()), [cosines[names.index(name)] for name in best], atol=1e-5)


def test_own_files_a_beir_folder_and_an_index_of_the_same_documents_agree(
    files: Path, tiny_model: Path, retr: Retr
) -> None:
    model = ("--model", tiny_model, "--backend", "torch")
    three = ("--corpus", "faq/corpus.jsonl", "--queries", "faq/queries.jsonl", "--qrels", "faq/qrels/test.tsv")
    built = retr(
        *("index", "faq/corpus.jsonl", "--id-column", "_id", "--text-column", "text", "--transform", "none"), *model
    )
    assert built.returncode == 0, built.stderr
    records = []
    for arguments in (
        ("eval", "--retrieval", "faq", *model),
        ("eval", "--retrieval", *three, *model),
        ("eval", "--retrieval", *three, "-i", "indexes/corpus"),
        ("eval", "--retrieval", *three[2:], "-i", "indexes/corpus"),
    ):
        done = retr(*arguments, "--depth", "20", "--json", "--quiet")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        records.append(json.loads(done.stdout))
    for record in records:
        assert record["queries"] == 10
        assert record["measures"] == records[0]["measures"]
    assert records[0]["measures"]["recall@10"]["value"] == 1


def test_runs_of_other_systems_are_compared_with_the_first(files: Path, retr: Retr) -> None:
    (files / "a.qrels").write_text("1 0 a 1\n2 0 b 2\n3 0 c 0\n", encoding="utf-8")
    (files / "one.run").write_text("1 Q0 a 1 9 t\n2 Q0 c 1 9 t\n2 Q0 b 2 8 t\n9 Q0 b 2 8 t\n", encoding="utf-8")
    (files / "two.run").write_text("1 Q0 a 1 9 t\n", encoding="utf-8")
    runs = ("eval", "--qrels", "a.qrels", "--run", "one.run", "--run", "two.run")
    one, two = map(json.loads, retr(*runs, "--json").stdout.splitlines())
    assert one["queries"] == 2
    # Query 1 is answered first, query 2 second: MRR (1 + 1/2) / 2.
    assert one["measures"]["MRR@10"]["value"] == 0.75
    assert two["measures"]["MRR@10"]["value"] == 0.5
    assert two["difference"]["to"] == "one.run"
    assert two["difference"]["measures"]["MRR@10"]["value"] == -0.25
    assert "MAP" in one["measures"]
    table = retr(*runs).stdout
    assert "queries without a relevant document, left out: 1" in table
    assert "queries that two.run does not answer, and that count as 0: 1" in table
    assert "queries of one.run that nobody judged, left out: 1" in table
    assert retr(*runs, "--markdown").stdout.count("\n| ") == 4
    assert r"\begin{tabular}{lrrrrrr}" in retr(*runs, "--latex").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--retrieval"], 2, "from what? Name a set such as lcqmc"),
        (["--retrieval", "nope"], 2, "nothing to retrieve from is called 'nope': expected lcqmc, cmrc2018, qbqtc"),
        (["--retrieval", "cmrc2018", "--data", "data"], 1, "the dev split of cmrc2018 is not in 'data'"),
        (
            ["--retrieval", "lcqmc", "--data", "data", "--distractors", "none.txt"],
            1,
            "no such file or folder: 'none.txt'",
        ),
        (["--retrieval", "faq", "--distractors", "titles.txt"], 2, "--distractors is for sets of pairs"),
        (["--retrieval", "faq", "--split", "dev"], 1, "no such file: 'faq/qrels/dev.tsv'"),
        (["--retrieval", "faq", "--k", "0,10"], 2, "--k 0,10: expected whole numbers from 1 on"),
        (["--retrieval", "faq", "--k", "10", "--depth", "5"], 2, "--depth 5 is less than the largest --k, 10"),
        (["--retrieval", "faq", "--fit", "test", "--transform", "whiten-8"], 2, "nothing is learnt from a test split"),
        (["--retrieval", "faq", "--fit", "titles.txt"], 2, "there is nothing to fit"),
        (["--retrieval", "faq", "--threshold-from", "dev"], 2, "is for pairs, and not for --retrieval"),
        (["--retrieval", "faq", "faq", "--run-out", "a.run"], 2, "holds one, and there are 2 rankings"),
        (["--retrieval", "faq", "--task-out", "faq"], 2, "'faq' is there already"),
        (["--corpus", "faq/corpus.jsonl"], 2, "give all three"),
        (["--run", "a.run"], 2, "give --qrels FILE too"),
        (["--run", "a.run", "--qrels", "none"], 1, "no such file: 'none'"),
        (["faq", "--run", "a.run", "--qrels", "a.qrels"], 2, "SET faq: --run brings its results"),
        (["lcqmc", "--distractors", "titles.txt"], 2, "--distractors is for --retrieval"),
        (
            ["lcqmc", "--data", "data", "--transform", "none", "--transform", "whiten-8"],
            2,
            "measured with one transform",
        ),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], code: int, message: str, files: Path, retr: Retr, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RETR_DATA", raising=False)
    done = retr("eval", *arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
