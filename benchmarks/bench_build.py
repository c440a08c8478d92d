r"""Building an index: texts a second by stage and peak memory, beside a plain sentence-transformers + faiss script.

    python benchmarks/bench_build.py --corpus titles.txt --rows 5000 --repeats 5
    python benchmarks/bench_build.py --corpus titles.txt --repeats 1 --sides retr \
        --output benchmarks/results/titles.json

Both sides use the same weights, prompt and pooling, each in a process of its own, in turn, imports included. The last
rows of the file, which neither side indexes, are the queries whose neighbours are compared. Results go to
benchmarks/results/build.json.
Needs: pip install '.[bench]'.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

QUERIES, K = 200, 10
RESULTS = Path(__file__).parent / "results" / "build.json"
SIDES = ("retr", "retr --transform none", "sentence-transformers + faiss")


def run_retr(corpus: Path, queries: list[str], folder: Path, transform: str) -> dict[str, Any]:
    start = time.perf_counter()
    import retrieval

    index = retrieval.Index.build(corpus, folder / "index", transform=transform)
    seconds = time.perf_counter() - start
    hits = [[int(hit.doc_id) for hit in found] for found in index.search(queries, k=K)]
    stages = dict(index.manifest.build["seconds"])
    manifest = index.manifest
    taken = {name: manifest.encoder[name] for name in ("backend", "precision")}
    return {"seconds": seconds, "stages": stages, "hits": hits, "dimension": manifest.index["dimension"], **taken}


def run_peer(corpus: Path, queries: list[str], folder: Path) -> dict[str, Any]:
    """What a user would write: encode with the library's defaults, unit length, an exact index, the texts as JSON."""
    stages: dict[str, float] = {}
    start = last = time.perf_counter()

    def mark(name: str) -> None:
        nonlocal last
        stages[name], last = time.perf_counter() - last, time.perf_counter()

    import faiss
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    from retrieval.encoders.bundled import bundled_folder

    mark("import")
    texts = corpus.read_text(encoding="utf-8").splitlines()
    mark("read")
    transformer = Transformer(str(bundled_folder()), max_seq_length=512)
    model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_word_embedding_dimension(), "mean")])
    model.prompts = {"query": "query: "}
    mark("load")
    vectors = model.encode(texts, prompt_name="query", normalize_embeddings=True)
    mark("encode")
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    mark("index")
    faiss.write_index(index, str(folder / "vectors.faiss"))
    (folder / "texts.json").write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")
    mark("write")
    seconds = time.perf_counter() - start
    _, rows = index.search(model.encode(queries, prompt_name="query", normalize_embeddings=True), K)
    return {"seconds": seconds, "stages": stages, "hits": rows.tolist(), "dimension": vectors.shape[1]}


def child(side: str, corpus: Path, queries: Path) -> None:
    asked = queries.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        if side == SIDES[2]:
            result = run_peer(corpus, asked, Path(folder))
        else:
            result = run_retr(corpus, asked, Path(folder), "none" if side == SIDES[1] else "auto")
    # Of the child's own work: loading, encoding and searching, in KiB on Linux.
    result["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))


def overlap(one: list[list[int]], other: list[list[int]]) -> float:
    return statistics.mean(len(set(a) & set(b)) / K for a, b in zip(one, other, strict=True))


def machine() -> dict[str, Any]:
    names = ("retr", "torch", "openvino", "transformers", "sentence-transformers", "faiss-cpu", "numpy", "pyarrow")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "versions": {name: version(name) for name in names} | {"python": platform.python_version()},
        "cpu": cpu,
        "cores": os.cpu_count(),
    }


def measure(corpus: Path, rows: int | None, repeats: int, sides: list[str]) -> dict[str, Any]:
    lines = corpus.read_text(encoding="utf-8").splitlines()
    if rows is None:
        rows = len(lines)
    elif len(lines) < rows + QUERIES:
        sys.exit(f"{corpus} has {len(lines):,} lines, expected {rows + QUERIES:,} at least: give a smaller --rows")
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        part, queries = Path(folder) / "corpus.txt", Path(folder) / "queries.txt"
        part.write_text("\n".join(lines[:rows]) + "\n", encoding="utf-8")
        queries.write_text("\n".join(lines[-QUERIES:]) + "\n", encoding="utf-8")
        for repeat in range(repeats):
            for side in sides:
                command = [sys.executable, __file__, "--child", side, str(part), str(queries)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                results[side].append(json.loads(done.stdout.splitlines()[-1]))
                print(f"{repeat + 1}/{repeats} {side}: {results[side][-1]['seconds']:.1f} s", file=sys.stderr)
    peer = results.get(SIDES[2])
    table: dict[str, dict[str, Any]] = {}
    for side, runs in results.items():
        seconds = [run["seconds"] for run in runs]
        table[side] = {
            "seconds": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
            "texts_per_second": rows / statistics.median(seconds),
            "stages": {name: statistics.median(run["stages"][name] for run in runs) for name in runs[0]["stages"]},
            "encode_texts_per_second": rows / statistics.median(run["stages"]["encode"] for run in runs),
            "peak_mib": statistics.median(run["peak_mib"] for run in runs),
            "dimension": runs[0]["dimension"],
            **{name: runs[0][name] for name in ("backend", "precision") if name in runs[0]},
        }
        if peer:
            ratios = [other["seconds"] / one["seconds"] for one, other in zip(runs, peer, strict=True)]
            table[side]["ratio_to_peer"] = statistics.median(ratios)
            table[side][f"overlap@{K}_with_peer"] = overlap(runs[0]["hits"], peer[0]["hits"])
    return {**machine(), "corpus": corpus.name, "rows": rows, "repeats": repeats, "queries": QUERIES, "sides": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a text file, a document a line", required=True)
    parser.add_argument("--rows", type=int, help="the first rows of the corpus; without it: all")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    result = measure(options.corpus, options.rows, options.repeats, options.sides)
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{'':<32}{'texts/s':>9}{'x peer':>8}{'encode/s':>10}{'peak MiB':>10}{'overlap@10':>12}")
    for side, row in result["sides"].items():
        print(
            f"{side:<32}{row['texts_per_second']:>9.0f}{row.get('ratio_to_peer', math.nan):>8.2f}"
            f"{row['encode_texts_per_second']:>10.0f}{row['peak_mib']:>10.0f}"
            f"{row.get(f'overlap@{K}_with_peer', math.nan):>12.3f}"
        )
        print("  " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in row["stages"].items()))


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "--child":
        child(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
