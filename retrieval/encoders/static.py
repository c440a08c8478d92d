"""sentence-transformers' StaticEmbedding: the average of a table's rows for a text's tokens, no layers at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from retrieval.encoders.base import EncoderCounts, EncoderSettings, Family, TextKind, settings_fingerprint
from retrieval.encoders.modules import read_modules
from retrieval.encoders.pooling import OWN_MODULES
from retrieval.errors import EncoderError, UsageError
from retrieval.storage import cached_sha256

_BATCH_TEXTS = 1024
_TABLE_NAMES = ("embedding.weight", "embeddings")


class StaticEncoder:
    """A static embedding with the steps that its modules.json lists.

    Parameters
    ----------
    folder : a sentence-transformers folder whose first module is a StaticEmbedding.
    settings : the only pooling is the folder's own; max_length 0 takes all tokens.

    Raises
    ------
    EncoderError
        A file is missing or unreadable.
    UsageError
        A pooling is asked for.
    """

    family: Family = "tuned"
    backend, precision = "torch", "float32"

    def __init__(self, folder: Path, settings: EncoderSettings) -> None:
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        if settings.pooling not in ("", OWN_MODULES):
            raise UsageError(f"pooling {settings.pooling!r}: a static embedding has its own, {OWN_MODULES}")
        self.folder, self._modules = folder, read_modules(folder)
        self.settings = self._modules.settings(replace(settings, pooling=OWN_MODULES))
        self.counts = EncoderCounts()
        self.files = [self._modules.base / name for name in ("tokenizer.json", "model.safetensors")]
        try:
            self._tokenizer = Tokenizer.from_file(str(self.files[0]))
            tensors = load_file(self.files[1])
        except Exception as error:  # tokenizers raises plain Exception
            raise EncoderError(f"the static embedding in {folder} cannot be loaded: {error}") from error
        table = next((tensors[name] for name in _TABLE_NAMES if name in tensors), None)
        if table is None or table.shape[0] < self._tokenizer.get_vocab_size():
            raise EncoderError(f"{self.files[1]} does not hold a row for each token of tokenizer.json")
        self._table = table.float()
        self._tokenizer.no_padding()
        names = (getattr(self._tokenizer.model, "unk_token", None), "[UNK]", "<unk>")
        self._unknown = next(
            (i for name in names if name and (i := self._tokenizer.token_to_id(name)) is not None), None
        )

    @property
    def dimension(self) -> int:
        return self._modules.dimension or int(self._table.shape[1])

    @cached_property
    def fingerprint(self) -> str:
        files = [*self.files, *self._modules.files]
        names = {path.relative_to(self.folder).as_posix(): cached_sha256(path) for path in files}
        return settings_fingerprint(self.settings, names)

    @torch.inference_mode()
    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """See Encoder.encode."""
        prompt = self.settings.query_prompt if kind == "query" else self.settings.document_prompt
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for start in range(0, len(texts), _BATCH_TEXTS):
            part = [prompt + text for text in texts[start : start + _BATCH_TEXTS]]
            tokens = [encoding.ids for encoding in self._tokenizer.encode_batch(part, add_special_tokens=False)]
            limit = self.settings.max_length or None
            self.counts += EncoderCounts(
                truncated=sum(limit is not None and len(ids) > limit for ids in tokens),
                tokens=sum(map(len, tokens)),
                unknown=sum(ids.count(self._unknown) for ids in tokens) if self._unknown is not None else 0,
                without_vector=sum(not ids for ids in tokens),
            )
            tokens = [ids[:limit] for ids in tokens]
            offsets = torch.tensor([0, *np.cumsum([len(ids) for ids in tokens])[:-1].tolist()])
            flat = torch.tensor([token for ids in tokens for token in ids], dtype=torch.long)
            mean = torch.nn.functional.embedding_bag(flat, self._table, offsets, mode="mean")
            known = [bool(ids) for ids in tokens]
            vectors[start : start + len(part)][known] = self._modules.steps(mean[known]).numpy()
            if on_batch is not None:
                on_batch(len(part))
        return vectors
