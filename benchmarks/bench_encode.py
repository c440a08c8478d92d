r"""Encoding: texts a second by backend and precision beside SentenceTransformer.encode, and what each loses.

    python benchmarks/bench_encode.py --lcqmc data/lcqmc --titles titles.txt
    python benchmarks/bench_encode.py --lcqmc data/lcqmc --titles titles.txt --sides "openvino bf16" "torch float32"

Speed: the first 10,000 sentences of LCQMC test and the first 10,000 titles in their natural order, whole calls from
texts to vectors, in one process, side after side and round after round; then single texts, one call each. The peer is
sentence-transformers with its defaults on the same weights and prompt. Loss, against torch float32: the lowest cosine
over those texts, as encoded and after whiten-256; and the Spearman correlation on all of LCQMC test, as encoded and
after the transforms, which are fitted on the sentences of LCQMC dev.
Results go to benchmarks/results/encode.json. Needs: pip install '.[bench,onnx]'.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_build import RESULTS, machine
from numpy.typing import NDArray

from retrieval.encoders.base import Encoder
from retrieval.encoders.bundled import bundled_folder
from retrieval.encoders.load import load_encoder, load_to_build, resolve_settings
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.moments import Moments
from retrieval.transforms.spec import parse_transform
from retrieval.transforms.whitening import Whitening

PEER, REFERENCE, DEFAULT = "sentence-transformers", "torch float32", "default"
GRAPHS = ("openvino float32", "openvino bf16", "openvino int8", "onnx float32", "onnx int8")
TRANSFORMS = ("rotate-256", "whiten-256")
SINGLES, WARM_UP = 200, 256
Vectors = NDArray[np.float32]
Encode = Callable[[list[str]], Vectors]


def load(side: str) -> Encoder:
    settings = resolve_settings()
    if side == REFERENCE:
        return load_encoder(settings, "cpu")
    backend, precision = ("auto", "auto") if side == DEFAULT else side.split()
    return load_to_build(settings, "cpu", backend, precision, lambda line: print(line, file=sys.stderr))


def peer() -> Encode:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    transformer = Transformer(str(bundled_folder()), max_seq_length=512)
    model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_word_embedding_dimension(), "mean")])
    model.prompts = {"query": "query: "}
    return lambda texts: np.asarray(model.encode(texts, prompt_name="query", show_progress_bar=False))


def seconds(encode: Encode, texts: list[str]) -> float:
    start = time.perf_counter()
    encode(texts)
    return time.perf_counter() - start


def pairs(path: Path) -> tuple[list[str], list[str], list[int]]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [row[0] for row in rows], [row[1] for row in rows], [int(row[2]) for row in rows]


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def lowest_cosine(one: Vectors, other: Vectors) -> float:
    return float((unit_vectors(one, None) * unit_vectors(other, None)).sum(1).min())


class Quality:
    """What an encoder is worth on LCQMC, and how near its vectors are to the reference's."""

    def __init__(self, lcqmc: Path, texts: list[str], reference: Encoder) -> None:
        self.first, self.second, self.labels = pairs(lcqmc / "test.txt")
        dev = pairs(lcqmc / "dev.txt")
        self.dev = list(dict.fromkeys([*dev[0], *dev[1]]))
        self.texts = texts
        self.reference = reference.encode(texts)
        self.whitening = self._fit(reference.encode(self.dev), "whiten-256")

    @staticmethod
    def _fit(embeddings: Vectors, name: str) -> Whitening:
        moments, spec = Moments(embeddings.shape[1]), parse_transform(name)
        moments.update(embeddings)
        assert spec is not None
        return Whitening.fit(moments, spec.m, beta=spec.beta, gamma=spec.gamma)[0]

    def measure(self, encoder: Encoder) -> dict[str, Any]:
        from scipy.stats import spearmanr

        own = encoder.encode(self.texts)
        distinct = list(dict.fromkeys([*self.first, *self.second]))
        place = {text: row for row, text in enumerate(distinct)}
        test, dev = encoder.encode(distinct), encoder.encode(self.dev)
        scores = {}
        for name in ("raw", *TRANSFORMS):
            vectors = unit_vectors(test, None if name == "raw" else self._fit(dev, name))
            one, other = ([place[text] for text in side] for side in (self.first, self.second))
            cosine = (vectors[one] * vectors[other]).sum(1)
            scores[name] = 100 * float(spearmanr(cosine, self.labels).statistic)
        whitened = (self.whitening.transform(vectors) for vectors in (own, self.reference))
        return {
            "lowest_cosine": {"raw": lowest_cosine(own, self.reference), "whiten-256": lowest_cosine(*whitened)},
            "lcqmc_spearman": scores,
        }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    first, second, _ = pairs(options.lcqmc / "test.txt")
    sentences = [text for pair in zip(first, second, strict=True) for text in pair]
    titles = options.titles.read_text(encoding="utf-8").splitlines()
    corpora = {"lcqmc": sentences[: options.texts], "titles": titles[: options.texts]}
    encoders = {side: load(side) for side in options.sides}
    sides: dict[str, Encode] = {PEER: peer()} | {side: encoder.encode for side, encoder in encoders.items()}
    times: dict[str, dict[str, list[float]]] = {side: {} for side in sides}
    for encode in sides.values():
        encode(titles[-WARM_UP:])
    for turn in range(options.repeats):
        for side, encode in sides.items():
            for name, texts in corpora.items():
                times[side].setdefault(name, []).append(seconds(encode, texts))
            single = [seconds(encode, [text]) for text in sentences[-SINGLES:]]
            times[side].setdefault("single", []).append(statistics.median(single))
            rates = ", ".join(f"{name} {options.texts / times[side][name][-1]:.0f}/s" for name in corpora)
            print(f"{turn + 1}/{options.repeats} {side}: {rates}", file=sys.stderr)
    reference = encoders.get(REFERENCE) or load(REFERENCE)
    quality = Quality(options.lcqmc, corpora["lcqmc"] + corpora["titles"], reference)
    table: dict[str, dict[str, Any]] = {}
    for side, measured in times.items():
        table[side] = {
            "texts_per_second": {name: spread([options.texts / one for one in measured[name]]) for name in corpora},
            "single_milliseconds": spread([1000 * one for one in measured["single"]]),
            "times_faster_than_peer": {
                name: spread([other / one for one, other in zip(measured[name], times[PEER][name], strict=True)])
                for name in measured
            },
        }
        if side in encoders:
            encoder = encoders[side]
            table[side] |= {"backend": encoder.backend, "precision": encoder.precision, **quality.measure(encoder)}
            print(f"{side}: {table[side]['lcqmc_spearman']}", file=sys.stderr)
    return {**machine(), "texts": options.texts, "repeats": options.repeats, "singles": SINGLES, "sides": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lcqmc", type=Path, help="the folder of LCQMC's dev.txt and test.txt", required=True)
    parser.add_argument("--titles", type=Path, help="a text file, a title a line", required=True)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sides", nargs="+", choices=(DEFAULT, REFERENCE, *GRAPHS), default=[REFERENCE, *GRAPHS])
    parser.add_argument("--output", type=Path, default=RESULTS.with_name("encode.json"))
    options = parser.parse_args()
    result = measure(options)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(
        f"{'':<24}{'LCQMC/s':>9}{'titles/s':>9}{'one, ms':>9}{'x LCQMC':>9}{'x titles':>9}{'x one':>7}"
        f"{'cosine':>10}{'whitened':>10}{'rho':>7}{'rotate':>8}{'whiten':>8}"
    )
    for side, row in result["sides"].items():
        rates, times = row["texts_per_second"], row["times_faster_than_peer"]
        line = (
            f"{side:<24}{rates['lcqmc']['median']:>9.0f}{rates['titles']['median']:>9.0f}"
            f"{row['single_milliseconds']['median']:>9.2f}{times['lcqmc']['median']:>9.2f}"
            f"{times['titles']['median']:>9.2f}{times['single']['median']:>7.2f}"
        )
        if "lowest_cosine" in row:
            cosine, rho = row["lowest_cosine"], row["lcqmc_spearman"]
            line += f"{cosine['raw']:>10.6f}{cosine['whiten-256']:>10.6f}"
            line += f"{rho['raw']:>7.2f}{rho['rotate-256']:>8.2f}{rho['whiten-256']:>8.2f}"
        print(line)


if __name__ == "__main__":
    main()
