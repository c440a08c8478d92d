"""retr bench: what is held out, both recalls, settings, times, results that go on, labels, HDF5."""

from __future__ import annotations

import itertools
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_texts

import retrieval
from retrieval.errors import BuildError, CorpusError, RetrError, TransformError, UsageError
from retrieval.evaluation.bench import report
from retrieval.evaluation.bench.export import export_cut
from retrieval.evaluation.bench.grid import Cut, parse_cuts, parse_kinds, parse_recalls
from retrieval.evaluation.bench.hdf5 import hdf5_source
from retrieval.evaluation.bench.labels import Judgements, PairLabels
from retrieval.evaluation.bench.material import Material, gather
from retrieval.evaluation.bench.recall import Truth
from retrieval.evaluation.bench.results import Results, check_folder, locked
from retrieval.evaluation.bench.run import KILLED, Bench, Plan
from retrieval.evaluation.bench.sources import Source, by_rows, index_source, npy_source
from retrieval.evaluation.bench.timing import allocated_bytes, measure_times
from retrieval.evaluation.pairs import read_pairs
from retrieval.evaluation.retrieval import Model, evaluate_retrieval, fitting_of
from retrieval.evaluation.task_sets import known_item_task
from retrieval.index.documents import Documents
from retrieval.index.vectors import VectorIndex
from retrieval.pipeline.delete import delete_documents
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.whitening import Whitening
from retrieval.types import NoProgress

Floats = np.ndarray[Any, np.dtype[np.float32]]
QUIET = NoProgress()
D = 16


def clustered(rows: int, seed: int = 0) -> Floats:
    """Vectors with neighbours and a falling spectrum; the 30 clusters are the same for every seed."""
    centres = np.random.default_rng(99).normal(size=(30, D))
    random = np.random.default_rng(seed)
    found = centres[random.integers(0, 30, rows)] + 0.6 * random.normal(size=(rows, D))
    return (found * np.geomspace(1, 0.2, D) + 0.5).astype(np.float32)


def source(vectors: Floats, queries: Floats | None = None) -> Source:
    return Source("the test's vectors", vectors.shape[1], len(vectors), *by_rows(vectors), queries)


def material(vectors: Floats, queries: Floats | None = None, **options: Any) -> Material:
    return gather(source(vectors, queries), progress=QUIET, **options)


def documents(found: Material) -> Floats:
    return np.concatenate(list(found.raw_chunks()))


def plan(cuts: list[Cut], kinds: list[str], **options: Any) -> Plan:
    return Plan(cuts, kinds, **{"k": 10, "recalls": [0.9], "rounds": 2, **options})


ABOUT = {
    "machine": {"cores": 2, "cpu": "none", "date": "2026-01-01", "versions": {"retr": "0"}},
    "measured": {
        "source": "the test's vectors",
        "documents": 1,
        "dimension": D,
        "queries": 1,
        "queries_from": "documents held out",
        "notes": [],
    },
}
INPUTS = {"vectors_sha256": "", "k": 10, "rounds": 2, "threads": 2, "seed": 0}


def bench(folder: Path, found: Material, *arguments: Any, **options: Any) -> dict[str, Any]:
    """Run a plan; the content of results.json."""
    folder.mkdir(exist_ok=True)
    results = Results.open(folder, INPUTS, ABOUT, fresh=False)
    Bench(found, plan(*arguments, **options), results, QUIET).run()
    content: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return content


# Exact neighbours and recall.


def test_recall_counts_every_row_that_is_as_near_as_the_kth() -> None:
    # k = 2; rows 1, 2 and 3 share the second best score: any one of them is right beside row 0.
    truth = Truth(np.array([[0.9, 0.5, 0.5, 0.5, 0.1]], np.float32), np.array([[0, 1, 2, 3, 4]]), 2)
    found = {(0, 3): 1.0, (0, 1): 1.0, (4, 2): 0.5, (4, 5): 0.0, (-1, -1): 0.0}
    for rows, share in found.items():
        assert truth.recall(np.array([rows])).tolist() == [share]


# What is held out.


def test_held_out_rows_are_neither_documents_nor_seen_by_the_moments() -> None:
    vectors = clustered(500)
    found = material(vectors, hold_out=30)
    assert len(found.queries) == 30
    np.testing.assert_array_equal(found.queries, vectors[found.asked])
    assert sorted([*found.kept, *found.asked]) == list(range(500))
    np.testing.assert_array_equal(documents(found), vectors[found.kept])
    assert found.moments.rows == 470
    np.testing.assert_allclose(found.moments.mean(), vectors[found.kept].mean(axis=0, dtype=np.float64), atol=1e-6)
    assert material(vectors, hold_out=30, seed=1).asked.tolist() != found.asked.tolist()
    assert len(material(vectors, hold_out=400).queries) == 50  # a tenth at most


def test_documents_that_equal_a_held_out_query_are_held_out_too() -> None:
    vectors = np.tile(clustered(100), (3, 1))
    found = material(vectors, hold_out=5)
    queries = {query.tobytes() for query in found.queries}
    assert not queries & {row.tobytes() for row in documents(found)}
    twins = 300 - len(found) - 5
    assert twins > 0
    assert found.notes == (f"{twins} documents equal a held-out query, and are held out too",)


def test_queries_given_that_are_documents_or_have_no_vector_are_left_out() -> None:
    vectors, queries = clustered(200), clustered(6, seed=1)
    queries[2], queries[4] = vectors[17], 0
    found = material(vectors, queries)
    assert found.asked.tolist() == [0, 1, 3, 5]
    assert len(found) == 200
    assert [note.split(" ")[0] for note in found.notes] == ["1", "1"]


def test_a_sample_is_of_the_seed_and_rows_without_a_vector_are_no_queries() -> None:
    vectors = clustered(400)
    vectors[::2] = 0
    found = material(vectors, sample=200, hold_out=20)
    assert len(found) + len(found.asked) <= 200
    assert (found.asked % 2 == 1).all()
    assert found.numbered
    assert found.moments.rows == int((found.kept % 2 == 1).sum())


def test_what_is_no_vector_is_named() -> None:
    vectors = clustered(9000)
    vectors[8500, 3] = np.nan  # in the second chunk
    with pytest.raises(UsageError, match="row 8500 holds NaN"):
        material(vectors)
    queries = clustered(3)
    queries[1, 0] = np.inf
    with pytest.raises(UsageError, match="query vector 1 holds NaN or infinity"):
        material(clustered(50), queries)
    with pytest.raises(UsageError, match="9 rows are too few"):
        material(clustered(9))
    with pytest.raises(UsageError, match="no query is left"):
        material(clustered(50), np.zeros((2, D), np.float32))


# The grid.


def test_cut_keeps_the_first_raw_dimensions() -> None:
    vectors = clustered(300)
    found = material(vectors)
    kept = Cut("cut", 5).fit(found.moments).transform(vectors)
    np.testing.assert_array_equal(kept, vectors[:, :5])


def test_all_dimensions_are_kept_with_the_one_that_a_layer_norm_leaves_empty() -> None:
    vectors = clustered(900)
    vectors -= vectors.mean(axis=1, keepdims=True)  # what a layer norm without bias does: rank 15 but for rounding
    found = material(vectors, exact=True)
    assert found.moments.exact
    for name in ("whiten", "rotate"):
        assert Cut(name, D).exact(D)
        assert not Cut(name, D - 1).exact(D)
        assert Cut(name, D).fit(found.moments).m == D
    assert not Cut("cut", D).exact(D)
    with pytest.raises(TransformError, match="rank 15"):
        Whitening.fit(found.moments, D)


def test_names_and_numbers_of_the_grid_are_checked() -> None:
    assert [str(cut) for cut in parse_cuts("whiten,cut", "8,4,8", D)] == ["whiten-8", "whiten-4", "cut-8", "cut-4"]
    assert [cut.m for cut in parse_cuts("rotate", None, 384)] == [384, 256, 128, 64]
    assert [cut.m for cut in parse_cuts("rotate", None, 100)] == [100, 64]
    assert parse_kinds(["hnsw, flat"]) == ["hnsw", "flat"]
    assert parse_kinds(["hnsw,flat", "IVF16,PQ8", "pqfs", "flat"]) == ["hnsw", "flat", "IVF16,PQ8", "pqfs"]
    assert parse_recalls(".99,0.9") == [0.9, 0.99]
    for dims in ("17", "0", "-1", "x", "4.5", "²"):
        with pytest.raises(UsageError, match="expected a number from 1 to 16"):
            parse_cuts("cut", dims, D)
    with pytest.raises(UsageError, match="unknown transform 'pca': expected some of cut, rotate, soft, whiten"):
        parse_cuts("pca", None, D)
    for text, name in (("flat,tree", "tree"), ("auto", "auto"), ("flat,auto", "auto"), ("IVFx,PQ8", "IVFx,PQ8")):
        with pytest.raises(
            UsageError, match=f"unknown index '{name}': expected some of flat.* one FAISS factory string"
        ):
            parse_kinds([text])
    with pytest.raises(UsageError, match="unknown index 'IDMap,Flat'"):
        parse_kinds(["IDMap,Flat"])
    for recall in ("95", "0", "x"):
        with pytest.raises(UsageError, match="above 0, at most 1"):
            parse_recalls(recall)
    with pytest.raises(UsageError, match="empty part"):
        parse_kinds(["flat,"])


# Times.


class Recorder:
    """Searches that note who was asked for how many."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def search(self, name: str) -> Any:
        return lambda queries: self.calls.append((name, len(queries)))


def test_batches_are_asked_in_turn_round_by_round() -> None:
    recorder = Recorder()
    searches = {name: recorder.search(name) for name in ("a", "b")}
    times = measure_times(searches, "a", np.ones((40, 4), np.float32), 3, QUIET)
    batches = [name for name, count in recorder.calls if count == 40]
    assert batches == ["a", "b"] + ["a", "b"] * 3  # one round to warm up
    singles = [name for name, count in recorder.calls if count == 1][10:]
    assert [(name, len(list(run))) for name, run in itertools.groupby(singles)] == [("a", 20), ("b", 20)] * 2
    assert times["a"]["times_faster_than_exact"] == {"median": 1, "min": 1, "max": 1}
    for own in times.values():
        assert own["queries_per_second"]["min"] <= own["queries_per_second"]["median"]
        assert own["milliseconds"]["p50"] <= own["milliseconds"]["p95"] <= own["milliseconds"]["p99"]


def test_allocated_bytes_see_what_an_index_takes() -> None:
    before = allocated_bytes()
    if before is None:
        pytest.skip("this C library does not say")
    index = VectorIndex(D)
    index.add(unit_vectors(clustered(20_000), None))
    after = allocated_bytes()
    assert after is not None
    assert 20_000 * D * 4 <= after - before < 2 * 20_000 * D * 4


# The run.


def brute(base: Floats, queries: Floats, k: int) -> list[set[int]]:
    def unit(rows: Floats) -> Any:
        return rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)

    return [set(row) for row in np.argsort(-(unit(queries) @ unit(base).T), axis=1)[:, :k].tolist()]


def test_both_recalls_are_those_of_brute_force(tmp_path: Path) -> None:
    found = material(clustered(1500), hold_out=60)
    content = bench(tmp_path / "report", found, [Cut("cut", 4), Cut("rotate", 6)], ["flat", "ivf"])
    first, *rows = report.rows_of(content)
    assert (first["cut"], first["index"], first["recall_of_uncut"], first["recall_of_cut"]) == ("uncut", "flat", 1, 1)
    assert first["m"] == D
    whole = brute(documents(found), found.queries, 10)
    for row in rows:
        transform = Cut(row["transform"], row["m"]).fit(found.moments)
        cut = brute(transform.transform(documents(found)), transform.transform(found.queries), 10)
        if row["index"] == "flat":
            overlap = np.mean([len(one & other) / 10 for one, other in zip(whole, cut, strict=True)])
            assert row["recall_of_cut"] == 1
            assert row["recall_of_uncut"] == pytest.approx(overlap, abs=1e-9)
            assert 0 < overlap < 1
        else:
            assert row["targets"] == [0.9]
            assert row["recall_of_cut"] == pytest.approx(row["tuned_recall"], abs=0.1)
        assert row["bytes_per_document"] == row["file_bytes"] / len(found)
        assert row["build_seconds"] > 0
    assert {row["cut"] for row in rows} == {"cut-4", "rotate-6"}


def test_recalls_reached_by_one_setting_are_one_row(tmp_path: Path) -> None:
    content = bench(
        tmp_path / "report", material(clustered(1500)), [Cut("rotate", 8)], ["hnsw", "ivf"], recalls=[0.5, 0.51, 1.0]
    )
    rows = [row for row in content["rows"] if row["cut"] != "uncut"]
    for kind in ("hnsw", "ivf"):
        own = [row for row in rows if row["index"] == kind]
        assert sorted(target for row in own for target in row["targets"]) == [0.5, 0.51, 1.0]
        assert len({json.dumps(row["setting"]) for row in own}) == len(own) < 3


def test_what_cannot_be_built_is_a_row_with_its_reason(tmp_path: Path) -> None:
    vectors = clustered(300)
    vectors[:, 8:] = vectors[:, :8]  # rank 8
    content = bench(tmp_path / "report", material(vectors), [Cut("whiten", 12), Cut("cut", 12)], ["flat", "pqfs"])
    found = {(row["cut"], row["index"]): row for row in content["rows"]}
    assert "have rank 8; choose m from 1 to 8" in found["whiten-12", "flat"]["reason"]
    assert found["cut-12", "pqfs"]["reason"] == "pqfs learns from at least 1,024 vectors, there are 270"
    assert found["cut-12", "flat"]["status"] == "measured"
    sheet = report.as_sheet(content)
    assert [name for name, _ in sheet.rows] == ["uncut flat", "cut-12 flat"]
    assert any("pqfs learns from at least 1,024" in note for note in sheet.notes)


def test_out_of_memory_is_a_row_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Bench._build

    def starved(self: Bench, kind: str, transform: Any) -> Any:
        if kind == "hnsw" or (transform is not None and transform.m == 4):
            raise MemoryError
        return build(self, kind, transform)

    monkeypatch.setattr(Bench, "_build", starved)
    content = bench(tmp_path / "report", material(clustered(700)), [Cut("cut", 8), Cut("cut", 4)], ["flat", "hnsw"])
    found = {(row["cut"], row["index"]): row.get("reason") for row in content["rows"]}
    assert found == {
        ("uncut", "flat"): None,
        ("cut-8", "flat"): None,
        ("cut-8", "hnsw"): "out of memory",
        ("cut-4", "flat"): "out of memory",
        ("cut-4", "hnsw"): "out of memory",
    }


def test_a_second_run_measures_only_what_is_not_there(tmp_path: Path) -> None:
    found, folder = material(clustered(700)), tmp_path / "report"
    first = bench(folder, found, [Cut("cut", 8)], ["flat"])
    second = bench(folder, found, [Cut("cut", 8), Cut("cut", 4)], ["flat", "hnsw"])
    assert second["rows"][:2] == first["rows"]
    assert {(row["cut"], row["index"]) for row in second["rows"][2:]} == {
        ("cut-8", "hnsw"),
        ("cut-4", "flat"),
        ("cut-4", "hnsw"),
    }
    assert bench(folder, found, [Cut("cut", 4)], ["flat"])["rows"] == second["rows"]
    assert {path.name for path in folder.iterdir()} == {"results.json"}


def test_a_run_that_dies_keeps_its_rows_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, folder = material(clustered(700)), tmp_path / "report"
    build = Bench._build

    def dies(self: Bench, kind: str, transform: Any) -> Any:
        if kind == "hnsw":
            raise KeyboardInterrupt
        return build(self, kind, transform)

    monkeypatch.setattr(Bench, "_build", dies)
    with pytest.raises(KeyboardInterrupt):
        bench(folder, found, [Cut("cut", 8)], ["flat", "hnsw"])
    monkeypatch.undo()
    kept = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert [row["cut"] for row in kept["rows"]] == ["uncut"]
    assert kept["begun"] == {}  # it was interrupted, not killed
    content = bench(folder, found, [Cut("cut", 8)], ["flat", "hnsw"])
    assert content["rows"][0] == kept["rows"][0]
    assert [row["status"] for row in content["rows"]] == ["measured"] * 3


def test_what_killed_the_process_twice_is_a_row_that_says_so(tmp_path: Path) -> None:
    found, folder = material(clustered(700)), tmp_path / "report"
    folder.mkdir()
    results = Results.open(folder, INPUTS, ABOUT, fresh=False)
    assert results.begin("cut-8 hnsw")
    assert Results.open(folder, INPUTS, ABOUT, fresh=False).begin("cut-8 hnsw")  # killed, and tried again
    content = bench(folder, found, [Cut("cut", 8)], ["flat", "hnsw"])
    assert {row["index"]: row.get("reason") for row in content["rows"][1:]} == {"hnsw": KILLED, "flat": None}


def test_results_of_other_inputs_are_not_mixed_and_damaged_ones_not_lost(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    bench(folder, material(clustered(700)), [Cut("cut", 8)], ["flat"])
    before = (folder / "results.json").read_bytes()
    with pytest.raises(UsageError, match=r"other inputs \(k 10 -> 5\): give another folder with -o, or .*--fresh"):
        Results.open(folder, {**INPUTS, "k": 5}, ABOUT, fresh=False)
    assert (folder / "results.json").read_bytes() == before
    assert Results.open(folder, {**INPUTS, "k": 5}, ABOUT, fresh=True).rows == []
    (folder / "results.json").write_bytes(before[:100])
    with pytest.raises(RetrError, match="is not what this retr bench wrote"):
        Results.open(folder, INPUTS, ABOUT, fresh=False)
    check_folder(folder)
    (folder / "thesis.tex").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=r"holds other things \(thesis.tex\)"):
        check_folder(folder)
    with pytest.raises(UsageError, match="is a file"):
        check_folder(folder / "thesis.tex")


def test_a_report_is_written_by_one_run_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "report"):
        with pytest.raises(BuildError, match="another run writes to"), locked(tmp_path / "report"):
            pass
    with locked(tmp_path / "report"):
        pass
    assert list((tmp_path / "report").iterdir()) == []


def test_k_beyond_the_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="k is 91, and there are 90 documents"):
        bench(tmp_path / "report", material(clustered(100)), [Cut("cut", 8)], ["flat"], k=91)


# The report.


def test_report_is_one_offline_page_two_charts_and_a_flat_table(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    content = bench(folder, material(clustered(1500)), [Cut("whiten", 8)], ["flat", "ivf"])
    report.write_report(content, folder, "retr bench --vectors <b>.npy")
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "prefers-color-scheme: dark" in page
    assert "&lt;b&gt;.npy" in page
    assert not any(f'{mark}="http' in page or f"{mark}='http" in page for mark in ("src", "href"))
    for name in ("recall-latency.png", "recall-bytes.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    header, first, *rest = (folder / "results.csv").read_text(encoding="utf-8").splitlines()
    names = header.split(",")
    cells = dict(zip(names, first.split(","), strict=True))
    assert (cells["cut"], cells["recall_of_uncut"]) == ("uncut", "1.0")
    assert {"milliseconds.p99", "queries_per_second.median", "build_seconds", "memory_bytes"} <= set(names)
    assert len(rest) == len(content["rows"]) - 1
    check_folder(folder)


def test_a_recall_that_no_setting_reaches_is_said() -> None:
    row = {"cut": "cut-8", "transform": "cut", "m": 8, "index": "pqfs", "status": "measured", "targets": [0.9, 0.99]}
    notes = report._lacking([{**row, "tuned_recall": 0.95}])
    assert notes == ["cut-8 pqfs: no setting tried reaches a recall of 0.99; the best has 0.950 on documents"]


# Vectors of the user's own.


def test_npy_of_any_number_type_is_read_as_float32(tmp_path: Path) -> None:
    vectors = clustered(100)
    for dtype in ("float16", "float64", "int32"):
        np.save(tmp_path / "base.npy", vectors.astype(dtype))
        found = npy_source(tmp_path / "base.npy")
        (chunk,) = found.chunks()
        assert chunk.dtype == np.float32
        np.testing.assert_array_equal(chunk, vectors.astype(dtype).astype(np.float32))
    np.save(tmp_path / "queries.npy", vectors[:, :4])
    with pytest.raises(UsageError, match=r"have 4 dimensions, and those of .*base\.npy' 16"):
        npy_source(tmp_path / "base.npy", tmp_path / "queries.npy")
    for wrong in (np.ones(3), np.array([["a"]]), np.ones((0, 4))):
        np.save(tmp_path / "wrong.npy", wrong)
        with pytest.raises(CorpusError, match=r"expected numbers of shape \(n, d\)"):
            npy_source(tmp_path / "wrong.npy")
    (tmp_path / "text.npy").write_text("one, two", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"no whole \.npy"):
        npy_source(tmp_path / "text.npy")
    with pytest.raises(CorpusError, match="No such file"):
        npy_source(tmp_path / "nothing.npy")
    np.savez(tmp_path / "two.npz", one=vectors)
    with pytest.raises(CorpusError, match="several arrays"):
        npy_source(tmp_path / "two.npz")


def test_hdf5_goes_out_and_in_again_as_ann_benchmarks_has_it(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    vectors = clustered(400)
    vectors[5] = 0
    found = material(vectors, hold_out=20)
    cut = Cut("rotate", 6)
    path = tmp_path / "cut.hdf5"
    export_cut(found, cut, path, QUIET)
    with h5py.File(path) as file:
        assert dict(file.attrs) == {"type": "dense", "distance": "angular", "point_type": "float", "dimension": 6}
        train, test = file["train"][:], file["test"][:]
        neighbors, distances = file["neighbors"][:], file["distances"][:]
    known = documents(found)
    known = known[known.any(axis=1)]
    transform = cut.fit(found.moments)
    np.testing.assert_allclose(train, unit_vectors(known, transform), atol=1e-6)
    assert neighbors.shape == distances.shape == (20, 100)
    # ann-benchmarks' own formula of the angular distance
    for row in range(20):
        whole = 1 - train @ test[row] / (np.linalg.norm(train, axis=1) * np.linalg.norm(test[row]))
        np.testing.assert_allclose(distances[row], np.sort(whole)[:100], atol=2e-6)
        np.testing.assert_allclose(whole[neighbors[row]], distances[row], atol=2e-6)
    again = gather(hdf5_source(path), progress=QUIET)
    content = bench(tmp_path / "report", again, [Cut("cut", 6)], ["flat"])
    first, second = report.rows_of(content)
    assert first["recall_of_given_neighbors"] == 1
    assert second["recall_of_uncut"] == pytest.approx(1, abs=0.01)


def test_hdf5_of_other_forms_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "one.hdf5"
    with h5py.File(path, "w") as file:
        file["train"] = clustered(20)
    with pytest.raises(CorpusError, match="lacks test: it holds train"):
        hdf5_source(path)
    with h5py.File(path, "a") as file:
        file["test"] = clustered(5)[:, :4]
    with pytest.raises(CorpusError, match="train has 16 dimensions, and test 4"):
        hdf5_source(path)
    with h5py.File(path, "a") as file:
        file.attrs["distance"] = "euclidean"
    with pytest.raises(UsageError, match="distance 'euclidean': retr searches by cosine"):
        hdf5_source(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(CorpusError, match="cannot be read as HDF5"):
        hdf5_source(path)


# An index, its encoder, and labels.


@pytest.fixture(scope="module")
def index_folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    texts = random_texts(400)
    (folder / "corpus.tsv").write_text(
        "id\ttext\n" + "".join(f"d{number}\t{text}\n" for number, text in enumerate(texts)), encoding="utf-8"
    )
    retrieval.Index.build(
        folder / "corpus.tsv",
        folder / "index",
        model=tiny_model,
        transform="none",
        backend="torch",
        precision="float32",
        corpus=retrieval.CorpusOptions(id_column="id"),
    )
    return folder / "index"


@pytest.fixture
def pairs_path(tmp_path: Path) -> Path:
    texts = random_texts(60, seed=7)
    lines = [f"{texts[i]}\t{texts[i + 1]}\t{(i // 2) % 2}" for i in range(0, 60, 2)]
    path = tmp_path / "pairs.tsv"
    path.write_text("sentence1\tsentence2\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_queries_that_are_documents_are_left_out(index_folder: Path, tmp_path: Path) -> None:
    documents, others = random_texts(400), random_texts(5, seed=3)
    path = tmp_path / "queries.txt"
    path.write_text("\n".join([others[0], documents[7], "", *others[1:]]) + "\n", encoding="utf-8")
    found = index_source(index_folder, path)
    assert found.queries is not None
    assert len(found.queries) == len(found.query_ids) == 5
    assert found.notes == ("1 queries are documents of the index, and left out: queries are held out",)
    assert found.rows == 400
    assert found.index is not None
    np.testing.assert_allclose(found.queries, found.index.encoder.encode(others, kind="query"), atol=1e-5)
    path.write_text(documents[7] + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match="all 1 queries"):
        index_source(index_folder, path)
    path.write_text("\n\n", encoding="utf-8")
    with pytest.raises(RetrError, match=r"queries\.txt"):
        index_source(index_folder, path)


def test_labels_are_those_of_retr_eval(index_folder: Path, pairs_path: Path) -> None:
    found = index_source(index_folder)
    assert found.index is not None
    pairs, encoder = read_pairs(str(pairs_path)), found.index.encoder
    labels = PairLabels(pairs, found.index, 10, QUIET).measure(None)
    task = known_item_task(pairs)
    model = Model("tiny", lambda symmetric: (encoder, None, ""))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ((result,),) = evaluate_retrieval([(task, fitting_of(task, None, None))], [model], resamples=0)
    for name in ("recall@10", "MRR@10", "nDCG@10"):
        assert labels[name] == pytest.approx(result.values[name].value, abs=1e-9)
    assert -1 < labels["spearman"] < 1


def test_judgements_measure_what_was_found(index_folder: Path) -> None:
    qrels = {"q1": {"d3": 1, "d4": 1}, "q2": {"d9": 1}, "q3": {"d1": 0}}
    documents, kept = Documents(index_folder / "documents.arrow"), np.arange(1, 400)  # d0 was held out
    judged = Judgements(qrels, ["q1", "q2", "q3"], documents, kept, 2)
    assert len(judged) == 2
    rows = np.array([[2, 7], [4, 8], [0, 1]])
    scores = np.array([[0.9, 0.8]] * 3, np.float32)
    # q1 finds one of two at rank 1; q2 its only one at rank 2; q3 has nothing relevant and is left out.
    found = judged.measure(scores, rows)
    assert found["recall@2"] == pytest.approx((0.5 + 1) / 2)
    assert found["MRR@2"] == pytest.approx((1 + 0.5) / 2)
    with pytest.raises(UsageError, match="the ids differ"):
        Judgements({"other": {"d1": 1}}, ["q1"], documents, kept, 2)


def test_deleted_documents_are_neither_documents_nor_queries(index_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "index"
    shutil.copytree(index_folder, copy)
    gone = [f"d{number}" for number in range(0, 400, 4)]
    delete_documents(copy, gone)
    found = gather(index_source(copy), progress=QUIET)
    assert not any(row % 4 == 0 for row in [*found.kept, *found.asked])
    assert len(found) + len(found.asked) == 300


def test_an_index_without_embeddings_is_refused(index_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "index"
    shutil.copytree(index_folder, copy)
    shutil.rmtree(copy / "embeddings")
    manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"] = {name: entry for name, entry in manifest["files"].items() if "embeddings" not in name}
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(RetrError, match="keeps no embeddings"):
        index_source(copy)
