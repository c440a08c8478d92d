"""A transformer whose weights follow a gradient: the same texts -> vectors as the frozen encoder, then saved as one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from retrieval.encoders.base import EncoderSettings
from retrieval.encoders.device import pick_device
from retrieval.encoders.load import Note, source_kind, transformer_folder
from retrieval.encoders.runtime import openvino_has_bf16
from retrieval.encoders.transformer import TransformerEncoder
from retrieval.errors import EncoderError, UsageError

AUTO = "auto"
PRECISIONS = (AUTO, "float32", "bf16")
FROZEN = ("words", "none")


class TrainableEncoder:
    """A transformer with a pooling, to be trained.

    Parameters
    ----------
    settings : from `resolve_settings`; the source is one transformer, as a folder, a hub id or a name of the catalog.
    device : `auto` (a GPU where there is one), `cpu`, `cuda` or any torch device.
    precision : what is multiplied in while training: float32, bf16 (weights, gradients and sums stay float32), or
        auto, which takes bf16 where the processor has it.
    frozen : `words` leaves the word embeddings as they are: few of them occur in any training set, and the others
        would no longer belong with them; `none` trains all.

    Raises
    ------
    EncoderError
        The source is no transformer, or not whole.
    UsageError
        Unknown precision or frozen part.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        *,
        device: str = AUTO,
        precision: str = AUTO,
        frozen: str = "words",
        note: Note = lambda message: None,
    ) -> None:
        if frozen not in FROZEN:
            raise UsageError(f"what is frozen is {frozen!r}: expected one of {', '.join(FROZEN)}")
        folder = transformer_folder(settings, note)
        if folder is None:
            kind = source_kind(settings, note)
            raise EncoderError(f"{settings.source!r} cannot be trained: it is {kind}, expected a transformer")
        self.encoder = TransformerEncoder(folder, settings, device)
        self.device = pick_device(device)
        self.precision = training_precision(precision, self.device)
        self.model: torch.nn.Module = self.encoder.model
        for step in self.encoder.steps.parameters():  # dense layers of the folder stay as they are
            step.requires_grad_(False)
        if frozen == "words":
            self.encoder.model.get_input_embeddings().weight.requires_grad_(False)

    @property
    def dimension(self) -> int:
        return self.encoder.dimension

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that a gradient changes, by name."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Raw embeddings, behind the prompt of a document: float32, shape (B, d), with a gradient."""
        with self.autocast():
            return self.encoder.forward(self.encoder.tokenize(texts, "document"), self._prompt_tokens)

    @cached_property
    def _prompt_tokens(self) -> int:
        return self.encoder.prompt_tokens("document")

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Multiplications in the training precision."""
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Without dropout and gradients."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.model.train(training)

    def save(self, folder: Path) -> list[str]:
        """Write a stock sentence-transformers folder into an empty one; the kinds of its modules."""
        from retrieval.encoders.st_export import export_folder

        self.model.eval()
        return export_folder(self.encoder, None, folder, raw=True)


def training_precision(name: str, device: torch.device) -> str:
    """The precision that `auto` stands for on the device. Raises UsageError for an unknown one."""
    if name not in PRECISIONS:
        raise UsageError(f"unknown precision {name!r} for training: expected one of {', '.join(PRECISIONS)}")
    if name != AUTO:
        return name
    has = torch.cuda.is_bf16_supported() if device.type == "cuda" else device.type == "cpu" and openvino_has_bf16()
    return "bf16" if has else "float32"
