"""Fitting a whitening from disk: seconds, memory and accuracy beside scikit-learn, FAISS and numpy, in one process.

    python benchmarks/bench_whiten.py --rows 50000
    python benchmarks/bench_whiten.py --rows 1000000 --skip "scikit-learn, full"

Rows are float32 normal vectors with a falling spectrum (standard deviations 1 to 1/30) about a mean of each of the
norms given, in a file that is removed at the end (3.1 GB for 1,000,000 x 768). Each side reads it, by chunks or whole
as it can, and reading is counted. The measure is `X.T @ X`, float32, over the same chunks: a side's time is also
given as a multiple of the measure's in the same turn; reading alone is a row of its own. Accuracy is the largest |W^T
C W - I|, W being the side's own kernel (scaled to the divisor n) and C the covariance of the same rows in float64.
Extra memory, in MiB, is the highest resident size while a side runs, less that while the measure runs; a side that
wants all rows at once holds them, and they are counted. The sides named by --few see the first --few-rows rows only,
and are measured against the measure and the covariance of those.
Results go to benchmarks/results/whiten.json. Needs: pip install '.[bench]'.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from bench_build import RESULTS, machine
from numpy.typing import NDArray

from retrieval.transforms.held_out import SplitMoments
from retrieval.transforms.moments import USUAL, Moments
from retrieval.transforms.spec import TransformSpec
from retrieval.transforms.whitening import Whitening

Floats = NDArray[np.floating[Any]]
MEASURE = "X.T @ X"
READING = "reading alone"
MEANS = (0.0, 25.0, 800.0)


class Rows:
    """The first `rows` rows of a file of float32 vectors, read anew each time they are gone through."""

    def __init__(self, path: Path, rows: int, dimension: int, chunk: int) -> None:
        self.path, self.rows, self.dimension, self.chunk = path, rows, dimension, chunk

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        with self.path.open("rb") as file:
            for start in range(0, self.rows, self.chunk):
                count = min(self.chunk, self.rows - start)
                yield np.fromfile(file, np.float32, count * self.dimension).reshape(count, self.dimension)

    def whole(self) -> NDArray[np.float32]:
        """For sides that know no chunks."""
        return np.fromfile(self.path, np.float32, self.rows * self.dimension).reshape(self.rows, self.dimension)

    def covariance(self) -> Floats:
        """In float64, in two passes."""
        mean = sum(chunk.sum(axis=0, dtype=np.float64) for chunk in self) / self.rows
        total = np.zeros((self.dimension, self.dimension))
        for chunk in self:
            centred = chunk - mean
            total += centred.T @ centred
        return total / self.rows


def write_rows(path: Path, rows: int, dimension: int, mean: float, chunk: int) -> None:
    random = np.random.default_rng(0)
    direction = random.normal(size=dimension)
    centre = (mean * direction / np.linalg.norm(direction)).astype(np.float32)
    rotation = np.linalg.qr(random.normal(size=(dimension, dimension)))[0]
    mixing = (np.geomspace(1, 1 / 30, dimension)[:, None] * rotation).astype(np.float32)
    with path.open("wb") as file:
        for number, start in enumerate(range(0, rows, chunk)):
            random = np.random.default_rng([1, number])
            normal = random.standard_normal((min(chunk, rows - start), dimension), dtype=np.float32)
            (normal @ mixing + centre).tofile(file)


def product(rows: Rows) -> None:
    total = np.zeros((rows.dimension, rows.dimension), dtype=np.float32)
    for chunk in rows:
        total += chunk.T @ chunk


def reading(rows: Rows) -> None:
    for _ in rows:
        pass


def own(rows: Rows) -> Floats:
    moments = Moments(rows.dimension, USUAL)
    for chunk in rows:
        moments.update(chunk)
    return Whitening.fit(moments, rows.dimension)[0].kernel


def own_with_trial(rows: Rows) -> Floats:
    split = SplitMoments(rows.dimension)
    for chunk in rows:
        split.update(chunk)
    transform, _ = Whitening.fit(split.whole(), rows.dimension)
    split.trial(TransformSpec("whiten", rows.dimension, 1, 1))
    return transform.kernel


def sklearn_full(rows: Rows) -> Floats:
    from sklearn.decomposition import PCA

    return sklearn_kernel(PCA(whiten=True, svd_solver="full", copy=False).fit(rows.whole()), rows)


def sklearn_eigh(rows: Rows) -> Floats:
    from sklearn.decomposition import PCA

    return sklearn_kernel(PCA(whiten=True, svd_solver="covariance_eigh").fit(rows.whole()), rows)


def sklearn_incremental(rows: Rows) -> Floats:
    from sklearn.decomposition import IncrementalPCA

    pca, waiting = IncrementalPCA(whiten=True), np.empty((0, rows.dimension), dtype=np.float32)
    for chunk in rows:
        if len(chunk) < rows.dimension:  # the last, which it does not take alone
            chunk = np.concatenate([waiting, chunk])
        elif len(waiting):
            pca.partial_fit(waiting)
        waiting = chunk
    pca.partial_fit(waiting)
    return sklearn_kernel(pca, rows)


def sklearn_kernel(pca: Any, rows: Rows) -> Floats:
    return np.asarray((pca.components_ / np.sqrt(pca.explained_variance_ * (1 - 1 / rows.rows))[:, None]).T)


def faiss_pca(rows: Rows) -> Floats:
    import faiss

    pca = faiss.PCAMatrix(rows.dimension, rows.dimension, -0.5)
    pca.max_points_per_d = rows.rows  # else it takes a sample
    pca.train(rows.whole())
    return faiss.vector_to_array(pca.A).reshape(pca.d_out, pca.d_in).T * np.sqrt(rows.rows)


def numpy_cov(rows: Rows) -> Floats:
    eigenvalues, vectors = np.linalg.eigh(np.cov(rows.whole(), rowvar=False, bias=True))
    return np.asarray(vectors / np.sqrt(eigenvalues))


SIDES: dict[str, Callable[[Rows], Floats | None]] = {
    READING: reading,
    "retr": own,
    "retr, with rows held out": own_with_trial,
    "scikit-learn, covariance_eigh": sklearn_eigh,
    "scikit-learn, full": sklearn_full,
    "scikit-learn, incremental": sklearn_incremental,
    "FAISS PCAMatrix": faiss_pca,
    "numpy.cov": numpy_cov,
}
FEW = ("scikit-learn, full", "scikit-learn, incremental", "numpy.cov")
"""Over a million rows these take many minutes, or 15 GB."""


class Peak(threading.Thread):
    """The highest resident size of this process while something runs, in MiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._process, self._done = psutil.Process(), threading.Event()
        self._highest = self._process.memory_info().rss

    def run(self) -> None:
        while not self._done.wait(0.02):
            self._highest = max(self._highest, self._process.memory_info().rss)

    def stop(self) -> float:
        self._done.set()
        self.join()
        return self._highest / 2**20


def loss(kernel: Floats, covariance: Floats) -> float | None:
    """None where the kernel is not finite: the side lost a direction."""
    kernel = kernel.astype(np.float64)
    if not np.isfinite(kernel).all():
        return None
    return float(np.abs(kernel.T @ covariance @ kernel - np.eye(len(covariance))).max())


def shown(lost: float | None) -> str:
    return "fails" if lost is None else f"{lost:.1e}"


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    few = min(options.few_rows, options.rows)
    sides = {name: few if name in options.few else options.rows for name in SIDES if name not in options.skip}
    result: dict[str, dict[str, Any]] = {
        name: {"rows": rows, "seconds": [], "ratio": [], "loss": {}} for name, rows in sides.items()
    }
    base: dict[int, list[float]] = {}
    path = folder / "rows.f32"
    for mean in options.means:
        write_rows(path, options.rows, options.dimension, mean, options.chunk)
        # The most rows first: memory that a side leaves behind would hide what the next one takes.
        sizes = {
            size: Rows(path, size, options.dimension, options.chunk)
            for size in sorted(set(sides.values()), reverse=True)
        }
        covariances = {size: rows.covariance() for size, rows in sizes.items()}
        for turn in range(options.repeats if mean == options.means[0] else 1):
            for size, rows in sizes.items():
                _, seconds, measure_mib = run(product, rows)
                base.setdefault(size, []).append(seconds)
                for name in (name for name, own_size in sides.items() if own_size == size):
                    entry = result[name]
                    try:
                        kernel, seconds, mebibytes = run(SIDES[name], rows)
                    except MemoryError:
                        entry["failed"] = "out of memory"
                        continue
                    ratio = seconds / base[size][-1]
                    if mean == options.means[0]:
                        entry["seconds"].append(seconds)
                        entry["ratio"].append(ratio)
                    entry["extra_mib"] = max(mebibytes - measure_mib, entry.get("extra_mib", 0.0))
                    lost = ""
                    if kernel is not None:
                        entry["loss"][f"{mean:g}"] = loss(kernel, covariances[size])
                        lost = f", |W'CW - I| {shown(entry['loss'][f'{mean:g}'])}"
                    print(
                        f"mean {mean:g}, turn {turn + 1}, {size:,} rows: {name}: {seconds:.2f} s, "
                        f"x {ratio:.2f}{lost}, {mebibytes - measure_mib:.0f} MiB",
                        file=sys.stderr,
                        flush=True,
                    )
    for entry in result.values():
        for key in ("seconds", "ratio"):
            if values := entry[key]:
                entry[key] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {
        **machine(),
        **{key: getattr(options, key) for key in ("rows", "dimension", "chunk", "repeats", "means")},
        "measure": {"name": MEASURE, "seconds": {str(size): statistics.median(all_) for size, all_ in base.items()}},
        "sides": result,
    }


def run(side: Callable[[Rows], Floats | None], rows: Rows) -> tuple[Floats | None, float, float]:
    """What a side gives, its seconds, and the highest resident size meanwhile in MiB."""
    release_memory()
    peak = Peak()
    peak.start()
    started = time.perf_counter()
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            kernel = side(rows)
        return kernel, time.perf_counter() - started, peak.stop()
    finally:
        peak.stop()


def release_memory() -> None:
    """Give back what is free in the heap: else a side's need is hidden by what those before it left."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=768)
    parser.add_argument("--chunk", type=int, default=8192, help="rows a chunk")
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        help="turns at the first mean, which are timed; one turn at the others, for accuracy",
    )
    parser.add_argument("--means", type=float, nargs="+", default=list(MEANS), help="norms of the mean")
    parser.add_argument("--skip", nargs="*", choices=list(SIDES), default=[])
    parser.add_argument("--few", nargs="*", choices=list(SIDES), default=list(FEW), help="sides that see fewer rows")
    parser.add_argument("--few-rows", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=None, help="where the rows are written; default: the system's")
    parser.add_argument("--output", type=Path, default=RESULTS.with_name("whiten.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(options, Path(folder))
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    means = "".join(f"{f'mean {mean:g}':>12}" for mean in options.means)
    print(f"{'':<32}{'rows':>10}{'s':>8}{'x':>8}{'MiB':>8}{means}")
    for name, row in result["sides"].items():
        if "failed" in row or not row["seconds"]:
            print(f"{name:<32}{row['rows']:>10,}  {row.get('failed', '')}")
            continue
        losses = "".join(f"{shown(row['loss'][mean]):>12}" for mean in row["loss"])
        print(
            f"{name:<32}{row['rows']:>10,}{row['seconds']['median']:>8.2f}{row['ratio']['median']:>8.2f}"
            f"{row['extra_mib']:>8.0f}{losses}"
        )


if __name__ == "__main__":
    main()
