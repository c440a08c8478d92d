"""`retr eval --download`: a set's files from the hub, which is a folder here; nothing is asked for twice."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Retr

from retrieval.errors import CorpusError, UsageError
from retrieval.evaluation.datasets import fetch_dataset, is_test_file, load_dataset
from retrieval.evaluation.hub import HUB_SETS, cached_files, download_set

ROWS = [
    {"sentence1": 'a "quoted', "sentence2": "b\tc", "score": 1},
    {"sentence1": "NS", "sentence2": "　d", "score": 0},
    {"sentence1": "e", "sentence2": "f", "score": 1},
]


class Hub:
    """A folder in the hub's place: REPOSITORY/file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []

    def list_repo_files(self, repository: str, *, repo_type: str, revision: str) -> list[str]:
        assert (repo_type, revision) in {("dataset", place.revision) for place in HUB_SETS.values()}
        root = self.folder / repository
        if not root.is_dir():
            raise ConnectionError(f"no route to {repository}\nmore lines")
        return [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]

    def hf_hub_download(
        self, repository: str, name: str, *, repo_type: str, revision: str, local_dir: Path, **options: Any
    ) -> str:
        self.asked.append(name)
        target = local_dir / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.folder / repository / name, target)
        (local_dir / ".cache").mkdir(exist_ok=True)  # as the library does
        (local_dir / ".cache" / "test.jsonl").write_text("")
        return str(target)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    fake = Hub(tmp_path / "hub")
    monkeypatch.setenv("RETR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub, "list_repo_files", fake.list_repo_files)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.hf_hub_download)
    return fake


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_parquet_parts_are_downloaded_once_and_read_in_order(hub: Hub) -> None:
    root = hub.folder / "C-MTEB" / "LCQMC"
    parts = [parquet(root / f"data/test-0000{n}-of-00002-0a1b.parquet", ROWS[n : n + 1]) for n in range(2)]
    parquet(root / "data/validation-00000-of-00001-2c.parquet", ROWS[2:])
    parquet(root / "data/train-00000-of-00001-3d.parquet", ROWS)
    (root / "README.md").write_text("test", encoding="utf-8")
    notes: list[str] = []
    fetch_dataset("lcqmc", ["test", "dev"], None, notes.append)
    assert len(notes) == 1
    assert "https://huggingface.co/datasets/C-MTEB/LCQMC" in notes[0]
    assert sorted(hub.asked) == [
        f"data/{name}" for name in sorted([*(part.name for part in parts), "validation-00000-of-00001-2c.parquet"])
    ]
    pairs = load_dataset("lcqmc", "test", None)
    assert (pairs.first, pairs.second, pairs.labels.tolist()) == (['a "quoted', "NS"], ["b\tc", "　d"], [1, 0])
    assert pairs.md5 == hashlib.md5(b"".join(part.read_bytes() for part in parts)).hexdigest()
    assert is_test_file("lcqmc", pairs.md5, None)
    assert len(load_dataset("lcqmc", "dev", None)) == 1
    with pytest.raises(UsageError, match=r"It can be had from .*; nothing is downloaded unless retr eval --download"):
        load_dataset("lcqmc", "train", None)
    fetch_dataset("lcqmc", ["test", "dev"], None, notes.append)
    assert len(notes) == 1


def test_json_lines_are_read_and_a_split_that_the_hub_lacks_is_none(hub: Hub) -> None:
    root = hub.folder / "mteb" / "stsbenchmark-sts"
    root.mkdir(parents=True)
    lines = [json.dumps({"split": "test", **row, "score": 2.5}, ensure_ascii=False) for row in ROWS]
    (root / "test.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    found = download_set("stsb-en", ["test", "dev"])
    assert [path.name for path in found["test"]] == ["test.jsonl.gz"]
    assert found["dev"] == cached_files("stsb-en", "dev") == []
    assert load_dataset("stsb-en", "test", None).labels.tolist() == [2.5, 2.5, 2.5]


def test_official_files_come_first_and_are_not_downloaded(hub: Hub, tmp_path: Path) -> None:
    parquet(hub.folder / "C-MTEB" / "LCQMC" / "test.parquet", ROWS)
    data = tmp_path / "data" / "lcqmc"
    data.mkdir(parents=True)
    (data / "test.txt").write_text("x\ty\t1\n", encoding="utf-8")
    fetch_dataset("lcqmc", ["test"], data.parent, lambda note: None)
    assert hub.asked == []
    assert load_dataset("lcqmc", "test", data.parent).first == ["x"]


def test_a_file_of_other_columns_is_named(hub: Hub) -> None:
    parquet(hub.folder / "C-MTEB" / "BQ" / "test.parquet", [{"s1": "a", "s2": "b", "score": 1}])
    download_set("bq", ["test"])
    with pytest.raises(CorpusError, match="no column 'sentence1', expected sentence1, sentence2 and score"):
        load_dataset("bq", "test", None)


def test_without_network_one_line_says_what_was_tried_and_where_else(hub: Hub) -> None:
    with pytest.raises(CorpusError) as caught:
        fetch_dataset("atec", ["test"], None, lambda note: None)
    message = str(caught.value)
    assert "\n" not in message
    assert "atec was not downloaded from https://huggingface.co/datasets/C-MTEB/ATEC" in message
    assert "ConnectionError: no route to C-MTEB/ATEC" in message
    assert "It can be had from the archive senteval_cn" in message
    assert cached_files("atec", "test") == []


def test_command_line_without_network_is_one_line(retr: Retr, tiny_model: Path) -> None:
    done = retr(
        "eval", "lcqmc", "--data", ".", "--model", tiny_model, "--download"
    )  # the tests run with HF_HUB_OFFLINE
    assert done.returncode == 1
    *notes, error = done.stderr.strip().splitlines()
    assert notes[0].startswith("downloading lcqmc (dev, test)")
    assert error.startswith("retr: lcqmc was not downloaded from")
    assert "--data DIR" in error
