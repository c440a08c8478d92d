"""The command line, in a process of its own: what it prints, and where."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Retr, commands, random_texts


@pytest.fixture(scope="module")
def built(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with indexes/shop, built by the command line from a CSV with ids and categories."""
    root = tmp_path_factory.mktemp("built")
    rows = [f"q{row},{text},{'ab'[row % 2]}" for row, text in enumerate(random_texts(60))]
    (root / "shop.csv").write_text("\n".join(["key,text,category", *rows, "q60,多行 文本,a"]), encoding="utf-8")
    command = [sys.executable, "-m", "retrieval.cli.main", "index", "shop.csv", "--model", str(tiny_model)]
    command += ["--id-column", "key", "--keep", "category", "--transform", "rotate-16"]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    return root


def test_index_names_the_folder_after_the_corpus_and_says_how_to_ask(
    tmp_path: Path, tiny_model: Path, retr: Retr
) -> None:
    (tmp_path / "faq.txt").write_text("甲乙\n丙丁\n", encoding="utf-8")
    done = retr("index", "faq.txt", "--model", tiny_model)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("indexes/faq: 2 documents, 32 dimensions (none), ")
    assert 'ask it: retr query "..." -i indexes/faq' in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in (tmp_path / "indexes").iterdir()) == ["faq"]


def test_index_of_a_folder_or_glob_is_named_after_it(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    (tmp_path / "logs").mkdir()
    for part in (1, 10, 2):
        (tmp_path / "logs" / f"part-{part}.txt").write_text(f"甲{part}\n", encoding="utf-8")
    assert retr("index", "logs", "--model", tiny_model).stdout.startswith("indexes/logs: 3 documents")
    assert retr("index", "logs/part-*.txt", "--model", tiny_model).stdout.startswith("indexes/part-1: 3 documents")


def test_index_json_is_one_object_with_the_manifest(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    (tmp_path / "faq.txt").write_text("甲乙\n\n丙丁\n", encoding="utf-8")
    done = retr("index", "faq.txt", "--model", tiny_model, "--json", "--quiet")
    assert done.stderr == ""
    content = json.loads(done.stdout)
    assert content["path"] == "indexes/faq"
    assert content["documents"]["skipped"] == 1


def test_index_reads_standard_input(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    done = retr("index", "-", "--model", tiny_model, stdin="甲乙\n丙丁\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("indexes/stdin: 2 documents")


def test_query_without_i_asks_the_index_built_last_and_says_which(built: Path, retr: Retr) -> None:
    done = retr("query", random_texts(1)[0], "-k", "2", cwd=built)
    assert done.returncode == 0, done.stderr
    assert "index: indexes/shop (built " in done.stderr
    first, second = (line.split("\t") for line in done.stdout.splitlines())
    assert first == [random_texts(1)[0], "1", "1.0000", "q0", random_texts(1)[0], "a"]
    assert second[1] == "2"


def test_query_json_has_the_documented_fields(built: Path, retr: Retr) -> None:
    done = retr("query", "甲", "乙", "-k", "3", "--json", cwd=built)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(record["query"], record["rank"]) for record in records] == [(q, r) for q in "甲乙" for r in (1, 2, 3)]
    assert all(list(record) == ["query", "rank", "id", "score", "text", "category"] for record in records)
    scores = [record["score"] for record in records[:3]]
    assert scores == sorted(scores, reverse=True)


def test_query_dash_reads_a_query_a_line_and_skips_blank_ones(built: Path, retr: Retr) -> None:
    done = retr("query", "-", "-k", "1", "-i", "indexes/shop", stdin="甲\r\n\n乙\n", cwd=built)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["甲", "乙"]
    assert done.stderr == "skipped 1 blank lines of standard input\n"


def test_query_min_score_leaves_out_lower_hits(built: Path, retr: Retr) -> None:
    done = retr("query", random_texts(1)[0], "--min-score", "0.99999", "--json", cwd=built)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["q0"]


def test_query_k_above_n_gives_all_documents(built: Path, retr: Retr) -> None:
    done = retr("query", "甲", "-k", "1000", "--json", cwd=built)
    assert len({json.loads(line)["id"] for line in done.stdout.splitlines()}) == 61


def test_query_on_a_terminal_is_a_table(built: Path) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "retrieval.cli.main", "query", random_texts(1)[0], "-k", "2"]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "xterm"}
    done = subprocess.Popen(command, cwd=built, stdout=follower, stderr=subprocess.DEVNULL, env=environment)
    os.close(follower)
    output = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            break
        if not part:
            break
        output += part
    os.close(leader)
    assert done.wait() == 0
    text = output.decode()
    assert "score" in text
    assert "┃" in text
    assert "category" in text
    assert "q0" in text
    assert "\x1b[3" not in text  # NO_COLOR


def test_json_has_null_for_kept_values_that_json_does_not_have(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    when = datetime.datetime(2024, 1, 2, 3, 4, 5)
    table = {"text": ["甲", "乙"], "x": [float("nan"), float("inf")], "l": [[1.0], [float("nan")]], "t": [when, None]}
    pq.write_table(pa.table(table), tmp_path / "c.parquet")
    assert retr("index", "c.parquet", "--model", tiny_model, "--keep", "x,l,t").returncode == 0
    found = {hit["id"]: hit for hit in map(json.loads, retr("query", "甲", "--json").stdout.splitlines())}
    assert (found["0"]["x"], found["0"]["l"], found["0"]["t"]) == (None, [1.0], "2024-01-02T03:04:05")
    assert (found["1"]["x"], found["1"]["l"], found["1"]["t"]) == (None, [None], None)


def test_retr_alone_shows_the_help(retr: Retr) -> None:
    done = retr()
    assert done.returncode == 2
    assert "Commands:\n" in done.stderr


@pytest.mark.parametrize(("columns", "kept_is_shown"), [(40, False), (120, True)])
def test_a_narrow_terminal_keeps_scores_whole_and_leaves_out_kept_columns(
    columns: int, kept_is_shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from retrieval.cli.hits import write_table
    from retrieval.types import Hit

    monkeypatch.setenv("COLUMNS", str(columns))
    write_table("甲", [Hit("carrier-0295", 0.93493, "手机卡丢了怎么补办", {"kind": "x" * 5000, "year": 2024})])
    output = capsys.readouterr().out
    assert "0.9349" in output
    assert ("2024" in output) == kept_is_shown
    assert len(output.splitlines()) < 30


def test_query_through_a_closed_pipe_is_quiet(built: Path) -> None:
    command = f"{sys.executable} -m retrieval.cli.main query - -k 50 -q | head -1"
    texts = "\n".join(random_texts(3000, seed=4))
    done = subprocess.run(command, shell=True, cwd=built, input=texts.encode(), capture_output=True, check=False)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == b""


def test_control_characters_of_a_document_never_reach_the_terminal(
    tmp_path: Path, tiny_model: Path, retr: Retr
) -> None:
    (tmp_path / "c.jsonl").write_text('{"text": "甲\\u001b[31m\\ttab\\nline"}\n', encoding="utf-8")
    assert retr("index", "c.jsonl", "--model", tiny_model).returncode == 0
    lines = retr("query", "甲").stdout.splitlines()
    assert len(lines) == 1
    assert len(lines[0].split("\t")) == 5


def test_info_shows_what_an_index_is(built: Path, retr: Retr) -> None:
    done = retr("info", "--verify", cwd=built)
    assert done.returncode == 0, done.stderr
    for part in (
        "documents    61 (61 distinct texts)",
        "shop.csv",
        "kept         category (string)",
        "pooling      last-avg",
        "rotate-16 (beta 0, gamma 0, eps 1e-09), fitted on 61 vectors; 16 dimensions keep ",
        "held out     a tenth of the vectors: ",
        "vectors.faiss",
        "seconds      read ",
        "every file has the sha256 of the manifest",
    ):
        assert part in done.stdout
    content = json.loads(retr("info", "--json", "-i", "indexes/shop", cwd=built).stdout)
    assert content["documents"]["count"] == 61


def test_info_verify_names_a_file_that_was_changed(built: Path, tmp_path: Path, retr: Retr) -> None:
    import shutil

    copy = shutil.copytree(built / "indexes" / "shop", tmp_path / "copy")
    content = bytearray((copy / "documents.arrow").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "documents.arrow").write_bytes(content)
    done = retr("info", "-i", copy, "--verify")
    assert done.returncode == 1
    assert "documents.arrow is not the file that was written" in done.stderr


@pytest.mark.parametrize("command", commands())
def test_every_commands_help_ends_with_an_example(command: str, retr: Retr) -> None:
    done = retr(*command.split(), "--help")
    assert done.returncode == 0
    assert f"Example: retr {command}" in done.stdout


def test_help_lists_every_command_and_version_is_the_packages(retr: Retr) -> None:
    import retrieval

    listed = retr("--help").stdout
    assert all(command.split()[0] in listed for command in commands())
    assert retr("--version").stdout == f"retr {retrieval.__version__}\n"
