"""Hugging Face models through transformers and torch: BERT, RoBERTa, DistilBERT, ALBERT, XLM-R and their like."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from retrieval.encoders.base import EncoderCounts, EncoderSettings, Family, TextKind, settings_fingerprint
from retrieval.encoders.batches import BATCH_TOKENS, GPU_BATCH_TOKENS, batches, parts
from retrieval.encoders.checkpoint import (
    ROFORMER,
    TOKENIZER_FILES,
    check_vocabulary,
    load_model,
    load_tokenizer,
    quiet_transformers,
    refuse_code,
    weight_files,
)
from retrieval.encoders.device import pick_device
from retrieval.encoders.modules import MODULES, base_folder, read_modules
from retrieval.encoders.pooling import (
    OTHER_POOLINGS,
    OWN_MODULES,
    POOLINGS,
    averaged_states,
    check_pooling,
    pool,
    pooling_parts,
)
from retrieval.errors import UsageError
from retrieval.storage import cached_sha256

DEFAULT_MAX_LENGTH = 512
TORCH_PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}


class TransformerEncoder:
    """A frozen transformer with a pooling.

    Parameters
    ----------
    folder : a Hugging Face folder: config.json, a tokenizer, model.safetensors or pytorch_model.bin.
    settings : max_length 0 stands for the most that the model takes, at most 512.
    device : `auto` (a GPU where there is one), `cpu`, `cuda` or any torch device.
    family : None tells it from the folder: sentence-transformers' modules.json means tuned.
    precision : what the model computes with: float32, bf16 (the pooling is float32 in both), or auto, which takes bf16
        on a GPU that has it.
    trust_remote_code : whether Python code that the model brings along may be run.

    Raises
    ------
    EncoderError
        A file is missing or unreadable, the checkpoint lacks weights, or the model brings code that is not trusted.
    UsageError
        An unknown pooling or precision, or a max_length beyond the model's positions.
    """

    backend = "torch"

    def __init__(
        self,
        folder: Path,
        settings: EncoderSettings,
        device: str = "auto",
        family: Family | None = None,
        *,
        precision: str = "float32",
        trust_remote_code: bool = False,
    ) -> None:
        self._device = pick_device(device)
        self.precision = _precision(precision, self._device)
        modular = (folder / MODULES).exists()
        settings = replace(settings, pooling=settings.pooling or (OWN_MODULES if modular else "last-avg"))
        if check_pooling(settings.pooling) in OTHER_POOLINGS:
            raise UsageError(f"pooling {settings.pooling!r} is no transformer's: expected one of {', '.join(POOLINGS)}")
        if settings.pooling == OWN_MODULES and not modular:
            raise UsageError(
                f"pooling {OWN_MODULES!r} needs a {MODULES}, and {folder} has none: choose another pooling"
            )
        self.family: Family = family or ("tuned" if modular else "raw")
        self.folder = folder
        self._modules = read_modules(folder) if settings.pooling == OWN_MODULES else None
        self.base = self._modules.base if self._modules else base_folder(folder)  # where the transformer lies
        self.poolings = self._modules.poolings if self._modules else pooling_parts(settings.pooling)
        asked = settings.max_length
        if self._modules:
            settings = self._modules.settings(settings)
        self._weights = weight_files(self.base)
        if not trust_remote_code:
            refuse_code(self.base)
        with quiet_transformers():
            self.tokenizer = load_tokenizer(self.base, trust_remote_code)
            dtype = TORCH_PRECISIONS[self.precision]
            model = load_model(self.base, "pooler" in self.poolings, dtype, trust_remote_code)
        self.model = model.to(self._device).eval()
        check_vocabulary(self.base, self.tokenizer, self.model)
        self.steps = (self._modules.steps if self._modules else torch.nn.Sequential()).to(self._device)
        for pooling in self.poolings:
            _check_layers(pooling, self.model.config)
        self.settings = replace(settings, max_length=_max_length(settings, self.model.config, self.tokenizer, asked))
        self.counts = EncoderCounts()

    @property
    def dimension(self) -> int:
        if self._modules and self._modules.dimension:
            return self._modules.dimension
        return int(self.model.config.hidden_size) * len(self.poolings)

    @cached_property
    def fingerprint(self) -> str:
        return self.fingerprint_in(self.precision)

    def fingerprint_in(self, precision: str) -> str:
        """The fingerprint that the encoder has where torch runs it in another precision."""
        files = [self.base / "config.json", *self._weights]
        files += self._modules.files if self._modules else ()
        tokenizer_files = {*TOKENIZER_FILES, *self.tokenizer.vocab_files_names.values()}
        files += [path for name in tokenizer_files if (path := self.base / name).exists()]
        names = {path.relative_to(self.folder).as_posix(): cached_sha256(path) for path in files}
        if type(self.tokenizer).__name__ == ROFORMER:  # rjieba's dictionary is part of the tokenizer
            names["rjieba"] = importlib.metadata.version("rjieba")
        for part in (self.tokenizer, self.model):
            if type(part).__module__.startswith("transformers_modules."):  # code of the model's own
                code = Path(inspect.getfile(type(part))).parent.glob("*.py")
                names |= {f"{type(part).__name__}/{path.name}": cached_sha256(path) for path in code}
        if precision != "float32":
            names["precision"] = precision
        return settings_fingerprint(self.settings, names)

    @property
    def lower_case(self) -> bool:
        """Whether texts are lower-cased before they are tokenized."""
        return self._modules is not None and self._modules.lower_case

    @property
    def reads_every_state(self) -> bool:
        """Whether the pooling reads other hidden states than the last."""
        return any(averaged_states(pooling) is not None for pooling in self.poolings)

    @property
    def input_names(self) -> list[str]:
        """What the model is given of a text, by name."""
        return list(self.tokenizer.model_input_names)

    @property
    def is_plain(self) -> bool:
        """Whether text -> tokens -> vector is all: no lower-casing outside the tokenizer, no prompt left out."""
        return self._modules is None or (self._modules.include_prompt and not self.lower_case)

    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """See Encoder.encode. A row is 0 where a text has no token that counts.

        Texts are sorted by length, so that batches hold little padding.
        """
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        if not texts:
            return vectors
        tokens = self.tokenize(texts, kind)
        prompt_tokens = self.prompt_tokens(kind)
        lengths = np.array([len(ids) for ids in tokens["input_ids"]])
        known = np.flatnonzero(lengths > prompt_tokens)
        self.counts += EncoderCounts(without_vector=len(texts) - len(known))
        batch_tokens = GPU_BATCH_TOKENS if self._device.type == "cuda" else BATCH_TOKENS
        for places in batches(lengths[known].tolist(), batch_tokens):
            rows = known[places]
            batch = {name: [values[row] for row in rows] for name, values in tokens.items()}
            with torch.inference_mode():
                vectors[rows] = self.forward(batch, prompt_tokens).cpu().numpy()
            if on_batch is not None:
                on_batch(len(rows))
        if on_batch is not None and len(known) < len(texts):
            on_batch(len(texts) - len(known))
        return vectors

    def _prompt(self, kind: TextKind) -> str:
        return self.settings.query_prompt if kind == "query" else self.settings.document_prompt

    def prompt_tokens(self, kind: TextKind) -> int:
        """How many tokens at the start of a text are the prompt's and do not count in the pooling."""
        if self._modules is None or self._modules.include_prompt or not self._prompt(kind):
            return 0
        ids = self.tokenizer(self._prompt(kind))["input_ids"]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)

    def tokenize(self, texts: Sequence[str], kind: TextKind) -> dict[str, list[list[int]]]:
        """What the model is given of each text behind its prompt, by name, cut off at max_length."""
        prompt = self._prompt(kind)
        if self.lower_case:
            prompt, texts = prompt.lower(), [text.lower() for text in texts]
        tokens: dict[str, list[list[int]]] = {}
        for part in parts(texts):
            for name, values in self._tokenize_part([prompt + text for text in part]).items():
                tokens.setdefault(name, []).extend(values)
        return tokens

    def _tokenize_part(self, prompted: list[str]) -> dict[str, list[list[int]]]:
        limit = self.settings.max_length
        try:
            encoded = self.tokenizer(prompted, truncation=True, max_length=limit, padding=False)
        except (UnicodeEncodeError, TypeError) as error:  # by the version of tokenizers
            raise UsageError(f"a text holds half a surrogate pair, which is not a character: {error}") from None
        if encoded.encodings is not None:
            truncated = sum(bool(encoding.overflowing) for encoding in encoded.encodings)
        else:  # a tokenizer without a fast version does not tell what it cut off
            full = [prompted[i] for i, ids in enumerate(encoded["input_ids"]) if len(ids) == limit]
            lengths = [len(ids) for ids in self.tokenizer(full, verbose=False)["input_ids"]] if full else []
            truncated = sum(length > limit for length in lengths)
        unknown = self.tokenizer.unk_token_id
        self.counts += EncoderCounts(
            truncated=truncated,
            tokens=sum(len(ids) for ids in encoded["input_ids"]),
            unknown=sum(ids.count(unknown) for ids in encoded["input_ids"]) if unknown is not None else 0,
        )
        return {name: encoded[name] for name in self.tokenizer.model_input_names if name in encoded}

    def forward(self, batch: dict[str, list[list[int]]], prompt_tokens: int) -> torch.Tensor:
        """Tokens -> vectors: float32, shape (B, d), on the encoder's device; a gradient flows where one is wanted."""
        inputs = self.tokenizer.pad(batch, padding_side="right", return_tensors="pt").to(self._device)
        output = self.model(**inputs, output_hidden_states=self.reads_every_state)
        states = output.hidden_states if self.reads_every_state else (output.last_hidden_state,)
        # The states that are read are averaged in float32, whatever the model's own numbers are.
        numbers = (number for pooling in self.poolings for number in averaged_states(pooling) or (-1,))
        read = {number % len(states) for number in numbers}
        states = [state.float() if number in read else state for number, state in enumerate(states)]
        mask = inputs["attention_mask"].clone()
        mask[:, :prompt_tokens] = 0
        pooler = output.pooler_output.float() if "pooler" in self.poolings else None
        pooled = torch.cat([pool(states, mask, pooling, pooler) for pooling in self.poolings], dim=-1)
        vectors: torch.Tensor = self.steps(pooled)
        return vectors


def _precision(name: str, device: torch.device) -> str:
    if name == "auto":
        return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    if name not in TORCH_PRECISIONS:
        raise UsageError(f"unknown precision {name!r}: expected auto or one of {', '.join(TORCH_PRECISIONS)}")
    return name


def _check_layers(pooling: str, config: Any) -> None:
    layers = int(getattr(config, "num_hidden_layers", 0))
    numbers = averaged_states(pooling) or ()
    if numbers and max(numbers) > layers:
        raise UsageError(f"pooling {pooling!r} names layer {max(numbers)}, and the model has layers 0 to {layers}")


def _max_length(settings: EncoderSettings, config: Any, tokenizer: Any, asked: int) -> int:
    limits = [tokenizer.model_max_length]
    if positions := getattr(config, "max_position_embeddings", None):
        # The RoBERTa family counts positions from the padding token's number + 1.
        offset = config.pad_token_id + 1 if config.model_type in _OFFSET_POSITIONS else 0
        limits.append(positions - offset)
    most = int(min(limit for limit in limits if limit > 0))
    if asked > most:
        raise UsageError(f"max length {asked} is more than the {most} tokens that {settings.source} takes")
    return min(settings.max_length, most) or min(most, DEFAULT_MAX_LENGTH)


_OFFSET_POSITIONS = {
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "roberta-prelayernorm",
    "mpnet",
    "longformer",
}
