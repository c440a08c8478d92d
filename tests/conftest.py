"""Tiny random models, corpora, and the command line in a process of its own. No network."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest.mock
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from retrieval.storage import cache_directory

os.environ["HF_HUB_OFFLINE"] = "1"


def own_cache() -> Path:
    """A cache for this run: graphs of random models are no use to the user. Unpacked models are shared with theirs."""
    models = cache_directory() / "models"
    models.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="retr-tests-"))
    (folder / "models").symlink_to(models)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


os.environ["RETR_CACHE"] = str(own_cache())

hypothesis.settings.register_profile("untimed", deadline=None)  # a shared machine is slow at times
hypothesis.settings.load_profile("untimed")

Retr = Callable[..., subprocess.CompletedProcess[str]]

CHARACTERS = "".join(chr(code) for code in range(0x4E00, 0x4E00 + 900)) + "abcdefghijklmnopqrstuvwxyz0123456789"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
HIDDEN, LAYERS, POSITIONS = 32, 3, 64


def random_texts(count: int, seed: int = 0, longest: int = 30) -> list[str]:
    """Distinct texts of characters that the tiny models know."""
    random = np.random.default_rng(seed)
    letters = np.array(list(CHARACTERS))
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts["".join(random.choice(letters, random.integers(3, longest)))] = None
    return list(texts)


def make_tiny_model(folder: Path, kind: str = "bert", seed: int = 0) -> Path:
    """A Hugging Face folder with random weights and a lower-casing tokenizer of single characters."""
    import tokenizers
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {token: number for number, token in enumerate(SPECIAL + list(CHARACTERS))}
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.BertWordPieceTokenizer(vocabulary, lowercase=True)._tokenizer,
        model_max_length=POSITIONS,
        **names,
    ).save_pretrained(folder)
    size = len(SPECIAL) + len(CHARACTERS)
    shape = {"vocab_size": size, "pad_token_id": 0}
    layered = {
        **shape,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.3,
    }
    configs = {
        "bert": lambda: transformers.BertConfig(**layered),
        "roberta": lambda: transformers.RobertaConfig(**{**layered, "max_position_embeddings": POSITIONS + 1}),
        "xlm-roberta": lambda: transformers.XLMRobertaConfig(**{**layered, "max_position_embeddings": POSITIONS + 1}),
        "albert": lambda: transformers.AlbertConfig(**layered, embedding_size=16),
        "roformer": lambda: transformers.RoFormerConfig(**layered, embedding_size=16),
        "distilbert": lambda: transformers.DistilBertConfig(
            **shape, dim=HIDDEN, n_layers=LAYERS, n_heads=4, hidden_dim=48, max_position_embeddings=POSITIONS
        ),
    }
    torch.manual_seed(seed)
    transformers.AutoModel.from_config(configs[kind]()).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 3 layers and 32 dimensions."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny-bert")


def add_head(folder: Path, initializer_range: float = 0.3) -> Path:
    """Give a tiny BERT new weights at random, language-model head included."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    config.initializer_range = initializer_range
    torch.manual_seed(1)
    network = transformers.BertForMaskedLM(config)
    torch.nn.init.normal_(network.cls.predictions.bias)
    network.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with its language-model head."""
    return add_head(make_tiny_model(tmp_path_factory.mktemp("models") / "headed"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Five hundred texts, one a line."""
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(random_texts(500)) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def retr(tmp_path: Path) -> Retr:
    """Run the command line in a process of its own, in the test's folder."""

    def run(
        *arguments: str | Path, stdin: str | bytes = "", cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        data = stdin.encode("utf-8") if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [sys.executable, "-m", "retrieval.cli.main", *map(str, arguments)],
            input=data,
            capture_output=True,
            cwd=cwd or tmp_path,
            timeout=300,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
        )

    return run


def run_here(folder: Path, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, which spares it the seconds in which torch is imported."""
    from retrieval.cli.main import _run

    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        given = ["retr", *map(str, arguments)]
        stack.enter_context(unittest.mock.patch.object(sys, "argv", given))
        stack.enter_context(unittest.mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))))
        code = _run()
    return subprocess.CompletedProcess(given, code, out.getvalue(), err.getvalue())


def write_jsonl(path: Path, records: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The data sets that are not part of the project."""
    if not (configured := os.environ.get("RETR_DATA")):
        pytest.skip("RETR_DATA is not set: it names the folder of the data sets (LCQMC and others)")
    return Path(configured)


def commands() -> dict[str, set[str]]:
    """Every command of `retr`, such as `transform fit`, with its options as the command line takes them."""
    import typer

    from retrieval.cli.app import app

    def walk(command: Any, name: str) -> Iterator[tuple[str, set[str]]]:
        if subcommands := getattr(command, "commands", None):
            for word, sub in subcommands.items():
                yield from walk(sub, f"{name} {word}".strip())
        else:
            yield (
                name,
                {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)},
            )

    return dict(walk(typer.main.get_command(app), ""))
