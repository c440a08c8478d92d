"""retr bench as a command: what it writes and prints, that it goes on, and what it refuses."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Retr, random_texts


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    centres = random.normal(size=(30, 16))
    rows = centres[random.integers(0, 30, 1500)] + 0.6 * random.normal(size=(1500, 16))
    np.save(tmp_path / "base.npy", (rows * np.geomspace(1, 0.2, 16)).astype(np.float32))
    return tmp_path / "base.npy"


def results(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return content


def test_bench_of_an_index_writes_a_report_with_labels(retr: Retr, tiny_model: Path, tmp_path: Path) -> None:
    texts = random_texts(800)
    (tmp_path / "corpus.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    others = random_texts(60, seed=5)
    (tmp_path / "queries.txt").write_text("\n".join(others) + "\n", encoding="utf-8")
    (tmp_path / "qrels.txt").write_text("0 0 3 1\n4 0 11 1\n", encoding="utf-8")
    pairs = [f"{others[i]}\t{others[i + 1]}\t{i // 2 % 2}" for i in range(0, 60, 2)]
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\tlabel\n" + "\n".join(pairs) + "\n", encoding="utf-8")
    built = retr("index", "corpus.txt", "-o", "indexes/tiny", "--model", tiny_model, "--backend", "torch", "-q")
    assert built.returncode == 0, built.stderr
    done = retr(
        *("bench", "-i", "indexes/tiny", "--dims", "16,8", "--transform", "whiten,cut", "--index", "flat,pqfs,ivf"),
        *("--queries", "queries.txt", "--qrels", "qrels.txt", "--pairs", "pairs.tsv", "--rounds", "2", "-o", "report/"),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "800 documents of 32 dimensions, 60 held-out queries (queries.txt), k = 10" in lines[0]
    assert lines[3].split("  ")[0] == ""
    for column in ("recall of uncut", "of cut", "Spearman", "recall@10 known", "MRR@10 judged", "p99", "bytes/doc"):
        assert column in lines[3]
    assert lines[4].startswith("uncut flat ")
    assert "whiten-16, 1 of 4: flat, pqfs, ivf" in done.stderr
    assert "ivf learns from at least 1,024 vectors, there are 800" in done.stdout
    content = results(tmp_path / "report")
    assert content["inputs"]["threads"] >= 1
    assert content["machine"]["versions"].keys() >= {"retr", "python", "numpy"}
    assert set(content["labels"]) == {"uncut", "whiten-16", "whiten-8", "cut-16", "cut-8"}
    names = {"results.json", "results.csv", "index.html", "recall-latency.png", "recall-bytes.png"}
    assert {path.name for path in (tmp_path / "report").iterdir()} == names
    with (tmp_path / "report" / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(content["rows"])
    assert all(0 <= float(row["judged.MRR@10"]) <= 1 for row in rows if row["status"] == "measured")


def test_bench_goes_on_after_a_kill_and_prints_what_is_there(retr: Retr, vectors: Path, tmp_path: Path) -> None:
    arguments = ["bench", "--vectors", "base.npy", "--dims", "8,4", "--transform", "rotate", "--index", "flat,ivf"]
    running = subprocess.Popen(
        [sys.executable, "-m", "retrieval.cli.main", *arguments, "--rounds", "400", "-o", "report"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    for _ in range(600):
        if (tmp_path / "report" / "results.json").is_file() and results(tmp_path / "report")["rows"]:
            break
        assert running.poll() is None
        time.sleep(0.1)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    kept = results(tmp_path / "report")["rows"]
    refused = retr(*arguments, "--rounds", "3", "-o", "report")
    assert refused.returncode == 2
    assert "rounds 400 -> 3" in refused.stderr
    assert results(tmp_path / "report")["rows"] == kept
    content = results(tmp_path / "report")
    content["inputs"]["rounds"] = 3  # as if it had been the same command
    (tmp_path / "report" / "results.json").write_text(json.dumps(content), encoding="utf-8")
    done = retr(*arguments, "--rounds", "3", "-o", "report", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {**kept[0], "labels": {}} == rows[0]
    assert {(row["cut"], row["index"]) for row in rows[1:]} == {
        (f"rotate-{m}", kind) for m in (8, 4) for kind in ("flat", "ivf")
    }
    again = retr(*arguments, "--rounds", "3", "-o", "report", "--markdown")
    assert again.returncode == 0, again.stderr
    assert "exact search" not in again.stderr  # nothing is measured
    assert "| uncut flat | 100.00 | 100.00 |" in again.stdout


def test_bench_takes_kinds_and_factory_strings_side_by_side(retr: Retr, vectors: Path, tmp_path: Path) -> None:
    # 16 dimensions have no 5 codes; 1,350 vectors train no 2,000 lists
    kinds = ("pqfs,ivf-pqfs-disk", "IVF16,PQ8x4fs,Refine(SQfp16)", "PQ5", "IVF2000,Flat")
    cut = ("--transform", "rotate", "--dims", "16", "--rounds", "1", "--recall", "0.9")
    options = [part for kind in kinds for part in ("--index", kind)]
    done = retr("bench", "--vectors", "base.npy", *cut, *options)
    assert done.returncode == 0, done.stderr
    rows = {row["index"]: row for row in results(tmp_path / "report")["rows"] if row["cut"] != "uncut"}
    measured = {name for name, row in rows.items() if row["status"] == "measured"}
    assert measured == {"pqfs", "ivf-pqfs-disk", "IVF16,PQ8x4fs,Refine(SQfp16)"}
    assert rows.keys() == measured | {"PQ5", "IVF2000,Flat"}
    assert "rotate-16 PQ5: unknown index 'PQ5'" in done.stdout
    assert "rotate-16 IVF2000,Flat: IVF2000,Flat cannot be trained on 1,350 vectors" in done.stdout
    assert all(rows[name]["recall_of_cut"] > 0.85 for name in measured)
    assert rows["ivf-pqfs-disk"]["bytes_per_document"] < 25 < rows["pqfs"]["bytes_per_document"]
    assert rows["ivf-pqfs-disk"]["setting"].keys() == {"nprobe", "k_factor"}
    assert "bytes and MiB of ivf-pqfs-disk are those of the codes; the 16 raw values" in done.stdout


def test_bench_takes_and_gives_ann_benchmarks_files(retr: Retr, vectors: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    cut = ("--transform", "rotate", "--dims", "8", "--index", "flat", "--rounds", "1", "-q")
    done = retr("bench", "--vectors", "base.npy", *cut, "--hdf5-out", "cut.hdf5", "-o", "one")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    done = retr("bench", "--hdf5", "cut.hdf5", *cut, "-o", "two")
    assert done.returncode == 0, done.stderr
    assert "the neighbours that the source itself lists are the exact ones to 100.00%" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--vectors", "base.npy", "--dims", "17"], 2, "--dims 17: expected a number from 1 to 16"),
        (["--vectors", "base.npy", "--index", "tree"], 2, "unknown index 'tree'"),
        (["--vectors", "base.npy", "--transform", "pca"], 2, "unknown transform 'pca'"),
        (["--vectors", "base.npy", "-k", "2000"], 2, "k is 2000, and there are 1,350 documents"),
        (["--vectors", "base.npy", "--queries", "q.txt"], 2, "--queries q.txt wants an encoder"),
        (["--vectors", "base.npy", "--pairs", "lcqmc"], 2, "--pairs lcqmc wants an encoder"),
        (["--vectors", "base.npy", "--hdf5", "x.hdf5"], 2, "--vectors and --hdf5 exclude each other"),
        (["--query-vectors", "base.npy"], 2, "--query-vectors base.npy is for --vectors"),
        (["--qrels", "base.npy"], 2, "give them with --queries FILE"),
        (["--vectors", "base.npy", "--hdf5-out", "x.hdf5"], 2, "--hdf5-out writes one cut, and there are 2"),
        (["--vectors", "none.npy"], 1, "'none.npy' cannot be read: No such file"),
        (["-i", "none"], 1, "no index at 'none'"),
        (["--vectors", "base.npy", "-o", "."], 2, "holds other things (base.npy)"),
        (["--vectors", "base.npy", "--json", "--markdown"], 2, "--json and --markdown exclude each other"),
    ],
)
def test_bench_refuses_in_one_line(
    retr: Retr, vectors: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    done = retr("bench", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "report").exists()
