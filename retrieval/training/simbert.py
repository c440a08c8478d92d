"""SimBERT whole: the in-batch softmax and the sequence-to-sequence loss, out of the same forward pass.

Source: Su 2020, kexue.fm/archives/7427.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from retrieval.encoders.base import EncoderSettings
from retrieval.encoders.load import Note, resolve_settings, transformer_folder
from retrieval.encoders.modules import MODULES
from retrieval.encoders.pooling import OWN_MODULES
from retrieval.errors import UsageError
from retrieval.training import losses
from retrieval.training.model import AUTO, TrainableEncoder
from retrieval.training.objectives import InBatchObjective, distinct
from retrieval.training.unilm import NoWriterError, UnilmModel, check_writer, most_tokens

LENGTH = 64
"""Tokens a text, as SimBERT was published; an input holds two."""


def simbert_settings(
    model: str,
    pooling: str | None = None,
    max_length: int | None = None,
    *,
    encoder_only: bool = False,
    note: Note = lambda message: None,
) -> tuple[EncoderSettings, str]:
    """What training begins from, and why that is an encoder alone; empty where it is a WritingEncoder.

    Parameters
    ----------
    pooling, max_length : None stands for cls and LENGTH of a WritingEncoder, for the model's own of an encoder alone.
    encoder_only : whether an encoder alone is wanted of any model.

    Raises
    ------
    UsageError
        A max_length of which two are more than the model's positions.
    """
    alone = resolve_settings(model, pooling=pooling, max_length=max_length)
    if encoder_only:
        return alone, "--encoder-only was given"
    writer = resolve_settings(model, pooling=pooling or "cls", max_length=max_length)
    folder = transformer_folder(alone, note)
    if folder is None:
        return alone, "it is no transformer"
    try:
        check_writer(folder, writer)
    except NoWriterError as error:
        return alone, str(error)
    return writer, ""


def load_writer(model: str, device: str = AUTO, note: Note = lambda message: None) -> UnilmModel:
    """A trained SimBERT that writes paraphrases: a folder with its head, or a hub id or name of the catalog.

    Raises
    ------
    EncoderError
        It cannot be found, or cannot write (NoWriterError).
    """
    own = resolve_settings(model)
    folder = transformer_folder(own, note)
    modular = folder is not None and (folder / MODULES).exists()
    settings = own if modular else replace(own, pooling=own.pooling or "cls")
    return WritingEncoder(settings, device=device, precision="float32", frozen="none", note=note).unilm


class WritingEncoder(TrainableEncoder):
    """An encoder that is trained together with its language-model head, and saved with it.

    Parameters
    ----------
    settings : max_length 0 stands for LENGTH, or for that of a sentence-transformers folder with the pooling of its
        own; less where two such texts are more than the model's positions.

    Raises
    ------
    EncoderError
        The source is no transformer, or (NoWriterError) none that can write.
    UsageError
        A max_length that is too long.
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
        super().__init__(settings, device=device, precision=precision, frozen=frozen, note=note)
        found = self.encoder.settings
        if not settings.max_length and hasattr(self.encoder.model.config, "max_position_embeddings"):
            wanted = found.max_length if found.pooling == OWN_MODULES else min(found.max_length, LENGTH)
            most = min(wanted, most_tokens(self.encoder.model.config))
            self.encoder.settings = replace(found, max_length=most)
        self.unilm = UnilmModel(self.encoder)
        self.model = self.unilm.network

    def save(self, folder: Path) -> list[str]:
        """Write a stock sentence-transformers folder, head included, into an empty one; the kinds of its modules."""
        self.model.eval()
        return self.unilm.save(folder)


class SimbertObjective(InBatchObjective):
    """InBatchObjective, and each text of a pair written from the other; the sum of both losses."""

    name = "in-batch softmax and paraphrases"

    def loss(self, model: TrainableEncoder, source: int, rows: NDArray[np.int64]) -> torch.Tensor:
        if not isinstance(model, WritingEncoder):
            raise UsageError("paraphrases need a WritingEncoder")
        first, second = self._columns[source]
        kept = distinct(first, second, rows)
        inputs = model.unilm.inputs([first[row] for row in kept], [second[row] for row in kept])
        with model.autocast():
            vectors, written = model.unilm.forward(inputs)
        if len(kept) < 2:  # nothing to be told from
            return written
        return losses.in_batch_softmax(vectors, self._scale) + written
