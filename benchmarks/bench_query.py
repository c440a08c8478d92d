r"""One query as a whole cold process, beside a sentence-transformers + faiss script, and warm queries in one process.

    python benchmarks/bench_query.py --corpus titles.txt --rows 100000
    python benchmarks/bench_query.py --corpus titles.txt --rows 100000 --model all-MiniLM-L6-v2 \
        --output benchmarks/results/query-wordpiece.json

The corpus is indexed once for each side (rotate-256); every measured process then loads what it needs, answers one
query and ends, side after side and round after round. The peer searches the first side's vectors; it encodes the query
with the same weights, prompt and pooling, and applies the same transform. The queries are the corpus's last lines,
which no side indexes, and hits are compared with the peer's: never speed without quality.
Results go to benchmarks/results/query.json.
Needs: pip install '.[bench,onnx]'.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench_build import RESULTS, machine

K, WARM = 10, 200
SIDES = {"retr": ("auto", "auto"), "retr, onnx float32": ("onnx", "float32"), "retr, torch": ("torch", "float32")}
PEER = "sentence-transformers + faiss"
PEER_MODEL = """
def load(weights, prompt):
    from sentence_transformers import SentenceTransformer
    if prompt:  # a folder without modules.json
        from sentence_transformers.models import Pooling, Transformer
        transformer = Transformer(weights, max_seq_length=512)
        model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_word_embedding_dimension(), "mean")])
    else:
        model = SentenceTransformer(weights)
    return lambda texts: model.encode(
        [prompt + text for text in texts], show_progress_bar=False
    )
"""
PEER_QUERY = """
import json, sys
import faiss, numpy
folder, weights, prompt, query = sys.argv[1:]
encode = load(weights, prompt)
index = faiss.read_index(folder + "/vectors.faiss")
texts = json.load(open(folder + "/texts.json", encoding="utf-8"))
transform = numpy.load(folder + "/transform.npz")
vectors = (encode([query]) - transform["mean"]) @ transform["kernel"]
vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
_, rows = index.search(vectors, 10)
for row in rows[0]:
    print(json.dumps({"id": str(row), "text": texts[row]}, ensure_ascii=False))
"""


def build(corpus: Path, folder: Path, sides: list[str], model: str) -> dict[str, list[str]]:
    """Index the corpus for every side; the command of each, to which a query is appended."""
    import retrieval
    from retrieval.encoders.bundled import bundled_folder
    from retrieval.encoders.catalog import DEFAULT_MODEL

    commands = {}
    for side in sides:
        backend, precision = SIDES[side]
        index = retrieval.Index.build(
            corpus, folder / side, model=model, transform="rotate-256", backend=backend, precision=precision
        )
        encoder = index.manifest.encoder
        seconds = index.manifest.build["seconds"]["encode"]
        print(f"{side}: {encoder['backend']} {encoder['precision']}, encoded in {seconds:.0f} s", file=sys.stderr)
        retr = Path(sys.executable).with_name("retr")
        commands[side] = [str(retr), "query", "-i", str(folder / side), "-k", str(K), "--json", "-q"]
    weights, prompt = (str(bundled_folder()), "query: ") if model == DEFAULT_MODEL else (model, "")
    (folder / PEER).mkdir(exist_ok=True)
    shutil.copyfile(folder / sides[0] / "vectors.faiss", folder / PEER / "vectors.faiss")
    transform = retrieval.Index.open(folder / sides[0]).transform
    assert transform is not None
    np.savez(folder / PEER / "transform.npz", mean=transform.mean, kernel=transform.kernel)
    texts = corpus.read_text(encoding="utf-8").splitlines()
    (folder / PEER / "texts.json").write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")
    commands[PEER] = [sys.executable, "-c", PEER_MODEL + PEER_QUERY, str(folder / PEER), weights, prompt]
    return commands


def ask(command: list[str], query: str) -> tuple[float, list[str]]:
    start = time.perf_counter()
    done = subprocess.run([*command, query], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    return seconds, [json.loads(line)["id"] for line in done.stdout.split("\n") if line.startswith("{")]


def warm(folder: Path, queries: list[str]) -> dict[str, float]:
    """Milliseconds of a search of one query in Python, all loaded, and of its search for neighbours alone: medians."""
    import retrieval
    from retrieval.index.vectors import VectorIndex

    index, vectors = retrieval.Index.open(folder), VectorIndex.load(folder / "vectors.faiss")
    unit = np.full((1, vectors.dimension), vectors.dimension**-0.5, dtype=np.float32)
    times: dict[str, list[float]] = {"warm_milliseconds": [], "search_milliseconds": []}
    for query in queries:
        start = time.perf_counter()
        index.search(query, K)
        middle = time.perf_counter()
        vectors.search(unit, K)
        times["warm_milliseconds"].append(1000 * (middle - start))
        times["search_milliseconds"].append(1000 * (time.perf_counter() - middle))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    lines = options.corpus.read_text(encoding="utf-8").splitlines()
    queries = lines[-options.repeats - 1 :]  # the first is a warm-up
    runs: dict[str, list[tuple[float, list[str]]]] = {}
    with contextlib.nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "corpus.txt"
        part.write_text("\n".join(lines[: options.rows]) + "\n", encoding="utf-8")
        commands = build(part, folder, options.sides, options.model)
        for query in queries:
            for side, command in commands.items():
                runs.setdefault(side, []).append(ask(command, query))
        warmed = {side: warm(folder / side, lines[-WARM:]) for side in options.sides}
    bare = [ask([sys.executable, "-c", "import numpy"], query)[0] for query in queries]
    table: dict[str, dict[str, Any]] = {}
    for side, measured in runs.items():
        seconds = [second for second, _ in measured[1:]]
        ratios = [other / one for one, (other, _) in zip(seconds, runs[PEER][1:], strict=True)]
        same = [len(set(hits) & set(others)) / K for (_, hits), (_, others) in zip(measured, runs[PEER], strict=True)]
        table[side] = {
            "seconds": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
            "times_faster_than_peer": statistics.median(ratios),
            f"overlap@{K}_with_peer": statistics.mean(same),
            **warmed.get(side, {}),
        }
    return {
        **machine(),
        "corpus": options.corpus.name,
        "model": Path(options.model).name,
        "rows": options.rows,
        "repeats": options.repeats,
        "seconds_of_import_numpy": statistics.median(bare),
        "sides": table,
    }


def main() -> None:
    from retrieval.encoders.catalog import DEFAULT_MODEL

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a text file, a document a line", required=True)
    parser.add_argument(
        "--model", help="a sentence-transformers folder; without it: the default", default=DEFAULT_MODEL
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=["retr"])
    parser.add_argument("--folder", type=Path, help="keep the indexes here: another run encodes nothing again")
    parser.add_argument("--output", type=Path, default=RESULTS.with_name("query.json"))
    options = parser.parse_args()
    result = measure(options)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"import numpy alone: {result['seconds_of_import_numpy']:.2f} s")
    print(f"{'':<32}{'cold, s':>9}{'x faster':>10}{'overlap@10':>12}{'warm, ms':>10}")
    for side, row in result["sides"].items():
        milliseconds = row.get("warm_milliseconds")
        print(
            f"{side:<32}{row['seconds']['median']:>9.2f}{row['times_faster_than_peer']:>10.2f}"
            f"{row[f'overlap@{K}_with_peer']:>12.3f}"
            + (f"{milliseconds:>10.1f} ({row['search_milliseconds']:.1f} of it search)" if milliseconds else "")
        )


if __name__ == "__main__":
    main()
