"""One query as a whole cold process, beside a sentence-transformers + faiss script, and warm queries in one process.

    python benchmarks/bench_query.py --corpus titles.txt --rows 2000 --repeats 7

The corpus is indexed once for each backend; every measured process then loads what it needs, answers one query and
ends. Hits are compared with the peer's: never speed without quality. Results go to benchmarks/results/query.json.
Needs: pip install '.[bench,onnx]'.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_build import RESULTS, machine

K = 10
BACKENDS = {"retr, torch": ("torch", "float32"), "retr, onnx int8": ("onnx", "int8")}
PEER = "sentence-transformers + faiss"
PEER_SCRIPT = """
import json, sys
import faiss
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
folder, weights, query = sys.argv[1:]
transformer = Transformer(weights, max_seq_length=512)
model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_word_embedding_dimension(), "mean")])
index = faiss.read_index(folder + "/vectors.faiss")
texts = json.load(open(folder + "/texts.json", encoding="utf-8"))
_, rows = index.search(model.encode(["query: " + query], normalize_embeddings=True), 10)
for row in rows[0]:
    print(json.dumps({"id": str(row), "text": texts[row]}, ensure_ascii=False))
"""


def build(corpus: Path, folder: Path) -> dict[str, list[str]]:
    """Index the corpus for every side; the command of each, to which a query is appended."""
    import faiss

    import retrieval
    from retrieval.encoders.bundled import bundled_folder
    from retrieval.index.documents import Documents

    commands = {}
    for side, (backend, precision) in BACKENDS.items():
        target = folder / backend
        retrieval.Index.build(corpus, target, transform="none", backend=backend, precision=precision)
        retr = [sys.executable, "-m", "retrieval.cli.main", "query", "-i", str(target), "-k", str(K), "--json", "-q"]
        commands[side] = retr
    peer = folder / "peer"
    peer.mkdir()
    faiss.write_index(faiss.read_index(str(folder / "torch" / "vectors.faiss")), str(peer / "vectors.faiss"))
    documents = Documents(folder / "torch" / "documents.arrow")
    texts = [text for _, part in documents.texts(0, len(documents)) for text in part]
    (peer / "texts.json").write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")
    commands[PEER] = [sys.executable, "-c", PEER_SCRIPT, str(peer), str(bundled_folder())]
    return commands


def ask(command: list[str], query: str) -> tuple[float, list[str]]:
    start = time.perf_counter()
    done = subprocess.run([*command, query], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    return seconds, [json.loads(line)["id"] for line in done.stdout.split("\n") if line.startswith("{")]


def warm(folder: Path, queries: list[str]) -> dict[str, float]:
    """Milliseconds of a search of one query in Python, everything loaded: median, by backend."""
    import retrieval

    result = {}
    for side, (backend, _) in BACKENDS.items():
        index = retrieval.Index.open(folder / backend)
        index.search(queries[0])
        times = []
        for query in queries:
            start = time.perf_counter()
            index.search(query, K)
            times.append(1000 * (time.perf_counter() - start))
        result[side] = statistics.median(times)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a text file, a document a line", required=True)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS.with_name("query.json"))
    options = parser.parse_args()
    lines = options.corpus.read_text(encoding="utf-8").splitlines()
    queries = lines[-options.repeats - 1 :]  # not indexed; the first is a warm-up
    runs: dict[str, list[tuple[float, list[str]]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        part = folder / "corpus.txt"
        part.write_text("\n".join(lines[: options.rows]) + "\n", encoding="utf-8")
        commands = build(part, folder)
        for query in queries:
            for side, command in commands.items():
                runs.setdefault(side, []).append(ask(command, query))
        warmed = warm(folder, queries)
    table: dict[str, dict[str, Any]] = {}
    for side, measured in runs.items():
        seconds = [second for second, _ in measured[1:]]
        ratios = [other / one for one, (other, _) in zip(seconds, runs[PEER][1:], strict=True)]
        same = [len(set(hits) & set(others)) / K for (_, hits), (_, others) in zip(measured, runs[PEER], strict=True)]
        table[side] = {
            "seconds": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
            "times_faster_than_peer": statistics.median(ratios),
            f"overlap@{K}_with_peer": statistics.mean(same),
            "warm_milliseconds": warmed.get(side),
        }
    result = {
        **machine(),
        "corpus": options.corpus.name,
        "rows": options.rows,
        "repeats": options.repeats,
        "sides": table,
    }
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{'':<32}{'cold, s':>9}{'x faster':>10}{'overlap@10':>12}{'warm, ms':>10}")
    for side, row in table.items():
        milliseconds = row["warm_milliseconds"]
        print(
            f"{side:<32}{row['seconds']['median']:>9.2f}{row['times_faster_than_peer']:>10.2f}"
            f"{row[f'overlap@{K}_with_peer']:>12.3f}" + (f"{milliseconds:>10.1f}" if milliseconds else "")
        )


if __name__ == "__main__":
    main()
