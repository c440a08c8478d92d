"""Compare ElmoEncoder with the original, elmoformanylangs, on a model with random weights.

    pip install --no-deps elmoformanylangs==0.0.4.post2
    python scripts/check_elmo_parity.py
    python scripts/check_elmo_parity.py --published-size

The model is made, and written, by the original's own classes. The original runs with its states reset before each
call, since it lets them run on from batch to batch; it needs two packages that are stood in for here: h5py, which it
imports and does not use, and overrides, a decorator that only checks names.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrieval.encoders.base import EncoderSettings
from retrieval.encoders.elmo import ElmoEncoder

# Sums in another order: a few units of 2^-24 of the values, of up to 4,096 terms in the published size.
TOLERANCE = 1e-5

TEXTS = [
    "今天天气很好，我们去公园散步。",
    "请问怎么重置密码？",
    "好",
    "ELMo 是 2018 年的语言模型 。",
    "龘 zzz €",
    "https://example.org/a/very/long/address/that-is-cut-at-fifty-characters-of-a-word",
    "一二三四五六七八九十" * 20,
]
MARKS = ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]


def original() -> Any:
    for name in ("h5py", "overrides"):
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.overrides = lambda method: method  # type: ignore[attr-defined]
            sys.modules[name] = module
    import elmoformanylangs

    logging.getLogger("elmoformanylangs").setLevel(logging.ERROR)
    return elmoformanylangs


def make_model(folder: Path, config: dict[str, Any], segmented: list[list[str]], seed: int) -> None:
    """Every second word and most characters are known; the weights are spread so widely that clips and gates act."""
    from elmoformanylangs.frontend import Model
    from elmoformanylangs.modules.embedding_layer import EmbeddingLayer

    torch.manual_seed(seed)
    words = sorted({word for sentence in segmented for word in sentence})
    vocabularies = {
        "word": [*MARKS[:4], *words[::2]],
        "char": [*sorted({character for word in words for character in word} - {"龘"}), *MARKS],
    }
    layers = {}
    for name, entries in vocabularies.items():
        lines = [f"{entry}\t{number}\n" for number, entry in enumerate(entries)]
        (folder / f"{name}.dic").write_text("".join(lines), encoding="utf-8")
        width = config["token_embedder"][f"{name}_dim"]
        numbers = {entry: number for number, entry in enumerate(entries)}
        layers[name] = EmbeddingLayer(width, numbers, fix_emb=False) if width else None
    model = Model(config, layers["word"], layers["char"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (2.0 / parameter.shape[-1]) ** 0.5)
    torch.save(model.token_embedder.state_dict(), folder / "token_embedder.pkl")
    torch.save(model.encoder.state_dict(), folder / "encoder.pkl")
    (folder / "config.json").write_text(json.dumps({"config_path": "network.json"}), encoding="utf-8")
    (folder / "network.json").write_text(json.dumps(config), encoding="utf-8")


def largest_difference(name: str, config: dict[str, Any], seed: int) -> float:
    import jieba

    jieba.setLogLevel(logging.ERROR)
    segmented = [[word for word in jieba.lcut(text) if word.strip()] for text in TEXTS]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_model(folder, config, segmented, seed)
        encoder = ElmoEncoder(folder, EncoderSettings("x", "average", "", "", 0), "cpu")
        embedder = original().Embedder(str(folder), batch_size=len(TEXTS))
        embedder.model.encoder.reset_states()
        start = time.monotonic()
        ours = encoder.encode(TEXTS)
        middle = time.monotonic()
        theirs = np.stack([states.mean(axis=0) for states in embedder.sents2elmo(segmented)])
        end = time.monotonic()
    difference = float(np.abs(ours - theirs).max())
    print(
        f"{name}, seed {seed}: largest difference {difference:.1e} of values up to {np.abs(theirs).max():.2f}; "
        f"{middle - start:.2f} s here, {end - middle:.2f} s there"
    )
    return difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published-size", action="store_true", help="512 and 4,096 dimensions: some 2 GB of memory")
    options = parser.parse_args()
    original()
    configs = Path(sys.modules["elmoformanylangs"].__path__[0]) / "configs"
    published = json.loads((configs / "cnn_50_100_512_4096_sample.json").read_text(encoding="utf-8"))
    small: dict[str, Any] = {
        "encoder": {**published["encoder"], "projection_dim": 8, "dim": 16, "cell_clip": 0.8, "proj_clip": 0.8},
        "token_embedder": {**published["token_embedder"], "filters": [[1, 4], [2, 4], [5, 6]], "word_dim": 5},
        "dropout": 0.1,
    }
    cases = {"published size": published} if options.published_size else {"small": small}
    if not options.published_size:
        for name, changes in {"characters alone": {"word_dim": 0}, "words alone": {"char_dim": 0}}.items():
            cases[name] = {**small, "token_embedder": {**small["token_embedder"], **changes}}
        cases["tanh"] = {**small, "token_embedder": {**small["token_embedder"], "activation": "tanh"}}
        cases["no clips"] = {**small, "encoder": {**small["encoder"], "cell_clip": 0, "proj_clip": 0}}
    worst = 0.0
    for name, config in cases.items():
        for seed in range(1 if options.published_size else 3):
            worst = max(worst, largest_difference(name, config, seed))
    print(f"largest difference of all: {worst:.1e}, tolerated {TOLERANCE:.0e}")
    sys.exit(worst > TOLERANCE)


if __name__ == "__main__":
    main()
