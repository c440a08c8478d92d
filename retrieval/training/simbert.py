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
from retrieval.encoders.load import Note
from retrieval.errors import UsageError
from retrieval.training import losses
from retrieval.training.model import AUTO, TrainableEncoder
from retrieval.training.objectives import InBatchObjective, distinct
from retrieval.training.unilm import UnilmModel, most_tokens


class WritingEncoder(TrainableEncoder):
    """An encoder that is trained together with its language-model head, and saved with it.

    Parameters
    ----------
    settings : max_length 0 stands for what the model has positions for, twice.

    Raises
    ------
    EncoderError
        The source is no BERT, or has no language-model head.
    UsageError
        Another pooling than cls, a prompt, or a max_length that is too long.
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
            most = min(found.max_length, most_tokens(self.encoder.model.config))
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
        pairs = self._pairs[source]
        kept = distinct(pairs.first, pairs.second, rows)
        inputs = model.unilm.inputs([pairs.first[row] for row in kept], [pairs.second[row] for row in kept])
        with model.autocast():
            vectors, written = model.unilm.forward(inputs)
        return losses.in_batch_softmax(vectors, self._scale) + written
