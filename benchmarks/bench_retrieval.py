r"""Retrieval quality: known items among distractors, question to passage, query to title, by transform.

    python benchmarks/bench_retrieval.py --data data --distractors data/zhihu/titles.txt
    python benchmarks/bench_retrieval.py --data data --distractors data/zhihu/titles.txt --index indexes/titles \
        --backend torch --precision float32

What `retr eval --retrieval` measures, with the default model: LCQMC test with the titles as distractors, CMRC 2018 dev,
QBQTC test. Transforms are fitted on the documents that are searched, as `retr index` does. Search is exact, resamples
are seeded: figures differ between machines by the rounding of the encoder alone.
`--index` names an index of the distractors that the same encoder built: its raw embeddings are taken, not made again.
Results go to benchmarks/results/retrieval.json, task by task; tasks that are not measured keep what is there.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from bench_build import RESULTS, machine
from numpy.typing import NDArray

from retrieval.cli.output import TerminalProgress
from retrieval.cli.systems import Models
from retrieval.encoders.base import Encoder, TextKind
from retrieval.encoders.catalog import DEFAULT_MODEL
from retrieval.evaluation.ranking_report import as_json, as_text
from retrieval.evaluation.retrieval import CUTOFFS, DEPTH, Model, evaluate_retrieval, fitting_of
from retrieval.evaluation.task_sets import make_retrieval_task
from retrieval.index.documents import Documents
from retrieval.index.embeddings import EmbeddingShards, key_of_folder
from retrieval.index.folder import DOCUMENTS, EMBEDDINGS
from retrieval.transforms.base import Transform

TRANSFORMS = {
    "lcqmc": ["none", "rotate-256", "whiten-256", "whiten-128", "whiten-64", "rotate-128", "rotate-64"],
    "cmrc2018": ["none", "rotate-256", "whiten-256"],
    "qbqtc": ["none", "rotate-256", "whiten-256"],
}


class WithKnown:
    """An encoder that takes the embeddings of an index's documents from there."""

    def __init__(self, encoder: Encoder, index: Path) -> None:
        key = key_of_folder(index / EMBEDDINGS)
        if key is None or key.encoder_fingerprint != encoder.fingerprint:
            sys.exit(f"{index} was built by another encoder: leave out --index, or give its --backend and --precision")
        self._encoder = encoder
        shards = EmbeddingShards(index / EMBEDDINGS, key)
        self._embeddings = np.concatenate(list(shards.chunks()))
        batches = Documents(index / DOCUMENTS).texts(0, key.rows)
        self._row = {text: first + place for first, texts in batches for place, text in enumerate(texts)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] = lambda n: None
    ) -> NDArray[np.float32]:
        if kind == "query" and self.settings.query_prompt != self.settings.document_prompt:
            return self._encoder.encode(texts, kind, on_batch)
        embeddings = np.empty((len(texts), self.dimension), np.float32)
        known = [place for place, text in enumerate(texts) if text in self._row]
        other = [place for place, text in enumerate(texts) if text not in self._row]
        embeddings[known] = self._embeddings[[self._row[texts[place]] for place in known]]
        on_batch(len(known))
        embeddings[other] = self._encoder.encode([texts[place] for place in other], kind, on_batch)
        return embeddings


def with_known(model: Model, index: Path | None) -> Model:
    if index is None:
        return model

    def load(symmetric: bool) -> tuple[Encoder, Transform | None, str]:
        encoder, transform, name = model.load(symmetric)
        return WithKnown(encoder, index), transform, name

    return replace(model, load=load)


def measure(options: argparse.Namespace) -> None:
    progress = TerminalProgress()
    for name in options.tasks:
        start = time.perf_counter()
        task = make_retrieval_task(
            name, folder=options.data, distractors=options.distractors if name == "lcqmc" else None
        )
        models = Models(None, TRANSFORMS[name], "cpu", options.backend, options.precision, False, progress)
        model = with_known(models.model(options.model, None), options.index if name == "lcqmc" else None)
        (results,) = evaluate_retrieval([(task, fitting_of(task, None, None))], [model], progress=progress)
        print(as_text(results), file=sys.stderr)
        found = [as_json(result) for result in results]
        for result in found:
            # Whose files they are is known by their md5; the machine's paths, and other people's texts, stay out.
            result["sources"] = [
                {"name": Path(source["path"]).name, "md5": source["md5"]} for source in result["sources"]
            ]
            result["duplicates"] = {what: len(texts) for what, texts in result["duplicates"].items()}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{name}: {time.perf_counter() - start:.0f} s, peak {peak:,.0f} MiB", file=sys.stderr)
        before = json.loads(options.output.read_text(encoding="utf-8")) if options.output.exists() else {"tasks": {}}
        result = {**machine(), "cutoffs": CUTOFFS, "depth": DEPTH, "tasks": {**before["tasks"], name: found}}
        options.output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the data sets", required=True)
    parser.add_argument("--distractors", type=Path, help="a text file, a title a line", required=True)
    parser.add_argument("--tasks", nargs="+", choices=list(TRANSFORMS), default=list(TRANSFORMS))
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--index", type=Path, help="an index of the distractors, whose embeddings are taken")
    parser.add_argument("--output", type=Path, default=RESULTS.with_name("retrieval.json"))
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
