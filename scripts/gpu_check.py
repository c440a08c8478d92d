"""Check the encoder and the index on a GPU against the CPU: a few minutes.

    python scripts/gpu_check.py
    python scripts/gpu_check.py --corpus titles.txt --model bge-base-zh
    python scripts/gpu_check.py --device cpu     # a dry run: the CPU stands in for the GPU

A line a check: what was measured, what was expected, ok or FAILED. Exits with 1 if any failed, or if there is no GPU.
The texts are those of the sample corpus and its pairs, or of --corpus; every tenth is a query and is not indexed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

import retrieval
from retrieval.corpus.reader import Corpus, CorpusOptions
from retrieval.encoders.base import Encoder
from retrieval.encoders.catalog import DEFAULT_MODEL
from retrieval.encoders.device import pick_device
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.errors import RetrError
from retrieval.index.vectors import VectorIndex
from retrieval.sample import corpus_file, pairs_file
from retrieval.transforms.apply import unit_vectors

# float32: sums in another order, through 12 to 24 layers. bf16: 8 bits of mantissa.
LOWEST_COSINE = {"float32": 0.99999, "bf16": 0.999}
# A tenth neighbour may change places with the eleventh where their scores are equal to the last bits.
LOWEST_OVERLAP = 0.99
# FAISS may let a GPU's matrix units round what they multiply.
LARGEST_SCORE_DIFFERENCE = 1e-4
# k-means from the same start takes other turns where sums are rounded otherwise.
LARGEST_RECALL_LOSS = 0.01
NEIGHBOURS = 10
TIMED_RUNS = 3


class Checks:
    """What was checked so far, printed as it goes."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.count = 0

    def add(self, name: str, ok: bool, measured: str, expected: str) -> None:
        self.count += 1
        print(f"{name}: {measured}; expected {expected}: {'ok' if ok else 'FAILED'}", flush=True)
        if not ok:
            self.failed.append(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu for a dry run (%(default)s)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a transformer (%(default)s)")
    parser.add_argument("--corpus", type=Path, help="as retr index takes it; the sample corpus if left out")
    parser.add_argument("--texts", type=int, default=4000, help="take no more of them, at random (%(default)s)")
    options = parser.parse_args()
    if options.texts < 20:
        parser.error("--texts is less than 20: nothing would be held out to search with")
    checks = Checks()
    try:
        device = pick_device(options.device)
        run(checks, device, options.model, read_texts(options.corpus, options.texts))
    except RetrError as error:
        sys.exit(str(error))
    if device.type == "cpu":
        print("dry run: the CPU was compared with itself, and nothing is known of any GPU")
    if checks.failed:
        sys.exit(f"{len(checks.failed)} of {checks.count} checks FAILED: {', '.join(checks.failed)}")
    print(f"all {checks.count} checks passed")


def run(checks: Checks, device: torch.device, model: str, texts: list[str]) -> None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    print(f"{name} against the CPU with {torch.get_num_threads()} threads, torch {torch.__version__}, {model}")
    print(f"{len(texts):,} distinct texts of {np.mean([len(text) for text in texts]):.0f} characters")
    embeddings = check_encoder(checks, device, model, texts)
    check_index(checks, device, model, texts)
    check_faiss(checks, device, embeddings)
    if device.type == "cuda":
        print(f"GPU memory: at most {torch.cuda.max_memory_allocated(device) / 2**20:,.0f} MiB")


def read_texts(corpus: Path | None, most: int) -> list[str]:
    with contextlib.ExitStack() as files:
        if corpus is not None:
            parts = [Corpus([corpus], CorpusOptions(sample=most))]
        else:
            pairs = files.enter_context(pairs_file())
            parts = [Corpus([files.enter_context(corpus_file())])]
            parts += [Corpus([pairs], CorpusOptions(text_column=column)) for column in ("sentence1", "sentence2")]
        texts = [text for part in parts for batch in part.batches() for text in batch.column("text").to_pylist()]
    return list(dict.fromkeys(texts))[:most]


def check_encoder(checks: Checks, device: torch.device, model: str, texts: list[str]) -> NDArray[np.float32]:
    """The embeddings of the CPU, float32, shape (n, d)."""
    settings = resolve_settings(model)
    expected, seconds = timed(load_encoder(settings, "cpu"), texts, runs=1)
    print(f"cpu float32: {len(texts) / seconds:,.0f} texts/s")
    for precision, lowest in LOWEST_COSINE.items():
        embeddings, own_seconds = timed(load_encoder(settings, str(device), precision=precision), texts, TIMED_RUNS)
        cosine = cosines(embeddings, expected).min()
        mean = expected.mean(axis=0)
        centred = cosines(embeddings - mean, expected - mean).min()
        checks.add(
            f"{device} {precision} embeddings",
            bool(cosine >= lowest),
            f"lowest cosine to the CPU's float32 {cosine:.7f} (about the mean: {centred:.7f})",
            f"at least {lowest}",
        )
        speed = f"{len(texts) / own_seconds:,.0f} texts/s, {seconds / own_seconds:.2f} times the CPU's float32"
        if device.type == "cpu":
            print(f"{device} {precision} speed: {speed}; not judged in a dry run")
        else:
            checks.add(f"{device} {precision} speed", own_seconds <= seconds, speed, "at least 1 time")
    return expected


def timed(encoder: Encoder, texts: list[str], runs: int) -> tuple[NDArray[np.float32], float]:
    """The embeddings, and the median of the seconds of so many runs after a first few texts."""
    encoder.encode(texts[:64])
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        embeddings = encoder.encode(texts)  # numpy's by now: a GPU has nothing left to do
        seconds.append(time.perf_counter() - start)
    return embeddings, statistics.median(seconds)


def cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64, shape (n,): float32 sums would be wrong by as much as is asked about."""
    lengths = np.linalg.norm(first.astype(np.float64), axis=1) * np.linalg.norm(second.astype(np.float64), axis=1)
    products: NDArray[np.float64] = np.einsum("nd,nd->n", first, second, dtype=np.float64)
    return products / lengths


def check_index(checks: Checks, device: torch.device, model: str, texts: list[str]) -> None:
    queries, documents = texts[::10], [text for place, text in enumerate(texts) if place % 10]
    found, counts, made = [], [], []
    with tempfile.TemporaryDirectory() as temporary:
        corpus = Path(temporary) / "corpus.jsonl"
        lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in documents]
        corpus.write_text("".join(lines), encoding="utf-8")
        for place, where in enumerate((str(device), "cpu")):
            folder = Path(temporary) / f"index-{place}"
            index = retrieval.Index.build(
                corpus, folder, model=model, device=where, backend="torch", precision="float32"
            )
            counts.append(len(index))
            made.append(f"{index.manifest.encoder['precision']}/{index.manifest.encoder['backend']}")
            found.append([{hit.doc_id for hit in hits} for hits in index.search(queries, k=NEIGHBOURS)])
    overlap = np.mean([len(own & other) / max(1, len(other)) for own, other in zip(*found, strict=True)])
    checks.add(
        "index, neighbours",
        bool(overlap >= LOWEST_OVERLAP),
        f"{overlap:.4f} of the {NEIGHBOURS} nearest to {len(queries):,} held-out queries are the same",
        f"at least {LOWEST_OVERLAP}",
    )
    checks.add(
        "index, documents",
        counts == [len(documents)] * 2,
        f"{counts[0]:,} from {device}, {counts[1]:,} from the CPU",
        f"{len(documents):,}",
    )
    wanted = "float32/torch"
    checks.add("index, manifests", made == [wanted] * 2, " and ".join(made), wanted)


def check_faiss(checks: Checks, device: torch.device, embeddings: NDArray[np.float32]) -> None:
    name = "faiss on a GPU"
    if not hasattr(faiss, "StandardGpuResources"):
        print(f"{name}: skipped: faiss-cpu")
        return
    if device.type != "cuda" or faiss.get_num_gpus() == 0:
        print(f"{name}: skipped: {'a dry run' if device.type != 'cuda' else 'this faiss-gpu sees no GPU'}")
        return
    vectors = unit_vectors(embeddings, None)
    queries, documents = vectors[::10], np.delete(vectors, np.s_[::10], axis=0)
    exact = filled("flat", documents, "cpu")
    expected, truth = exact.search(queries, NEIGHBOURS)
    exact.search_on(str(device))
    scores, _ = exact.search(queries, NEIGHBOURS)
    difference = float(np.abs(scores - expected).max())
    checks.add(
        f"{name}, flat",
        difference <= LARGEST_SCORE_DIFFERENCE,
        f"largest difference of a score {difference:.1e}",
        f"at most {LARGEST_SCORE_DIFFERENCE:.0e}",
    )
    for kind in ("ivf", "ivf-pqfs"):
        found = []
        for where in (str(device), "cpu"):
            index = filled(kind, documents, where)
            with tempfile.TemporaryDirectory() as folder:  # what is saved has to open and answer on a CPU
                index.save(Path(folder) / "vectors.faiss")
                rows = VectorIndex.load(Path(folder) / "vectors.faiss", mmap=False).search(queries, NEIGHBOURS)[1]
            found.append(float((rows[:, :, None] == truth[:, None, :]).any(axis=1).mean()))
        checks.add(
            f"{name}, {kind} trained there",
            found[0] >= found[1] - LARGEST_RECALL_LOSS,
            f"recall@{NEIGHBOURS} {found[0]:.3f}, trained on the CPU {found[1]:.3f}",
            f"at most {LARGEST_RECALL_LOSS} less",
        )


def filled(kind: str, documents: NDArray[np.float32], device: str) -> VectorIndex:
    index = VectorIndex(documents.shape[1], kind, rows=len(documents))
    index.train(documents, device)
    index.add(documents)
    return index


if __name__ == "__main__":
    main()
