"""`retr add`, `retr delete`, `retr reindex`, and conditions of `retr query`, in a process of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Retr, random_texts

from retrieval import Index
from retrieval.encoders.onnx import GRAPH, OnnxEncoder
from retrieval.transforms.apply import unit_vectors

TEXTS = random_texts(80)


@pytest.fixture(scope="module")
def pristine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """indexes/shop with ids q0 to q59, categories and years, all of them strings as CSV has them."""
    root = tmp_path_factory.mktemp("built")
    rows = [f"q{row},{text},{'退款' if row % 2 else '发票'},{2015 + row % 12}" for row, text in enumerate(TEXTS[:60])]
    (root / "shop.csv").write_text("\n".join(["key,text,category,year", *rows]), encoding="utf-8")
    command = [sys.executable, "-m", "retrieval.cli.main", "index", "shop.csv", "--model", str(tiny_model)]
    command += ["--id-column", "key", "--keep", "category,year", "--transform", "whiten-16"]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    return root / "indexes" / "shop"


@pytest.fixture
def shop(pristine: Path, tmp_path: Path) -> Path:
    (tmp_path / "more.csv").write_text(
        f"key,text,category,year\nq1,{TEXTS[70]},退款,2030\nn1,{TEXTS[71]},发票,2031\nq2,{TEXTS[2]},发票,2017\n",
        encoding="utf-8",
    )
    return shutil.copytree(pristine, tmp_path / "indexes" / "shop")


def found(retr: Retr, *arguments: str) -> list[str]:
    """The ids of the hits."""
    done = retr("query", *arguments, "--json", "-q")
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["id"] for line in done.stdout.splitlines()]


def test_add_reads_the_indexs_own_columns_and_says_what_it_did(shop: Path, retr: Retr) -> None:
    done = retr("add", "more.csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "indexes/shop: 1 added, 1 replaced, 1 unchanged, 2 encoded; 61 documents (1 deleted row), "
    )
    assert found(retr, TEXTS[71], "-k", "1") == ["n1"]
    assert found(retr, TEXTS[70], "-k", "1") == ["q1"]
    again = json.loads(retr("add", "more.csv", "--json").stdout)
    assert (again["added"], again["replaced"], again["unchanged"], again["encoded"]) == (0, 0, 3, 0)
    info = retr("info").stdout
    assert "rows         62 stored, 1 of them deleted, in 2 parts" in info
    assert "added        2 vectors since the fit: " in info
    assert "sources      shop.csv, more.csv" in info


def test_add_reads_standard_input(shop: Path, retr: Retr) -> None:
    line = json.dumps({"key": "j1", "text": TEXTS[72], "category": "退款", "year": "2020"}, ensure_ascii=False)
    done = retr("add", "-", "--format", "jsonl", "-i", shop, stdin=line)
    assert done.returncode == 0, done.stderr
    assert found(retr, TEXTS[72], "-k", "1") == ["j1"]


def test_an_addition_needs_neither_the_model_nor_torch(shop: Path, tmp_path: Path) -> None:
    code = (
        "import sys, retrieval; index = retrieval.Index.open(sys.argv[1]); index.add(sys.argv[2]);"
        "index.delete(['q3']); index.reindex(transform='rotate-8'); print(index.search(sys.argv[3], 1)[0][0].doc_id, "
        "[m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(shop), str(tmp_path / "more.csv"), TEXTS[71]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "n1 []"


def test_a_cold_query_of_a_changed_index_loads_only_what_it_needs(shop: Path, retr: Retr) -> None:
    assert retr("add", "more.csv").returncode == 0
    code = (
        "import sys; from retrieval.cli.main import _run\n"
        "sys.argv[1:] = ['query', '甲', '-k', '1', '-i', sys.argv[1]]\n"
        "_run(); print([name for name in 'torch transformers onnx rich pyarrow.parquet pyarrow.compute "
        "pyarrow.dataset pandas safetensors filelock'.split() if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(shop)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout


def test_delete_takes_ids_or_a_file_of_them(shop: Path, tmp_path: Path, retr: Retr) -> None:
    done = retr("delete", "q1", "q2")
    assert done.stdout.startswith("indexes/shop: 2 deleted; 58 documents (2 deleted rows), ")
    (tmp_path / "ids.txt").write_text("q3\nq4\n\nq2\n", encoding="utf-8")
    done = retr("delete", "--ids-file", "ids.txt", "q5")
    assert done.stdout.startswith("indexes/shop: 3 deleted, 1 deleted before; 55 documents (5 deleted rows), ")
    done = retr("delete", "--ids-file", "-", "--json", stdin="q6\n")
    assert json.loads(done.stdout)["removed"] == 1
    assert not {f"q{i}" for i in range(1, 7)} & set(found(retr, TEXTS[1], "-k", "100"))
    many = retr("delete", *(f"q{i}" for i in range(7, 30)))
    assert "29 of 60 rows are deleted ones: retr reindex takes them out" in many.stderr
    done = retr("reindex")
    assert done.stdout.startswith("indexes/shop: 31 documents, 16 dimensions (whiten-16), index flat, ")
    content = json.loads(retr("info", "--json").stdout)
    assert (content["documents"]["deleted"], content["index"]["vectors"]) == (0, 31)
    assert TEXTS[7].encode() not in (shop / "documents.arrow").read_bytes()


def test_conditions_and_equal_texts(shop: Path, tmp_path: Path, retr: Retr) -> None:
    ids = found(retr, TEXTS[0], "-k", "5", "--where", "category = '退款' and year >= 2024")
    expected = {f"q{i}" for i in range(60) if i % 2 and 2015 + i % 12 >= 2024}
    assert len(ids) == 5
    assert set(found(retr, TEXTS[0], "-k", "60", "--where", "category = '退款' and year >= 2024")) == expected
    assert found(retr, TEXTS[0], "--where", "year > 3000") == []
    (tmp_path / "same.csv").write_text(f"key,text,category,year\ns1,{TEXTS[0]},退款,1\n", encoding="utf-8")
    assert "0 encoded" in retr("add", "same.csv").stdout
    assert found(retr, TEXTS[0], "-k", "2") == ["q0", "s1"]
    one, other = found(retr, TEXTS[0], "-k", "2", "--dedup")
    assert (one, other != "s1") == ("q0", True)


@pytest.mark.parametrize("transform", ["rotate-8", "none", "whiten-12:beta=0.5"])
def test_a_reindexed_graph_gives_the_vectors_that_the_index_holds(
    shop: Path, tmp_path: Path, retr: Retr, transform: str
) -> None:
    nodes = [len(onnx.load(shop / "encoder" / GRAPH, load_external_data=False).graph.node)]
    before = found(retr, TEXTS[0])
    done = retr("reindex", "--transform", transform, "-o", "other")
    assert done.returncode == 0, done.stderr
    index = Index.open(tmp_path / "other")
    graph, m = index.encoder, index.manifest.index["dimension"]
    assert isinstance(graph, OnnxEncoder)
    vectors = unit_vectors(graph.encode(TEXTS), index.transform)
    np.testing.assert_allclose(graph.unit_vectors(TEXTS, m), vectors, atol=1e-3)
    assert [hits[0].text for hits in index.search(TEXTS[:60], 1)] == TEXTS[:60]
    assert found(retr, TEXTS[0], "-i", "indexes/shop") == before
    back = retr("reindex", "-i", "other", "--transform", "whiten-16")
    assert back.returncode == 0, back.stderr
    nodes.append(len(onnx.load(tmp_path / "other" / "encoder" / GRAPH, load_external_data=False).graph.node))
    assert nodes[0] == nodes[1]
    assert found(retr, TEXTS[0], "-i", "other") == before


def test_a_graph_that_is_loaded_does_not_outlive_its_transform(shop: Path, tmp_path: Path) -> None:
    index = Index.open(shop)
    before = index.search(TEXTS[:5], 3)
    other = index.reindex(tmp_path / "other", transform="rotate-8")
    assert [hits[0].text for hits in other.search(TEXTS[:5], 3)] == TEXTS[:5]
    assert index.search(TEXTS[:5], 3) == before
    index.reindex(transform="rotate-8")
    assert index.search(TEXTS[:5], 3) == other.search(TEXTS[:5], 3) != before


def test_a_flow_takes_the_end_of_the_graph_away(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    texts = random_texts(150, seed=3)
    (tmp_path / "c.txt").write_text("\n".join(texts), encoding="utf-8")
    assert retr("index", "c.txt", "--model", tiny_model, "--whiten", "8").returncode == 0
    assert retr("reindex", "--transform", "flow").returncode == 0
    outputs = onnx.load(tmp_path / "indexes" / "c" / "encoder" / GRAPH, load_external_data=False).graph.output
    assert [output.name for output in outputs] == ["pooled"]
    assert found(retr, texts[9], "-k", "1") == ["9"]


def test_bad_input_is_one_clear_line_and_changes_nothing(shop: Path, tmp_path: Path, retr: Retr) -> None:
    (tmp_path / "bare.txt").write_text("甲\n", encoding="utf-8")
    before = (shop / "manifest.json").read_bytes()
    cases = [
        (("delete", "q1", "nope"), 2, "shop never had a document of id 'nope' (1 of 2 ids); nothing was deleted"),
        (("delete",), 2, "no id to delete"),
        (("delete", "--ids-file", "nowhere.txt"), 2, "ids 'nowhere.txt' cannot be read"),
        (("delete", "q1", "-i", "nowhere"), 1, "no index at 'nowhere'"),
        (("add", "bare.txt"), 2, "bare.txt has no column 'key'; its columns are text"),
        (("add", "nowhere.csv"), 1, "nowhere.csv"),
        (("reindex", "--whiten", "33"), 1, "m = 33"),
        (("reindex", "--whiten", "3", "--transform", "none"), 2, "exclude each other"),
        (("reindex", "--refit", "--whiten", "4"), 2, "leave out --refit"),
        (("reindex", "--index", "tree"), 2, "unknown index 'tree'"),
        (("reindex", "--index", "indexes/shop"), 2, "name it with -i"),
        (("reindex", "--index", "HNSW8", "--max-memory", "2KiB"), 2, "the index HNSW8 takes "),
        (("reindex", "--index", "flat", "--max-memory", "2KiB"), 2, "do not fit into 2 KiB as flat (3.75 KiB)"),
        (("reindex", "-o", "more.csv"), 1, "'more.csv' is a file"),
        (("query", "甲", "--where", "colour = 'red'"), 2, "no column 'colour' is kept; there are id (string)"),
        (("query", "甲", "--where", "category > 3"), 2, "does not suit the columns"),
        (("query", "甲", "--where", "category = 退款"), 2, "stands '退款', expected a value: 'text' in single quotes"),
        (("query", "甲", "--where", "__import__('os')"), 2, "no column '__import__'"),
    ]
    for arguments, code, message in cases:
        done = retr(*arguments)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr
        assert (shop / "manifest.json").read_bytes() == before
        assert [path.name for path in (tmp_path / "indexes").iterdir()] == ["shop"]


def test_a_factory_string_that_takes_too_much_replaces_nothing_and_keeps_what_is_encoded(
    shop: Path, tmp_path: Path, tiny_model: Path, retr: Retr
) -> None:
    before = (shop / "manifest.json").read_bytes()
    (tmp_path / "new.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    build = ("index", "new.txt", "-o", "indexes/shop", "--model", tiny_model, "--transform", "none", "--max-memory")
    done = retr(*build, "5KiB", "--index", "Flat")
    assert done.returncode == 2
    error = done.stderr.splitlines()[-1]
    assert error.startswith("retr: the index Flat takes 10 KiB for 80 vectors, more than the 5 KiB wanted: give more ")
    assert (shop / "manifest.json").read_bytes() == before
    again = retr(*build, "11KiB", "--index", "Flat")
    assert again.returncode == 0, again.stderr
    assert "resumed      1 of 1 shards" in retr("info").stdout


def test_a_second_writer_is_told_of_the_first(shop: Path, tmp_path: Path, retr: Retr) -> None:
    from filelock import FileLock

    (shop.parent / ".shop.building").mkdir()
    before = (shop / "manifest.json").read_bytes()
    with FileLock(shop.parent / ".shop.building" / "lock"):
        for arguments in (("add", "more.csv"), ("delete", "q1"), ("reindex",), ("reindex", "-o", "other")):
            done = retr(*arguments)
            assert done.returncode == 1
            assert "shop' (index, add, delete or reindex): give this one again when that one is done" in done.stderr
            assert (shop / "manifest.json").read_bytes() == before
    assert found(retr, TEXTS[1], "-k", "1") == ["q1"]
    assert retr("delete", "q1").returncode == 0
    assert not (shop.parent / ".shop.building").exists()
