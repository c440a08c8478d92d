"""Fitting a whitening: seconds and accuracy beside scikit-learn, FAISS and numpy, on the same rows in one process.

    python benchmarks/bench_whiten.py --rows 50000
    python benchmarks/bench_whiten.py --rows 1000000 --skip "scikit-learn, full"

Rows are float32 normal vectors with a falling spectrum (standard deviations 1 to 1/30) about a mean of each of the
norms given. They are made anew chunk by chunk, which is not counted. The measure is `X.T @ X`, float32, of the same
chunks: a side's time is also given as a multiple of the measure's in the same turn. Accuracy is the largest
|W^T C W - I|, W being the side's own kernel (scaled to the divisor n) and C the covariance of the same rows in float64.
Extra memory, in MiB, is the highest resident size while a side runs, less that while the measure runs; a side that
wants all rows at once holds them, and they are counted.
Results go to benchmarks/results/whiten.json. Needs: pip install '.[bench]'.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
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
from retrieval.transforms.moments import Moments
from retrieval.transforms.spec import TransformSpec
from retrieval.transforms.whitening import Whitening

Floats = NDArray[np.floating[Any]]
MEASURE = "X.T @ X"
MEANS = (0.0, 25.0, 800.0)


class Rows:
    """The same rows each time they are gone through."""

    def __init__(self, rows: int, dimension: int, mean: float, chunk: int) -> None:
        random = np.random.default_rng(0)
        self.rows, self.dimension, self.chunk = rows, dimension, chunk
        direction = random.normal(size=dimension)
        self.mean = (mean * direction / np.linalg.norm(direction)).astype(np.float32)
        rotation = np.linalg.qr(random.normal(size=(dimension, dimension)))[0]
        self.mixing = (np.geomspace(1, 1 / 30, dimension)[:, None] * rotation).astype(np.float32)

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        for number, start in enumerate(range(0, self.rows, self.chunk)):
            random = np.random.default_rng([1, number])
            count = min(self.chunk, self.rows - start)
            yield random.standard_normal((count, self.dimension), dtype=np.float32) @ self.mixing + self.mean

    def covariance(self) -> Floats:
        """In float64, in two passes."""
        mean = sum(chunk.sum(axis=0, dtype=np.float64) for chunk in self) / self.rows
        total = np.zeros((self.dimension, self.dimension))
        for chunk in self:
            centred = chunk - mean
            total += centred.T @ centred
        return total / self.rows


class Clock:
    """Seconds spent outside of the making of rows."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.seconds, self._since = rows, 0.0, time.perf_counter()

    def chunks(self) -> Iterator[NDArray[np.float32]]:
        for chunk in self.rows:
            self._since = time.perf_counter()
            yield chunk
            self.stop()

    def all_rows(self) -> NDArray[np.float32]:
        """For sides that know no chunks."""
        whole = np.empty((self.rows.rows, self.rows.dimension), dtype=np.float32)
        start = 0
        for chunk in self.rows:
            whole[start : start + len(chunk)] = chunk
            start += len(chunk)
        self.go_on()
        return whole

    def go_on(self) -> None:
        self._since = time.perf_counter()

    def stop(self) -> None:
        self.seconds += time.perf_counter() - self._since


def product(clock: Clock) -> None:
    total = np.zeros((clock.rows.dimension, clock.rows.dimension), dtype=np.float32)
    for chunk in clock.chunks():
        total += chunk.T @ chunk


def own(clock: Clock) -> Floats:
    moments = Moments(clock.rows.dimension)
    for chunk in clock.chunks():
        moments.update(chunk)
    clock.go_on()
    transform, _ = Whitening.fit(moments, clock.rows.dimension)
    clock.stop()
    return transform.kernel


def own_with_trial(clock: Clock) -> Floats:
    split = SplitMoments(clock.rows.dimension)
    for chunk in clock.chunks():
        split.update(chunk)
    clock.go_on()
    transform, _ = Whitening.fit(split.whole(), clock.rows.dimension)
    split.trial(TransformSpec("whiten", clock.rows.dimension, 1, 1))
    clock.stop()
    return transform.kernel


def sklearn_full(clock: Clock) -> Floats:
    from sklearn.decomposition import PCA

    return sklearn_kernel(PCA(whiten=True, svd_solver="full"), clock)


def sklearn_eigh(clock: Clock) -> Floats:
    from sklearn.decomposition import PCA

    return sklearn_kernel(PCA(whiten=True, svd_solver="covariance_eigh"), clock)


def sklearn_kernel(pca: Any, clock: Clock) -> Floats:
    rows = clock.all_rows()
    pca.fit(rows)
    clock.stop()
    return np.asarray((pca.components_ / np.sqrt(pca.explained_variance_ * (1 - 1 / len(rows)))[:, None]).T)


def sklearn_incremental(clock: Clock) -> Floats:
    from sklearn.decomposition import IncrementalPCA

    pca = IncrementalPCA(whiten=True)
    for chunk in clock.chunks():
        pca.partial_fit(chunk)
    return np.asarray((pca.components_ / np.sqrt(pca.explained_variance_ * (1 - 1 / clock.rows.rows))[:, None]).T)


def faiss_pca(clock: Clock) -> Floats:
    import faiss

    rows = clock.all_rows()
    pca = faiss.PCAMatrix(rows.shape[1], rows.shape[1], -0.5)
    pca.max_points_per_d = len(rows)  # else it takes a sample
    pca.train(rows)
    clock.stop()
    return faiss.vector_to_array(pca.A).reshape(pca.d_out, pca.d_in).T * np.sqrt(len(rows))


def numpy_cov(clock: Clock) -> Floats:
    rows = clock.all_rows()
    eigenvalues, vectors = np.linalg.eigh(np.cov(rows, rowvar=False, bias=True))
    clock.stop()
    return np.asarray(vectors / np.sqrt(eigenvalues))


SIDES: dict[str, Callable[[Clock], Floats]] = {
    "retr": own,
    "retr, with rows held out": own_with_trial,
    "scikit-learn, covariance_eigh": sklearn_eigh,
    "scikit-learn, full": sklearn_full,
    "scikit-learn, incremental": sklearn_incremental,
    "FAISS PCAMatrix": faiss_pca,
    "numpy.cov": numpy_cov,
}


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


def measure(options: argparse.Namespace) -> dict[str, Any]:
    sides = {name: side for name, side in SIDES.items() if name not in options.skip}
    result: dict[str, dict[str, Any]] = {name: {"seconds": [], "ratio": [], "loss": {}} for name in sides}
    base: list[float] = []
    for mean in options.means:
        rows = Rows(options.rows, options.dimension, mean, options.chunk)
        covariance = rows.covariance()
        for turn in range(options.repeats if mean == options.means[0] else 1):
            clock, peak = Clock(rows), Peak()
            peak.start()
            product(clock)
            measure_mib = peak.stop()
            base.append(clock.seconds)
            for name, side in sides.items():
                clock, peak = Clock(rows), Peak()
                peak.start()
                try:
                    with np.errstate(divide="ignore"):
                        kernel = side(clock)
                except MemoryError:
                    result[name]["failed"] = "out of memory"
                    continue
                finally:
                    mebibytes = peak.stop() - measure_mib
                entry = result[name]
                entry["seconds"].append(clock.seconds)
                entry["ratio"].append(clock.seconds / base[-1])
                entry["extra_mib"] = max(mebibytes, entry.get("extra_mib", 0.0))
                entry["loss"][f"{mean:g}"] = lost = loss(kernel, covariance)
                print(
                    f"mean {mean:g}, {turn + 1}: {name}: {clock.seconds:.2f} s, x {entry['ratio'][-1]:.2f}, "
                    f"|W'CW - I| {shown(lost)}, {mebibytes:.0f} MiB",
                    file=sys.stderr,
                )
    for entry in result.values():
        for key in ("seconds", "ratio"):
            if values := entry[key]:
                entry[key] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {
        **machine(),
        **{key: getattr(options, key) for key in ("rows", "dimension", "chunk", "repeats", "means")},
        "measure": {"name": MEASURE, "seconds": statistics.median(base)},
        "sides": result,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=768)
    parser.add_argument("--chunk", type=int, default=8192, help="rows a chunk")
    parser.add_argument("--repeats", type=int, default=5, help="turns at the first mean; one turn at the others")
    parser.add_argument("--means", type=float, nargs="+", default=MEANS, help="norms of the mean")
    parser.add_argument("--skip", nargs="*", choices=list(SIDES), default=[])
    parser.add_argument("--output", type=Path, default=RESULTS.with_name("whiten.json"))
    options = parser.parse_args()
    result = measure(options)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{'':<32}{'s':>8}{'x':>8}{'MiB':>8}" + "".join(f"{f'mean {mean:g}':>12}" for mean in options.means))
    for name, row in result["sides"].items():
        if "failed" in row or not row["seconds"]:
            print(f"{name:<32}{row.get('failed', '')}")
            continue
        losses = "".join(f"{shown(row['loss'].get(f'{mean:g}')):>12}" for mean in options.means)
        print(
            f"{name:<32}{row['seconds']['median']:>8.2f}{row['ratio']['median']:>8.2f}{row['extra_mib']:>8.0f}{losses}"
        )


if __name__ == "__main__":
    main()
