"""`retr transform fit` and `apply`: vectors in .npy and Parquet files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Retr
from numpy.typing import NDArray

from retrieval import Index
from retrieval.errors import DimensionError, TransformError, UsageError
from retrieval.transforms.apply import load_transform, unit_vectors
from retrieval.transforms.files import open_vectors
from retrieval.transforms.flow import Flow
from retrieval.transforms.moments import Moments
from retrieval.transforms.whitening import Whitening

D, M = 12, 5


def vectors(rows: int = 400, dimension: int = D, seed: int = 0) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    return (random.normal(size=(rows, dimension)) @ random.normal(size=(dimension, dimension)) + 2).astype(np.float32)


@pytest.fixture
def transform() -> Whitening:
    moments = Moments(D)
    moments.update(vectors())
    return Whitening.fit(moments, M)[0]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 7 rows: what a file larger than memory goes through."""
    monkeypatch.setattr("retrieval.transforms.files._CHUNK_BYTES", 7 * 4 * D)


def write(path: Path, rows: NDArray[Any], kind: pa.DataType | None = None) -> Path:
    if path.suffix == ".npy":
        np.save(path, rows)
        return path
    kind = kind or pa.list_(pa.from_numpy_dtype(rows.dtype))
    table = {
        "id": pa.array(range(len(rows))),
        "vector": pa.array(list(rows), kind),
        "text": pa.array(["文本"] * len(rows)),
    }
    pq.write_table(pa.table(table).replace_schema_metadata({"made": "here"}), path)
    return path


def mapped(path: Path, output: Path, transform: Whitening) -> int:
    """Apply; how many rows were told."""
    told: list[int] = []
    open_vectors(path).write_mapped(output, transform.transform, transform.m, told.append)
    return sum(told)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
def test_npy_is_transformed_in_chunks_to_the_same_dtype(
    dtype: str, order: Any, tmp_path: Path, transform: Whitening
) -> None:
    rows = vectors(100).astype(dtype, order=order)
    assert mapped(write(tmp_path / "v.npy", rows), tmp_path / "o.npy", transform) == 100
    written = np.load(tmp_path / "o.npy")
    assert written.dtype == np.dtype(dtype).newbyteorder("=")
    expected = transform.transform(rows.astype(np.float32))
    np.testing.assert_allclose(written, expected, atol=2e-3 if dtype == "<f2" else 1e-5)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("value", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("form", ["list", "large", "fixed"])
def test_parquet_keeps_its_form_and_its_other_columns(
    value: pa.DataType, form: str, tmp_path: Path, transform: Whitening
) -> None:
    kinds = {"list": pa.list_, "large": pa.large_list, "fixed": lambda each: pa.list_(each, D)}
    rows = vectors(50).astype(value.to_pandas_dtype())
    write(tmp_path / "v.parquet", rows, kinds[form](value))
    assert mapped(tmp_path / "v.parquet", tmp_path / "o.parquet", transform) == 50
    before, after = pq.read_table(tmp_path / "v.parquet"), pq.read_table(tmp_path / "o.parquet")
    assert after.schema.names == ["id", "vector", "text"]
    assert after.schema.metadata == before.schema.metadata
    assert after.drop(["vector"]).equals(before.drop(["vector"]))
    kind = after.schema.field("vector").type
    assert kind.value_type == value
    assert kind == (
        pa.list_(before.schema.field("vector").type.value_field, M) if form == "fixed" else kinds[form](value)
    )
    expected = transform.transform(rows.astype(np.float32))
    found = np.array(after["vector"].to_pylist(), dtype=np.float64)
    np.testing.assert_allclose(found, expected, atol=2e-3 if value == pa.float16() else 1e-5)


def test_no_rows_in_no_rows_out(tmp_path: Path, transform: Whitening) -> None:
    for name in ("v.npy", "v.parquet"):
        path = write(tmp_path / name, vectors()[:0])
        assert mapped(path, tmp_path / f"o{path.suffix}", transform) == 0
    assert np.load(tmp_path / "o.npy").shape == (0, M)
    assert pq.read_table(tmp_path / "o.parquet").num_rows == 0


def corrupted(rows: NDArray[Any], row: int, value: float) -> NDArray[Any]:
    rows = rows.copy()
    rows[row, 3] = value
    return rows


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_named_by_row_and_leave_no_output(
    value: float, suffix: str, tmp_path: Path, transform: Whitening
) -> None:
    path = write(tmp_path / f"v{suffix}", corrupted(vectors(50), 33, value))
    with pytest.raises(TransformError, match=rf"v{suffix}: row 33 holds NaN or infinity"):
        mapped(path, tmp_path / f"o{suffix}", transform)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_what_float32_or_float16_cannot_hold_is_named(tmp_path: Path, transform: Whitening) -> None:
    path = write(tmp_path / "v.npy", corrupted(vectors(20).astype(np.float64), 7, 1e300))
    with pytest.raises(TransformError, match=r"row 7 holds NaN or infinity \(or what float32 cannot hold\)"):
        mapped(path, tmp_path / "o.npy", transform)
    tiny = Whitening(transform.mean, transform.components, transform.variances * np.float32(1e-12), 1.0)
    path = write(tmp_path / "h.npy", vectors(20).astype(np.float16))
    with pytest.raises(TransformError, match="row 0, transformed, is too large for float16: give --unit"):
        mapped(path, tmp_path / "o.npy", tiny)


class Unpickled:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("unpickled",)


def bad_files(folder: Path) -> Iterator[tuple[str, type[Exception], str]]:
    good = vectors(20)
    np.save(folder / "object.npy", np.array([Unpickled(), None], dtype=object), allow_pickle=True)
    yield "object.npy", TransformError, "Python objects, which are never unpickled"
    np.save(folder / "int.npy", np.ones((3, D), dtype=np.int64))
    yield "int.npy", TransformError, "holds int64: expected float16, float32 or float64"
    np.save(folder / "row.npy", good[0])
    yield "row.npy", DimensionError, r"shape \(12,\): expected \(n, d\)"
    (folder / "zero.npy").touch()
    yield "zero.npy", TransformError, "is empty: 0 bytes"
    (folder / "text.npy").write_text("hello", encoding="utf-8")
    yield "text.npy", TransformError, "is not a .npy file"
    np.save(folder / "cut.npy", good)
    (folder / "cut.npy").write_bytes((folder / "cut.npy").read_bytes()[:-20])
    yield "cut.npy", TransformError, "is damaged"
    (folder / "text.parquet").write_text("hello", encoding="utf-8")
    yield "text.parquet", TransformError, "is not a Parquet file"
    pq.write_table(pa.table({"text": ["a"]}), folder / "none.parquet")
    yield "none.parquet", UsageError, "holds no column of vectors: name one"
    pq.write_table(pa.table({"a": [[1.0]], "b": [[1.0]]}), folder / "two.parquet")
    yield "two.parquet", UsageError, "holds columns 'a', 'b' of vectors: name one with --vector-column"
    pq.write_table(pa.table({"a": pa.array([[], []], pa.list_(pa.float32()))}), folder / "thin.parquet")
    yield "thin.parquet", DimensionError, "row 0 of column 'a' has 0 dimensions"
    pq.write_table(pa.table({"a": pa.array([None, [1.0]], pa.list_(pa.float32()))}), folder / "null.parquet")
    yield "null.parquet", TransformError, r"row 0 holds no vector \(null\)"
    yield "missing.npy", UsageError, "no such file"
    (folder / "v.csv").write_text("1,2", encoding="utf-8")
    yield "v.csv", UsageError, "expected a .npy or .parquet file, got .csv"


def test_what_is_not_a_file_of_vectors_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, kind, message in bad_files(tmp_path):
        with pytest.raises(kind, match=message):
            open_vectors(tmp_path / name)
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("row", "value", "message"),
    [(23, [1.0] * 5, "row 23 has 5 dimensions, row 0 has 12"), (23, None, r"row 23 holds no vector \(null\)"),
     (23, [None] + [1.0] * 11, "row 23 holds a null")],
)  # fmt: skip
def test_a_row_that_is_no_vector_is_named(row: int, value: Any, message: str, tmp_path: Path) -> None:
    rows: list[Any] = vectors(30).tolist()
    rows[row] = value
    pq.write_table(pa.table({"v": pa.array(rows, pa.list_(pa.float32()))}), tmp_path / "v.parquet")
    with pytest.raises(TransformError, match=message):
        list(open_vectors(tmp_path / "v.parquet").chunks())


def test_fit_and_apply_from_the_command_line(tmp_path: Path, retr: Retr) -> None:
    rows = vectors()
    write(tmp_path / "a.npy", rows[:150])
    write(tmp_path / "b.parquet", rows[150:])
    done = retr(
        "transform",
        "fit",
        "a.npy",
        "b.parquet",
        "-o",
        "t.safetensors",
        "--transform",
        "soft-5",
        "--explain",
        "--vector-column",
        "vector",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("t.safetensors: soft-5, 12 -> 5 dimensions, fitted on 400 vectors, ")
    assert "spectrum: 12 directions, rank 12" in done.stderr
    moments = Moments(D)
    moments.update(rows)
    expected, _ = Whitening.fit(moments, 5, gamma=0.5)
    np.testing.assert_allclose(
        load_transform(tmp_path / "t.safetensors").transform(rows), expected.transform(rows), atol=1e-5
    )
    applied = retr("transform", "apply", "t.safetensors", "a.npy", "-o", "o.npy", "--unit", "--json")
    assert json.loads(applied.stdout) | {"seconds": 0} == {
        "path": "o.npy", "rows": 150, "dimension": 12, "m": 5, "unit": True, "seconds": 0,
    }  # fmt: skip
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), unit_vectors(rows[:150], expected), atol=1e-5)


def test_fit_takes_auto_m_and_flows(tmp_path: Path, retr: Retr) -> None:
    write(tmp_path / "v.npy", vectors(600))
    done = retr("transform", "fit", "v.npy", "-o", "t.safetensors", "--transform", "whiten-auto", "--json")
    content = json.loads(done.stdout)
    assert content["m"] == content["chosen"]["m"] == load_transform(tmp_path / "t.safetensors").m
    assert "<- the smallest of at least 0.8" in done.stderr
    flow = Flow.fit(vectors(), epochs=2, steps=2, width=8)
    flow.save(tmp_path / "f.safetensors")
    applied = retr("transform", "apply", "f.safetensors", "v.npy", "-o", "o.npy")
    assert applied.returncode == 0, applied.stderr
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), flow.transform(vectors(600)), atol=1e-5)


def test_rows_of_zeros_are_left_out_of_the_fit_and_stay_zeros_with_unit(tmp_path: Path, retr: Retr) -> None:
    rows = vectors(100)
    write(tmp_path / "v.npy", np.insert(rows, [0, 50], 0, axis=0))
    write(tmp_path / "plain.npy", rows)
    done = retr("transform", "fit", "v.npy", "-o", "t.safetensors", "--transform", "whiten-5")
    assert "rows of zeros, left out: 2" in done.stderr
    retr("transform", "fit", "plain.npy", "-o", "plain.safetensors", "--transform", "whiten-5")
    assert (tmp_path / "t.safetensors").read_bytes() == (tmp_path / "plain.safetensors").read_bytes()
    retr("transform", "apply", "t.safetensors", "v.npy", "-o", "o.npy", "--unit")
    lengths = np.linalg.norm(np.load(tmp_path / "o.npy"), axis=1)
    np.testing.assert_allclose(lengths, np.insert(np.ones(100), [0, 50], 0), atol=1e-6)


def test_an_indexs_own_transform_gives_the_vectors_it_holds(
    corpus: Path, tiny_model: Path, tmp_path: Path, retr: Retr
) -> None:
    index = Index.build(corpus, tmp_path / "i", model=tiny_model, transform="whiten-8", backend="torch")
    embeddings = index.encoder.encode(corpus.read_text(encoding="utf-8").splitlines(), kind="document")
    write(tmp_path / "v.npy", embeddings)
    done = retr("transform", "apply", "i/transform.safetensors", "v.npy", "-o", "o.npy", "--unit")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), unit_vectors(embeddings, index.transform), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("apply t.safetensors v.npy -o v.npy", 2, "output 'v.npy' is what is read: give another name"),
        ("apply t.safetensors v.npy -o link.npy", 2, "output 'link.npy' is what is read"),
        ("apply t.safetensors v.npy -o o.parquet", 2, "expected a name that ends in .npy"),
        ("apply t.safetensors v.npy -o no/o.npy", 2, "there is no folder 'no'"),
        ("apply t.safetensors w.npy -o o.npy", 1, "w.npy holds vectors of 3 dimensions, and t.safetensors was .*12"),
        ("apply v.npy v.npy -o o.npy", 1, "v.npy is not a transform"),
        ("apply . v.npy -o o.npy", 2, "transform '.' is a folder: name the transform.safetensors in it"),
        ("apply t.safetensors . -o o.npy", 2, "vectors '.' is a folder; expected a .npy or .parquet file"),
        ("apply none v.npy -o o.npy", 2, "transform 'none': no such file"),
        ("apply t.safetensors v.npy -o o.npy --vector-column a", 2, "--vector-column a is for Parquet"),
        ("fit v.npy -o t.safetensors --transform auto", 2, "--transform auto asks which encoder made the vectors"),
        ("fit v.npy -o t.safetensors --transform none", 2, "--transform none fits nothing"),
        ("fit v.npy -o t.safetensors --transform flow --explain", 2, "a flow keeps all: leave it out"),
        ("fit v.npy -o t.npy --transform whiten-3", 2, "expected a name that ends in .safetensors"),
        ("fit v.npy w.npy -o o.safetensors --transform whiten-3", 1, "w.npy holds vectors of 3 dimensions, v.npy"),
        ("fit empty.npy -o o.safetensors --transform whiten-3", 1, "empty.npy holds no vector"),
        ("fit zeros.npy -o o.safetensors --transform whiten-3", 1, "all 9 vectors are zero"),
        ("fit nan.npy -o o.safetensors --transform whiten-3", 1, "nan.npy: row 17 holds NaN or infinity"),
        ("fit v.npy nan.npy -o o.safetensors --transform flow", 1, "nan.npy: row 17 holds NaN or infinity"),
        ("fit few.npy -o o.safetensors --transform whiten-5", 1, "cannot keep m = 5 dimensions: the 5 .*rank 4;"),
        ("fit repeated.npy -o o.safetensors --transform whiten-5", 1, "the 90 vectors of 12 dimensions have rank 2;"),
        ("fit few.npy -o o.safetensors --transform whiten-auto", 1, "wants at least 200 distinct vectors"),
        ("fit few.npy -o o.safetensors --transform flow", 1, "a flow wants at least 100 distinct vectors, got 5"),
    ],
)  # fmt: skip
def test_bad_calls_are_one_line_and_leave_nothing(
    arguments: str, code: int, message: str, tmp_path: Path, transform: Whitening, retr: Retr
) -> None:
    write(tmp_path / "v.npy", vectors(40))
    (tmp_path / "link.npy").symlink_to("v.npy")
    write(tmp_path / "w.npy", vectors(40, 3))
    write(tmp_path / "empty.npy", vectors(4)[:0])
    write(tmp_path / "zeros.npy", 0 * vectors(9))
    write(tmp_path / "nan.npy", corrupted(vectors(40), 17, np.nan))
    write(tmp_path / "few.npy", vectors(5))
    write(tmp_path / "repeated.npy", np.tile(vectors(3), (30, 1)))
    transform.save(tmp_path / "t.safetensors")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = retr("transform", *arguments.split())
    assert done.returncode == code, done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("retr: ")
    assert re.search(re.escape(message).replace(r"\.\*", ".*"), line), line
    assert "Traceback" not in done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
