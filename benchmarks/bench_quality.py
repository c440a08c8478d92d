r"""What cutting to 256 dimensions costs or gains: Spearman on five Chinese sets of pairs, raw and after each transform.

    python benchmarks/bench_quality.py --data data

Every sentence of a set is encoded once; transforms are fitted on the sentences of its dev split, without labels, and
measured on test. `retr eval lcqmc --data data --transform rotate-256` prints one of the cells. Results go to
benchmarks/results/quality.json.
Needs: pip install '.[bench,use]'.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench_build import RESULTS, machine

SETS = ("lcqmc", "bq", "atec", "pawsx", "sts-b")
MODELS = ("multilingual-e5-small", "use-multilingual")
TRANSFORMS = ("none", "rotate-256", "soft-256", "whiten-256")


def measure(data: Path, models: list[str], sets: list[str]) -> dict[str, Any]:
    from retrieval.encoders import catalog
    from retrieval.encoders.load import load_to_build, resolve_settings
    from retrieval.evaluation.correlation import spearman
    from retrieval.evaluation.datasets import load_dataset
    from retrieval.evaluation.scoring import EncodedTexts
    from retrieval.transforms.spec import parse_transform

    table = {}
    for model in models:
        encoder = load_to_build(resolve_settings(model), "cpu", "auto", "auto")
        figures: dict[str, dict[str, float | None]] = {}
        for name in sets:
            test, dev = (load_dataset(name, split, data) for split in ("test", "dev"))
            encoded = EncodedTexts(encoder, [*test.texts, *dev.texts])
            for transform in TRANSFORMS:
                spec = parse_transform(transform)
                fitted = encoded.fit(spec, dev.texts) if spec is not None else None
                score = spearman(encoded.cosines(test.first, test.second, fitted), test.labels)
                figures.setdefault(transform, {})[name] = score
            print(f"{model}, {name}: {len(encoded):,} sentences", file=sys.stderr)
        entry = catalog.lookup(model)
        table[model] = {
            "backend": encoder.backend,
            "precision": encoder.precision,
            "dimension": encoder.dimension,
            "suited": f"{entry.transform}-256" if entry else None,
            "spearman": figures,
        }
    return {**machine(), "sets": sets, "models": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--output", type=Path, default=RESULTS.with_name("quality.json"))
    options = parser.parse_args()
    result = measure(options.data, options.models, options.sets)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for model, row in result["models"].items():
        print(f"{model}, {row['backend']} {row['precision']}: Spearman x 100 on test")
        print(f"{'':<14}" + "".join(f"{name:>9}" for name in options.sets))
        for transform, figures in row["spearman"].items():
            print(f"{transform:<14}" + "".join(f"{100 * value:>9.2f}" for value in figures.values()))


if __name__ == "__main__":
    main()
