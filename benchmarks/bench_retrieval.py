r"""Retrieval quality: known items among distractors, question to passage, query to title, by transform.

    python benchmarks/bench_retrieval.py --data data --distractors data/zhihu/titles.txt

What `retr eval --retrieval` measures, with the default model: LCQMC test with the titles as distractors, CMRC 2018 dev,
QBQTC test. Transforms are fitted on the documents that are searched, as `retr index` does. Search is exact, resamples
are seeded: figures differ between machines by the rounding of the encoder alone.
Results go to benchmarks/results/retrieval.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from bench_build import RESULTS, machine

from retrieval.cli.output import TerminalProgress
from retrieval.cli.systems import Models
from retrieval.encoders.catalog import DEFAULT_MODEL
from retrieval.evaluation.ranking_report import as_json, as_text
from retrieval.evaluation.retrieval import CUTOFFS, DEPTH, evaluate_retrieval, fitting_of
from retrieval.evaluation.tasks import make_retrieval_task

TRANSFORMS = {
    "lcqmc": ["none", "rotate-256", "whiten-256", "whiten-128", "whiten-64", "rotate-128", "rotate-64"],
    "cmrc2018": ["none", "rotate-256", "whiten-256"],
    "qbqtc": ["none", "rotate-256", "whiten-256"],
}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    progress = TerminalProgress()
    found: dict[str, list[dict[str, Any]]] = {}
    for name in options.tasks:
        start = time.perf_counter()
        task = make_retrieval_task(
            name, folder=options.data, distractors=options.distractors if name == "lcqmc" else None
        )
        models = Models(None, TRANSFORMS[name], "cpu", options.backend, options.precision, False, progress)
        model = models.model(options.model, None)
        (results,) = evaluate_retrieval([(task, fitting_of(task, None, None))], [model], progress=progress)
        print(as_text(results), file=sys.stderr)
        found[name] = [as_json(result) for result in results]
        for result in found[name]:
            # Whose files they are is known by their md5; the machine's paths, and other people's texts, stay out.
            result["sources"] = [
                {"name": Path(source["path"]).name, "md5": source["md5"]} for source in result["sources"]
            ]
            result["duplicates"] = {what: len(texts) for what, texts in result["duplicates"].items()}
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**machine(), "cutoffs": CUTOFFS, "depth": DEPTH, "peak_mib": round(peak), "tasks": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the data sets", required=True)
    parser.add_argument("--distractors", type=Path, help="a text file, a title a line", required=True)
    parser.add_argument("--tasks", nargs="+", choices=list(TRANSFORMS), default=list(TRANSFORMS))
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--output", type=Path, default=RESULTS.with_name("retrieval.json"))
    options = parser.parse_args()
    result = measure(options)
    options.output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
