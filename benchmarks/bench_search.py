r"""Searching vectors: recall, queries/s, latency, build time and bytes, beside hnswlib, usearch, ScaNN and voyager.

    retr index titles.txt -o indexes/titles --transform rotate-256
    python benchmarks/bench_search.py --index indexes/titles
    python benchmarks/bench_search.py --index indexes/titles --rows 1000000 --sides retr disk flat \
        --output benchmarks/results/search-million.json
    python benchmarks/bench_search.py --index indexes/titles --limits --output limits.json
The vectors are those of an index's documents, transformed; exact search gives the truth. Queries are documents held
out of all indexes: half of them choose each side's fastest setting for a recall, the other half is measured. All sides
are timed in one process in turn, round after round, all cores, a batch of queries at once; ratios are medians over
rounds. One query alone is timed as p50 and p99. With more --rows than the index has, vectors are copies with
seeded Gaussian noise as large as the distance to the nearest neighbour, so that copies are no nearer than neighbours.
retr's own sides are built as `retr reindex` does, from raw embeddings on disk (of which the transform makes these
vectors), each in a process of its own whose peak of resident memory is told (`build_peak_mib`), and opened from the
saved file as a search opens it (`open_seconds`). Files are in the system's cache, those embeddings too, from which
`disk` scores its candidates, but for `cold_p50_milliseconds`. Results go to benchmarks/results/search.json.
Needs: pip install '.[bench]'. Sides whose package is missing are left out, and said.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from bench_build import RESULTS, machine
from numpy.typing import NDArray

from retrieval.index.embeddings import SHARD_ROWS, Embeddings, EmbeddingShards, EmbeddingsKey, key_of_folder
from retrieval.index.rescored import RescoredIndex, transformed
from retrieval.index.spec import EXACT, Wanted, is_rescored
from retrieval.index.tuning import Point
from retrieval.index.vectors import VectorIndex
from retrieval.pipeline.vectors import index_vectors
from retrieval.transforms.apply import load_transform, unit_vectors
from retrieval.transforms.whitening import Whitening
from retrieval.types import NoProgress

K, RECALLS, SEED = 10, (0.95, 0.99), 0
EMBEDDINGS, TRANSFORM = "embeddings", "transform.safetensors"
SINGLE_QUERIES, COLD_QUERIES = 500, 30
Floats, Rows = NDArray[np.float32], NDArray[np.int64]


class Side(Protocol):
    """A search library with its index built; settings are the cheapest first."""

    settings: list[Any]

    def search(self, queries: Floats, setting: Any) -> Rows: ...

    def save(self, folder: Path) -> None: ...


class Retr:
    """`auto`, or a kind by name, built by `build_retr` in a process of its own.

    Parameters
    ----------
    work : the folder of the raw embeddings and their transform.
    """

    def __init__(self, work: Path, kind: str) -> None:
        folder = work / kind
        context = multiprocessing.get_context("spawn")  # forked, it would begin with this process's memory
        process = context.Process(target=build_retr, args=(work, kind, folder))
        process.start()
        process.join()
        if process.exitcode:
            raise RuntimeError(f"building {kind} ended with exit code {process.exitcode}")
        self.built = json.loads((folder / "built.json").read_text(encoding="utf-8"))
        self.name = self.built["factory"]
        self.settings = [Point.of_json(point).setting for point in self.built["curve"]] or [EXACT]
        self._work, self._vectors = work, folder / "vectors.faiss"
        start = time.perf_counter()
        self._index: VectorIndex | None = self._open()
        self.built["open_seconds"] = time.perf_counter() - start

    def _open(self) -> VectorIndex:
        index = VectorIndex.load(self._vectors)
        if not is_rescored(self.built["spec"]):
            return index
        embeddings, transform = Embeddings([self._work / EMBEDDINGS]), load_transform(self._work / TRANSFORM)
        embeddings.hold()
        return RescoredIndex(index, transformed(embeddings.take, transform))

    def cold(self, queries: Floats, setting: Any) -> list[float]:
        """Milliseconds of single queries whose candidates no cache holds; none for kinds without such."""
        times = []
        for query in queries[:COLD_QUERIES] if is_rescored(self.built["spec"]) else []:
            self._index = None  # pages that are mapped stay
            for path in (self._work / EMBEDDINGS).iterdir():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self._index = self._open()
            start = time.perf_counter()
            self._index.search(query[None], K, setting=setting)
            times.append(1000 * (time.perf_counter() - start))
        return times

    def search(self, queries: Floats, setting: Any) -> Rows:
        assert self._index is not None
        return self._index.search(queries, K, setting=setting)[1]

    def save(self, folder: Path) -> None:
        shutil.copy(self._vectors, folder / "index")


def build_retr(work: Path, kind: str, folder: Path) -> None:
    """What `retr reindex` does between reading embeddings and writing the vectors' file."""
    key, transform = key_of_folder(work / EMBEDDINGS), load_transform(work / TRANSFORM)
    assert key is not None
    shards = EmbeddingShards(work / EMBEDDINGS, key)
    start = time.perf_counter()
    built = index_vectors(shards, transform, transform.dimension, kind, Wanted(), "cpu", NoProgress())
    seconds = time.perf_counter() - start
    folder.mkdir()
    built.vectors.save(folder / "vectors.faiss")
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    about = {"build_seconds": seconds, "build_peak_mib": int(status["VmHWM"].split()[0]) / 1024}
    (folder / "built.json").write_text(json.dumps({**built.to_json(), **about}), encoding="utf-8")


class Hnswlib:
    """M = 16, ef_construction = 200: its own example's."""

    settings = (12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

    def __init__(self, vectors: Floats) -> None:
        import hnswlib

        self._index = hnswlib.Index(space="ip", dim=vectors.shape[1])
        self._index.init_index(len(vectors), ef_construction=200, M=16, random_seed=SEED)
        self._index.add_items(vectors)

    def search(self, queries: Floats, setting: Any) -> Rows:
        self._index.set_ef(setting)
        return self._index.knn_query(queries, K)[0].astype(np.int64)

    def save(self, folder: Path) -> None:
        self._index.save_index(str(folder / "index"))


class Usearch:
    """Half precision, the other parameters its defaults."""

    settings = Hnswlib.settings

    def __init__(self, vectors: Floats) -> None:
        from usearch.index import Index

        self._index = Index(ndim=vectors.shape[1], metric="ip", dtype="f16")
        self._index.add(np.arange(len(vectors)), vectors)

    def search(self, queries: Floats, setting: Any) -> Rows:
        self._index.expansion_search = setting
        return self._index.search(queries, K).keys.astype(np.int64).reshape(len(queries), -1)

    def save(self, folder: Path) -> None:
        self._index.save(str(folder / "index"))


class Voyager:
    """M = 16, ef_construction = 200, as hnswlib."""

    settings = Hnswlib.settings

    def __init__(self, vectors: Floats) -> None:
        import voyager

        self._index = voyager.Index(
            voyager.Space.InnerProduct, vectors.shape[1], M=16, ef_construction=200, random_seed=SEED
        )
        self._index.add_items(vectors)

    def search(self, queries: Floats, setting: Any) -> Rows:
        return self._index.query(queries, K, query_ef=setting)[0].astype(np.int64)

    def save(self, folder: Path) -> None:
        self._index.save(str(folder / "index"))


class Scann:
    """Tree, anisotropic hashing and reordering as its documentation advises: leaves near the root of the rows."""

    def __init__(self, vectors: Floats) -> None:
        import scann

        leaves = int(2 ** round(np.log2(2 * np.sqrt(len(vectors)))))
        shares = (0.01, 0.02, 0.03, 0.045, 0.07, 0.1, 0.15, 0.22, 0.32, 0.5)
        self.settings = [
            (max(1, round(leaves * share)), reorder) for share in shares for reorder in (20, 40, 80, 150, 300)
        ]
        self._index = (
            scann.scann_ops_pybind.builder(vectors, K, "dot_product")
            .tree(num_leaves=leaves, num_leaves_to_search=leaves // 10, training_sample_size=min(len(vectors), 250_000))
            .score_ah(2, anisotropic_quantization_threshold=0.2)
            .reorder(100)
            .build()
        )

    def search(self, queries: Floats, setting: Any) -> Rows:
        probed, reorder = setting
        knobs = {"leaves_to_search": probed, "pre_reorder_num_neighbors": reorder, "final_num_neighbors": K}
        if len(queries) == 1:
            return self._index.search(queries[0], **knobs)[0].astype(np.int64)[None]
        return self._index.search_batched_parallel(queries, **knobs)[0].astype(np.int64)

    def save(self, folder: Path) -> None:
        self._index.serialize(str(folder))


PEERS: dict[str, Callable[[Floats], Side]] = {
    "hnswlib": Hnswlib,
    "scann": Scann,
    "usearch": Usearch,
    "voyager": Voyager,
}
OWN = {
    "retr": "auto",
    "disk": "ivf-pqfs-disk",
    **{kind: kind for kind in ("flat", "pqfs", "ivf-pqfs", "rabitq", "hnsw")},
}
DEFAULT_SIDES = ("retr", *PEERS, "flat")
LIMIT_SIDES, LIMITS = ("flat", "pqfs", "ivf-pqfs"), (5_000, 10_000, 20_000, 40_000, 80_000, 160_000)


@dataclass
class Built:
    """A side with what building it took, and the settings that were chosen for it."""

    side: Side
    rows: int
    build_seconds: float
    bytes: int
    chosen: dict[float, Any] = field(default_factory=dict)
    reached: dict[float, float] = field(default_factory=dict)
    seconds: dict[float, list[float]] = field(default_factory=dict)


def read_vectors(folder: Path, most: int) -> tuple[Floats, Whitening]:
    """The transformed vectors of an index's documents, each once, in random order, and the transform."""
    import retrieval
    from retrieval.index import folder as layout

    index = retrieval.Index.open(folder)
    transform, d = index.transform, index.manifest.encoder["dimension"]
    if transform is None:
        transform = Whitening(np.zeros(d, np.float32), np.eye(d, dtype=np.float32), np.ones(d, np.float32), gamma=0)
    if not isinstance(transform, Whitening):
        raise SystemExit(f"{folder} has a flow: name an index with whiten, rotate, soft or no transform")
    embeddings = Embeddings([folder / part / layout.EMBEDDINGS for part in index.manifest.parts])
    vectors = np.concatenate([unit_vectors(chunk, index.transform) for chunk in embeddings.chunks()])
    vectors = np.unique(vectors[vectors.any(axis=1)], axis=0)
    return vectors[np.random.default_rng(SEED).permutation(len(vectors))[:most]], transform


def write_raw(vectors: Floats, transform: Whitening, work: Path) -> None:
    """Raw embeddings that the transform makes these vectors of, in shards as an index folder has them."""
    key = EmbeddingsKey("", len(vectors), "", {}, SHARD_ROWS)
    shards, back = EmbeddingShards(work / EMBEDDINGS, key), np.linalg.pinv(transform.kernel.astype(np.float64))
    for shard in range(shards.count):
        start, stop = shards.bounds(shard)
        shards.write(shard, vectors[start:stop] @ back + transform.mean, {"without_vector": 0})
    transform.save(work / TRANSFORM)


def grown(vectors: Floats, rows: int) -> Floats:
    """So many vectors: the ones there are, and copies of them with noise."""
    if rows <= len(vectors):
        return vectors[:rows]
    random = np.random.default_rng(SEED)
    probe = vectors[:500]
    nearest = np.sort(probe @ vectors.T, axis=1)[:, -2]
    spread = float(np.median(np.sqrt(2 - 2 * nearest))) / np.sqrt(vectors.shape[1])
    result = np.empty((rows, vectors.shape[1]), np.float32)
    result[: len(vectors)] = vectors
    for start in range(len(vectors), rows, len(vectors)):
        part = result[start : start + len(vectors)]
        part[:] = vectors[: len(part)] + spread * random.standard_normal(part.shape, np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return result


def exact(vectors: Floats, queries: Floats) -> Rows:
    index = VectorIndex(vectors.shape[1])
    index.add(vectors)
    return index.search(queries, K)[1]


def recall(found: Rows, truth: Rows) -> float:
    return float((found[:, :, None] == truth[:, None, :]).any(axis=1).mean())


def built(name: str, vectors: Floats, work: Path) -> Built:
    start = time.perf_counter()
    side = Retr(work, OWN[name]) if name in OWN else PEERS[name](vectors)
    seconds = side.built["build_seconds"] if isinstance(side, Retr) else time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        side.save(Path(folder))
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return Built(side, len(vectors), seconds, size)


def choose(one: Built, queries: Floats, truth: Rows) -> None:
    """The fastest setting that reaches each recall on the queries for choosing."""
    measured = []
    for setting in one.side.settings:
        start = time.perf_counter()
        found = one.side.search(queries, setting)
        measured.append((time.perf_counter() - start, recall(found, truth), setting))
    for target in RECALLS:
        reaching = [entry for entry in measured if entry[1] >= target]
        if reaching:
            one.chosen[target] = min(reaching, key=lambda entry: entry[0])[2]


def singles(one: Built, queries: Floats, setting: Any) -> dict[str, float]:
    times = []
    for query in queries[:SINGLE_QUERIES]:
        start = time.perf_counter()
        one.side.search(query[None], setting)
        times.append(1000 * (time.perf_counter() - start))
    return {"p50_milliseconds": float(np.percentile(times, 50)), "p99_milliseconds": float(np.percentile(times, 99))}


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    vectors, transform = read_vectors(options.index, options.rows + options.queries)
    vectors = grown(vectors, options.rows + options.queries)
    place = np.random.default_rng(SEED + 1).permutation(len(vectors))[: options.queries]
    queries, documents = vectors[place], np.delete(vectors, place, axis=0)
    del vectors
    half = options.queries // 2
    truth = exact(documents, queries)
    write_raw(documents, transform, work)
    sides: dict[str, Built] = {}
    for name in options.sides:
        try:
            sides[name] = built(name, documents, work)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        choose(sides[name], queries[:half], truth[:half])
        print(f"{name}: built in {sides[name].build_seconds:.1f} s", file=sys.stderr, flush=True)
    for _ in range(options.repeats):
        for one in sides.values():
            for target, setting in one.chosen.items():
                start = time.perf_counter()
                found = one.side.search(queries[half:], setting)
                one.seconds.setdefault(target, []).append(time.perf_counter() - start)
                one.reached[target] = recall(found, truth[half:])
    table = {name: dict(row_of(one, sides, queries[half:])) for name, one in sides.items()}
    return {
        **machine(),
        "versions": versions(),
        "rows": len(documents),
        "dimension": documents.shape[1],
        "queries": options.queries - half,
        "repeats": options.repeats,
        "seed": SEED,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "sides": table,
    }


def row_of(one: Built, sides: dict[str, Built], queries: Floats) -> Iterator[tuple[str, Any]]:
    yield "index", getattr(one.side, "name", None)
    yield "build_seconds", one.build_seconds
    if isinstance(one.side, Retr):
        yield "build_peak_mib", one.side.built["build_peak_mib"]
        yield "open_seconds", one.side.built["open_seconds"]
    yield "bytes_per_document", one.bytes / one.rows
    for target, seconds in one.seconds.items():
        rates = [len(queries) / second for second in seconds]
        entry: dict[str, Any] = {
            "setting": str(one.chosen[target]),
            "recall": one.reached[target],
            "queries_per_second": {"median": statistics.median(rates), "min": min(rates), "max": max(rates)},
            **singles(one, queries, one.chosen[target]),
        }
        if isinstance(one.side, Retr) and (cold := one.side.cold(queries, one.chosen[target])):
            entry["cold_p50_milliseconds"] = statistics.median(cold)
        for peer in ("hnswlib", "scann"):
            if peer in sides and target in sides[peer].seconds:
                entry[f"times_{peer}"] = statistics.median(
                    other / own for own, other in zip(seconds, sides[peer].seconds[target], strict=True)
                )
        yield f"recall {target:g}", entry


def versions() -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in ("faiss-cpu", "hnswlib", "scann", "usearch", "voyager"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, required=True, help="an index folder, whose embeddings are taken")
    parser.add_argument("--rows", type=int, default=179_416, help="documents (%(default)s: all titles but the queries)")
    parser.add_argument("--queries", type=int, default=2000, help="held out; half choose settings (%(default)s)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sides", nargs="+", choices=[*OWN, *PEERS], default=DEFAULT_SIDES)
    parser.add_argument("--work", type=Path, help="where embeddings and indexes lie meanwhile: 2 to 5 KB a document")
    parser.add_argument(
        "--limits", action="store_true", help="from how many rows on which kind that auto takes is best"
    )
    parser.add_argument("--output", type=Path, default=RESULTS.with_name("search.json"))
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    runs = [vars(options)]
    if options.limits:
        runs = [{**vars(options), "rows": rows, "sides": LIMIT_SIDES} for rows in LIMITS]
    results = []
    for run in runs:
        with tempfile.TemporaryDirectory(dir=options.work) as work:
            results.append(measure(argparse.Namespace(**run), Path(work)))
        content = {"limits": results} if options.limits else results[0]
        options.output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        show(results[-1])


def show(result: dict[str, Any]) -> None:
    print(f"{result['rows']:,} rows")
    heads = (
        ("build s", 9),
        ("MiB", 7),
        ("open s", 8),
        ("bytes", 7),
        ("recall", 8),
        ("queries/s", 11),
        ("x hnswlib", 11),
        ("x scann", 9),
    )
    print(" " * 10 + "".join(f"{head:>{width}}" for head, width in (*heads, ("p50 ms", 9), ("p99", 7))))
    for name, row in result["sides"].items():
        for target in RECALLS:
            if (entry := row.get(f"recall {target:g}")) is None:
                print(f"{name:<10} does not reach recall {target:g}")
                continue
            own = f"{row['build_peak_mib']:>7.0f}{row['open_seconds']:>8.3f}" if name in OWN else " " * 15
            ratios = "".join(
                f"{entry[key]:>{width}.2f}" if key in entry else " " * width
                for key, width in (("times_hnswlib", 11), ("times_scann", 9))
            )
            print(
                f"{name:<10}{row['build_seconds']:>9.1f}{own}{row['bytes_per_document']:>7.0f}{entry['recall']:>8.4f}"
                f"{entry['queries_per_second']['median']:>11,.0f}{ratios}"
                f"{entry['p50_milliseconds']:>9.2f}{entry['p99_milliseconds']:>7.2f}"
            )


if __name__ == "__main__":
    main()
