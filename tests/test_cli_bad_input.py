"""Bad input on the command line: one clear line, exit 1 or 2, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import Retr, make_tiny_model, random_texts


def failed(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """One or two lines on stderr, nothing on stdout, this exit code, these words."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert 1 <= len(lines) <= 2, done.stderr
    assert lines[-1].startswith("retr: ")
    for part in parts:
        assert part in done.stderr


@pytest.fixture
def index(tmp_path: Path, tiny_model: Path, retr: Retr) -> Path:
    """A whole index of twenty documents."""
    (tmp_path / "good.txt").write_text("\n".join(random_texts(20)), encoding="utf-8")
    done = retr("index", "good.txt", "--model", tiny_model, "--transform", "whiten-4", "--quiet")
    assert done.returncode == 0, done.stderr
    return tmp_path / "indexes" / "good"


CORPORA: dict[str, tuple[str, bytes, list[str], int, list[str]]] = {
    "empty file": ("c.txt", b"", [], 1, ["c.txt holds no document: it is empty"]),
    "only blank lines": ("c.txt", "\n \n\u3000\n".encode(), [], 1, ["all 3 texts are blank"]),
    "broken quote": ("c.csv", b'id,text\n1,good\n2,"bad"x"\n', [], 1, ["c.csv line 3", "CSV row"]),
    "quote never closed": (
        "c.csv",
        b'id,text\n1,good\n2,"bad\n3,x\n',
        [],
        1,
        ["c.csv line 3", "every quote is closed"],
    ),
    "row with a column more": ("c.csv", b"id,text\n1,a,b\n", [], 1, ["c.csv line 2: 3 columns, expected 2"]),
    "tsv row with a column less": ("c.tsv", b"id\ttext\n1\n", [], 1, ["c.tsv line 2: 1 columns, expected 2"]),
    "not UTF-8": (
        "c.txt",
        "好\n编码\n".encode("gb18030"),
        [],
        1,
        ["c.txt line 1: byte 0 (0xba)", "--encoding gb18030"],
    ),
    "not JSON": ("c.jsonl", b'{"text": "a"}\n{"text": oops}\n', [], 1, ["c.jsonl line 2 is not JSON", "oops"]),
    "JSON but no object": (
        "c.jsonl",
        b'{"text": "a"}\n[1]\n',
        [],
        1,
        ["c.jsonl line 2: expected a JSON object, got array"],
    ),
    "number for a text": ("c.jsonl", b'{"text": "a"}\n{"text": 42}\n', [], 1, ["line 2: 'text' is the integer 42"]),
    "half a surrogate pair": ("c.jsonl", b'{"text": "a\\ud800"}\n', [], 1, ["c.jsonl line 1", "surrogate"]),
    "repeated id": (
        "c.csv",
        b"id,text\n7,a\n8,b\n7,c\n",
        ["--id-column", "id"],
        1,
        ["id '7' is repeated", "'a'", "'c'"],
    ),
    "null id": (
        "c.jsonl",
        b'{"text": "a", "id": null}\n',
        ["--id-column", "id"],
        1,
        ["the id of the text 'a' is null"],
    ),
    "boolean id": ("c.jsonl", b'{"text": "a", "id": true}\n', ["--id-column", "id"], 1, ["the id 'id' is true"]),
    "no such text column": (
        "c.csv",
        b"id,text\n1,a\n",
        ["--text-column", "body"],
        2,
        ["no column 'body'", "id (string)"],
    ),
    "no such kept column": ("c.csv", b"id,text\n1,a\n", ["--keep", "x"], 2, ["no column 'x'"]),
    "text column not told": ("c.csv", b"a,b\n1,2\n", [], 2, ["--text-column; the columns are a (string), b (string)"]),
    "name without a format": ("c.dat", b"a\n", [], 2, ["c.dat: the name does not tell the format", "--format"]),
    "on-empty error": ("c.txt", b"a\n\nb\n", ["--on-empty", "error"], 1, ["the text of row 1 (from 0) is empty"]),
    "not Parquet": ("c.parquet", b"version https://git-lfs.github.com/spec/v1\n", [], 1, ["cannot be read as Parquet"]),
    "cut gzip": ("c.txt.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b", [], 1, ["damaged or cut short"]),
}


@pytest.mark.parametrize("case", CORPORA)
def test_bad_corpus(case: str, tmp_path: Path, retr: Retr) -> None:
    name, content, options, code, parts = CORPORA[case]
    (tmp_path / name).write_bytes(content)
    failed(retr("index", name, *options), code, *parts)
    assert not list(tmp_path.glob("indexes/*"))
    assert not list(tmp_path.glob("indexes/.*"))


def test_parquet_without_the_column_lists_the_columns(tmp_path: Path, retr: Retr) -> None:
    pq.write_table(pa.table({"a": ["x"], "n": [1]}), tmp_path / "c.parquet")
    failed(retr("index", "c.parquet", "--text-column", "text"), 2, "no column 'text'", "a (string), n (int64)")
    failed(retr("index", "c.parquet", "--text-column", "n"), 2, "column 'n' holds int64, expected text")


def test_no_such_file(retr: Retr) -> None:
    failed(retr("index", "nowhere.parquet"), 1, "no such file or folder: 'nowhere.parquet'")


def test_glob_that_matches_nothing(retr: Retr) -> None:
    failed(retr("index", "nowhere-*.parquet"), 1, "no file matches 'nowhere-*.parquet'")


def test_folder_with_no_corpus(tmp_path: Path, retr: Retr) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.md").write_text("x")
    failed(retr("index", "folder"), 1, "folder 'folder' holds no corpus file", ".parquet")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--transform", "pca-3"], ["unknown transform 'pca-3'", "whiten-M"]),
        (["--whiten", "0"], ["unknown transform 'whiten-0'"]),
        (["--whiten", "3", "--transform", "none"], ["exclude each other"]),
        (["--pool", "maximum"], ["unknown pooling 'maximum'", "first-last-avg"]),
        (["--encoding", "klingon"], ["unknown encoding 'klingon'"]),
        (["--format", "xml"], ["unknown format 'xml'", "jsonl"]),
        (["--on-empty", "ignore"], ["'ignore', expected skip or error"]),
        (["--index", "tree"], ["unknown index 'tree'", "flat"]),
        (["--max-length", "x"], ["--max-length", "see: retr index --help"]),
        (["--no-such-option"], ["--no-such-option", "see: retr index --help"]),
    ],
)
def test_bad_option_is_a_usage_error(options: list[str], parts: list[str], tmp_path: Path, retr: Retr) -> None:
    (tmp_path / "c.txt").write_text("a\nb\n")
    failed(retr("index", "c.txt", *options), 2, *parts)


def test_max_length_beyond_the_model_and_unknown_device(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    (tmp_path / "c.txt").write_text("a\nb\n")
    failed(retr("index", "c.txt", "--model", tiny_model, "--max-length", "65"), 2, "max length 65", "64 tokens")
    failed(retr("index", "c.txt", "--model", tiny_model, "--device", "abacus"), 2, "unknown device 'abacus'")


def test_model_that_is_not_there(tmp_path: Path, retr: Retr) -> None:
    (tmp_path / "c.txt").write_text("a\nb\n")
    failed(retr("index", "c.txt", "--model", "./nowhere"), 1, "no model folder at './nowhere'")
    (tmp_path / "empty").mkdir()
    failed(retr("index", "c.txt", "--model", "./empty"), 1, "has no config.json")
    offline = retr("index", "c.txt", "--model", "some/model")
    failed(
        offline,
        1,
        "no model 'some/model'",
        "no such folder, it is not in the hub's cache",
        "offline mode is on",
        "--model FOLDER",
    )


class _Payload:
    """What makes the file `ran` where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


def _pickle_code(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"x": _Payload()}, folder / "pytorch_model.bin")


MODELS: dict[str, tuple[Callable[[Path], object], list[str], int, list[str]]] = {
    "no tokenizer": (
        lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
        [],
        1,
        ["has no tokenizer", "expected tokenizer.json"],
    ),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        [],
        1,
        ["has no weights", "expected model.safetensors"],
    ),
    "config that is no JSON": (
        lambda folder: (folder / "config.json").write_text("{"),
        [],
        1,
        ["config.json cannot be read"],
    ),
    "weights cut short": (
        lambda folder: _cut(folder / "model.safetensors"),
        [],
        1,
        ["the weights in", "damaged or cut short", "download or copy them again"],
    ),
    "pickled code": (_pickle_code, [], 1, ["hold more than tensors", "convert them to model.safetensors"]),
    "no pooler": (
        lambda folder: shutil.copytree(make_tiny_model(folder / "d", "distilbert"), folder, dirs_exist_ok=True),
        ["--pool", "pooler"],
        1,
        ["has no pooler", "choose another pooling"],
    ),
    "a layer too many": (lambda folder: None, ["--pool", "layers-4"], 2, ["names layer 4", "layers 0 to 3"]),
}


@pytest.mark.parametrize("case", MODELS)
def test_bad_model_folder(case: str, tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    damage, options, code, parts = MODELS[case]
    damage(shutil.copytree(tiny_model, tmp_path / "model"))
    (tmp_path / "c.txt").write_text("a\nb\n")
    failed(retr("index", "c.txt", "--model", "model", *options), code, *parts)
    assert not (tmp_path / "ran").exists()


def test_one_document_and_equal_documents_are_indexed(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    for name, content in (("one", "甲\n"), ("equal", "甲\n" * 30)):
        (tmp_path / f"{name}.txt").write_text(content, encoding="utf-8")
        assert retr("index", f"{name}.txt", "--model", tiny_model).returncode == 0
        done = retr("query", "甲", "-k", "3", "--json", "-i", f"indexes/{name}")
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert [hit["id"] for hit in found] == (["0"] if name == "one" else ["0", "1", "2"])
        assert all(hit["score"] > 0.999 for hit in found)
        failed(retr("index", f"{name}.txt", "--model", tiny_model, "--whiten", "1"), 1, "m = 1", "rank 0")


def test_m_larger_than_n_names_both_and_keeps_the_old_index(index: Path, tiny_model: Path, retr: Retr) -> None:
    failed(retr("index", "good.txt", "--model", tiny_model, "--whiten", "20"), 1, "m = 20", "20 documents", "rank 19")
    assert retr("query", random_texts(1)[0]).returncode == 0


def test_a_text_of_100_000_characters_is_cut_counted_and_told_once(
    tmp_path: Path, tiny_model: Path, retr: Retr
) -> None:
    (tmp_path / "c.txt").write_text("长" * 100_000 + "\n短\n", encoding="utf-8")
    done = retr("index", "c.txt", "--model", tiny_model)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("texts longer than 64 tokens: 1;") == 1
    assert "truncated    1 distinct texts at 64 tokens" in retr("info").stdout


def test_odd_characters_are_indexed_and_come_back_as_they_were(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    odd = ["😀👨\u200d👩\u200d👧", "控制\x00\x01字\x7f", "\ufeff开头", "\u3000全角 空格\u3000", "a\u2028b"]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in odd), encoding="utf-8")
    assert retr("index", "c.jsonl", "--model", tiny_model).returncode == 0
    done = retr("query", "甲", "--json")
    found = {int(hit["id"]): hit["text"] for hit in map(json.loads, done.stdout.splitlines())}
    assert [found[row] for row in range(len(odd))] == odd


def test_lone_null_and_nan_texts_are_skipped_and_counted(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    (tmp_path / "c.jsonl").write_text('{"text": "甲"}\n{"text": null}\n{"text": NaN}\n', encoding="utf-8")
    done = retr("index", "c.jsonl", "--model", tiny_model)
    assert done.returncode == 0
    assert "blank texts skipped: 2, at rows 1, 2 (from 0)" in done.stderr
    assert "skipped      2 blank texts, first at rows 1, 2 (from 0)" in retr("info").stdout


@pytest.mark.parametrize("query", ["", " ", "\u3000", "\ufeff"])
def test_blank_query(query: str, index: Path, retr: Retr) -> None:
    failed(retr("query", query), 2, "is blank: expected a text")


def test_query_arguments_that_make_no_sense(index: Path, retr: Retr) -> None:
    failed(retr("query", "甲", "-k", "0"), 2, "-k is 0, expected at least 1")
    failed(retr("query", "甲", "--min-score", "7"), 2, "--min-score is 7.0")
    failed(retr("query"), 2, "see: retr query --help")
    failed(retr("query", "-", "-i", index, stdin="\n \n"), 2, "standard input holds no text")
    failed(retr("query", "-", "-i", index, stdin="编码".encode("gb18030")), 1, "standard input line 1: byte 0")


def test_query_where_no_index_is(tmp_path: Path, retr: Retr) -> None:
    failed(retr("query", "甲"), 1, "no index under ./indexes", "retr index CORPUS")
    failed(retr("query", "甲", "-i", "nowhere"), 1, "no index at 'nowhere'")
    (tmp_path / "folder").mkdir()
    failed(retr("query", "甲", "-i", "folder"), 1, "'folder' is not an index: it has no manifest.json")


def test_output_that_is_a_file_or_another_folder(index: Path, tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    failed(retr("index", "good.txt", "--model", tiny_model, "-o", "good.txt"), 1, "'good.txt' is a file")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    failed(retr("index", "good.txt", "--model", tiny_model, "-o", "mine"), 1, "will not be replaced", "delete this one")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json is damaged"),
        (lambda folder: (folder / "manifest.json").unlink(), "is not an index: it has no manifest.json"),
        (lambda folder: _edit(folder, format_version=3), "format version 3, and this retr reads versions 1 to 2"),
        (lambda folder: _cut(folder / "vectors.faiss"), "vectors.faiss has"),
        (lambda folder: _cut(folder / "documents.arrow"), "documents.arrow has"),
        (lambda folder: _cut(folder / "transform.safetensors"), "transform.safetensors has"),
        (lambda folder: (folder / "vectors.faiss").unlink(), "vectors.faiss is missing"),
        (lambda folder: _scribble(folder / "vectors.faiss"), "vectors.faiss is not the file that was written"),
        (
            lambda folder: (folder / "vectors.faiss").write_text(
                "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
            ),
            "vectors.faiss is a git-lfs pointer, not the file itself: run git lfs pull",
        ),
    ],
)
def test_damaged_index_is_named(damage: Any, message: str, index: Path, retr: Retr) -> None:
    damage(index)
    failed(retr("query", "甲", "-i", index), 1, message)


@pytest.mark.parametrize("name", ["vectors.faiss", "transform.safetensors", "documents.arrow"])
def test_file_replaced_by_another_indexs_of_the_same_size(
    name: str, index: Path, tmp_path: Path, tiny_model: Path, retr: Retr
) -> None:
    (tmp_path / "other.txt").write_text("\n".join(text[::-1] for text in random_texts(20)), encoding="utf-8")
    assert retr("index", "other.txt", "--model", tiny_model, "--transform", "whiten-4").returncode == 0
    other = tmp_path / "indexes" / "other" / name
    assert other.stat().st_size == (index / name).stat().st_size
    shutil.copy(other, index / name)
    failed(retr("query", "甲", "-i", index), 1, f"{name} is not the file that was written")


def test_index_built_by_another_encoder(index: Path, tmp_path: Path, retr: Retr, tiny_model: Path) -> None:
    copy = shutil.copytree(tiny_model, tmp_path / "model")
    assert retr("index", "good.txt", "--model", "model", "-o", "indexes/copy", "--backend", "torch").returncode == 0
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 1e-3}))
    failed(retr("query", "甲", "-i", "indexes/copy"), 1, "was built by another encoder", "fingerprint")
    shutil.rmtree(copy)
    failed(retr("query", "甲", "-i", "indexes/copy"), 1, "no model folder at")


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("this user cannot mount a small file system to fill")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_full_disk_keeps_the_old_index(tmpfs: Path, index: Path, tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    standing = tmpfs / "i"
    assert retr("index", "good.txt", "--model", tiny_model, "-o", standing).returncode == 0
    (tmp_path / "many.txt").write_text("\n".join(random_texts(9000)), encoding="utf-8")
    done = retr("index", "many.txt", "--model", tiny_model, "-o", standing, "--quiet")
    failed(done, 1, "the disk is full")
    assert retr("query", random_texts(1)[0], "-i", standing).returncode == 0


def test_read_only_place(tmpfs: Path, index: Path, tiny_model: Path, retr: Retr) -> None:
    subprocess.run(["mount", "-o", "remount,ro", tmpfs], check=True)
    failed(retr("index", "good.txt", "--model", tiny_model, "-o", tmpfs / "i"), 1, "Read-only file system", "-o")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_place_without_permission(index: Path, tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    failed(retr("index", "good.txt", "--model", tiny_model, "-o", "closed/i"), 1, "no permission", "-o")


def test_debug_prints_the_traceback(retr: Retr) -> None:
    done = retr("index", "nowhere.txt", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def _edit(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (folder / "manifest.json").write_text(json.dumps({**content, **changes}), encoding="utf-8")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _scribble(path: Path) -> None:
    path.write_bytes(b"\x07" * path.stat().st_size)
