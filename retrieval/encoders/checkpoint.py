"""A Hugging Face folder -> its tokenizer and its model, or one line that says what is wrong with it."""

from __future__ import annotations

import contextlib
import inspect
import logging
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from tokenizers.pre_tokenizers import PreTokenizer

from retrieval.encoders.modules import names_code, not_only_tensors
from retrieval.errors import EncoderError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
)
_WEIGHT_PATTERNS = ("model*.safetensors", "pytorch_model*.bin")
ROFORMER = "RoFormerTokenizer"


def weight_files(folder: Path) -> list[Path]:
    """The files of a checkpoint's weights, safetensors before pickles; EncoderError where there are none."""
    if not (folder / "config.json").exists():
        raise EncoderError(f"{folder} has no config.json: expected a Hugging Face model folder")
    for pattern in _WEIGHT_PATTERNS:
        if files := sorted(folder.glob(pattern)):
            return files
    raise EncoderError(f"{folder} has no weights: expected model.safetensors or pytorch_model.bin")


def refuse_code(folder: Path) -> None:
    """EncoderError where the model names Python classes of its own."""
    for name in ("config.json", "tokenizer_config.json"):
        if names_code(folder / name):
            raise EncoderError(
                f"the model in {folder} brings its own code (auto_map in {name}), which was not run: read it, "
                f"and give --trust-remote-code (in Python trust_remote_code=True) if you trust it"
            )


def _sources(trusted: bool) -> dict[str, bool]:
    """Where transformers may take code from: nowhere, or the folder and the repositories that it names."""
    return {"trust_remote_code": trusted, "local_files_only": not trusted}


def load_tokenizer(folder: Path, trusted: bool) -> Any:
    """The folder's tokenizer, as transformers loads it; `trusted`: its own code may be run."""
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        raise EncoderError(f"{folder} has no tokenizer: expected tokenizer.json, vocab.txt or a SentencePiece model")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **_sources(trusted))
        if type(tokenizer).__name__ == ROFORMER:
            from transformers.models.roformer.tokenization_utils import JiebaPreTokenizer

            # Given a vocab.txt, transformers 5 hands the splitter its path for the vocabulary, and no word is known.
            splitter = JiebaPreTokenizer(tokenizer.get_vocab())
            tokenizer.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(splitter)
        return tokenizer
    except Exception as error:  # every tokenizer class has failures of its own
        if isinstance(error, ImportError) and "rjieba" in str(error):
            raise EncoderError(
                f"the tokenizer in {folder} needs the package rjieba, which is not installed: "
                f"pip install 'retr[roformer]'"
            ) from error
        raise EncoderError(f"the tokenizer in {folder} cannot be loaded: {_first_line(error)}") from error


def load_model(folder: Path, pooler: bool, dtype: torch.dtype, trusted: bool) -> Any:
    """The folder's model with all its weights; EncoderError where some are missing, or a pooler that is asked for."""
    config = load_config(folder, trusted)
    with _told(folder):
        options = {}
        if "AutoModel" not in (getattr(config, "auto_map", None) or {}):
            model_class: Any = transformers.AutoModel._model_mapping[type(config)]
            # Without the argument a pooler that is missing is filled with random weights.
            if "add_pooling_layer" in inspect.signature(model_class).parameters:
                options["add_pooling_layer"] = pooler
        model, report = _load_weights(transformers.AutoModel, folder, config, dtype, trusted, **options)
    _check_shapes(folder, report)
    missing = sorted(report["missing_keys"])
    if pooler and (getattr(model, "pooler", None) is None or any(name.startswith("pooler.") for name in missing)):
        raise EncoderError(f"{folder} has no pooler: choose another pooling than 'pooler'")
    _check_whole(folder, [name for name in missing if not name.startswith("pooler.")])
    return model


def load_language_model(folder: Path, dtype: torch.dtype) -> Any | None:
    """The folder's model under its masked-language-model head, as transformers names it; None where it has no head."""
    config = load_config(folder, False)
    config.is_decoder = False  # a causal mask would be laid over the caller's
    with _told(folder):
        model, report = _load_weights(transformers.AutoModelForMaskedLM, folder, config, dtype, False)
    _check_shapes(folder, report)
    missing = sorted(report["missing_keys"])
    body = [name for name in missing if name.startswith(f"{model.base_model_prefix}.")]
    _check_whole(folder, body)
    return None if missing else model


def load_config(folder: Path, trusted: bool) -> Any:
    """The folder's config.json, without the name of an attention, which would be fetched from the hub and run."""
    with _told(folder):
        config = transformers.AutoConfig.from_pretrained(folder, **_sources(trusted))
    config._attn_implementation = None
    return config


def _load_weights(auto: Any, folder: Path, config: Any, dtype: torch.dtype, trusted: bool, **options: Any) -> Any:
    return auto.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are told by _check_shapes, by name
        **_sources(trusted),
        **options,
    )


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    """What goes wrong while weights are loaded, as one line."""
    try:
        yield
    except pickle.UnpicklingError as error:
        raise not_only_tensors(folder, error) from error
    except SafetensorError as error:
        raise EncoderError(
            f"the weights in {folder} cannot be loaded, they are damaged or cut short ({_first_line(error)}): "
            f"download or copy them again"
        ) from error
    except Exception as error:  # every model class has failures of its own
        raise EncoderError(f"the model in {folder} cannot be loaded: {_first_line(error)}") from error


def _check_shapes(folder: Path, report: Any) -> None:
    if wrong := sorted(report["mismatched_keys"]):
        name, found, expected = wrong[0]
        raise EncoderError(
            f"{len(wrong)} of the weights in {folder} do not fit its config.json: {name} has shape {tuple(found)}, "
            f"expected {tuple(expected)}; restore the model's own config.json or weights"
        )


def _check_whole(folder: Path, missing: list[str]) -> None:
    if missing:
        raise EncoderError(
            f"{folder} lacks {len(missing)} of the model's tensors, {missing[0]} first: "
            f"the checkpoint is not whole, or its config.json is another model's"
        )


def check_vocabulary(folder: Path, tokenizer: Any, model: Any) -> None:
    """A token without a row would be an error in the middle of a build."""
    with contextlib.suppress(NotImplementedError, AttributeError):  # a model without a table
        rows = len(model.get_input_embeddings().weight)
        if len(tokenizer) > rows:
            raise EncoderError(
                f"the tokenizer in {folder} has {len(tokenizer):,} tokens, and the model's embedding table "
                f"{rows:,} rows: they do not belong together; restore the model's own tokenizer or weights"
            )


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Loading without transformers' own bars and reports: this module turns what matters into errors."""
    log: Any = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(logging.CRITICAL)
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
