"""Sentence vectors from ELMo in the format of ELMoForManyLangs (HIT-SCIR; Che et al. 2018, aclanthology.org/K18-2005).

Words by jieba, so the vectors are made for Chinese.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from retrieval.encoders.base import EncoderCounts, EncoderSettings, Family, TextKind, settings_fingerprint
from retrieval.encoders.device import pick_device
from retrieval.encoders.elmo_folder import BOS, BOW, EOS, EOW, OOV, PAD, read_elmo_folder
from retrieval.encoders.elmo_network import ElmoNetwork
from retrieval.encoders.words import segment, segmenter_version
from retrieval.errors import UsageError
from retrieval.storage import cached_sha256

POOLING = "average"

BATCH_TEXTS = 64
"""Texts of a batch: each step reads all of an LSTM's weights, for however many texts."""
BATCH_TOKENS = 8192
"""Tokens of a batch, padding included."""
_EMBEDDED_WORDS = 256


class ElmoEncoder:
    """A frozen ELMo: the average of the token layer and of every LSTM layer, then the average over words.

    That is `sents2elmo(..., output_layer=-1)` of the original, averaged over words, with one difference: every text
    starts from a zero state. The original lets the LSTM states of one batch run on into the next, so that its vectors
    depend on what was encoded before; here a vector depends on its text alone.

    Parameters
    ----------
    folder : config.json, char.dic, word.dic, encoder.pkl and token_embedder.pkl. The file that config.json's
        config_path names is looked for in the folder and in its parent, under its whole path and its last part; the
        settings of the published models, cnn_50_100_512_4096_sample.json, need no file.
    settings : pooling is `average`; max_length counts words, 0 for no limit.
    device : `auto` (a GPU where there is one), `cpu`, `cuda` or any torch device.

    Raises
    ------
    EncoderError
        A file is missing, damaged, holds pickled code or does not fit the others; or jieba is not installed.
    UsageError
        Another pooling, a negative max_length, or an unknown device.
    """

    family: Family = "raw"

    backend, precision = "torch", "float32"

    def __init__(self, folder: Path, settings: EncoderSettings, device: str = "auto") -> None:
        if settings.pooling != POOLING:
            raise UsageError(f"unknown pooling {settings.pooling!r} for ELMo: expected {POOLING}")
        if settings.max_length < 0:
            raise UsageError(f"max length {settings.max_length} is below 0")
        self.settings = settings
        self.counts = EncoderCounts()
        self._device = pick_device(device)
        segmenter_version()  # so that a package that is not installed is missed now, not after the corpus was read
        model = read_elmo_folder(folder)
        self._files = model.files
        self._words, self._characters = model.words, model.characters
        weights = [{name: t.to(self._device) for name, t in part.items()} for part in (model.embedder, model.encoder)]
        self._network = ElmoNetwork(model.config, *weights)

    @property
    def dimension(self) -> int:
        return 2 * self._network.config.projection_dim

    @cached_property
    def fingerprint(self) -> str:
        hashes = {path.name: cached_sha256(path) for path in self._files}
        hashes["network"] = json.dumps(asdict(self._network.config), sort_keys=True)
        hashes["jieba"] = segmenter_version()
        return settings_fingerprint(self.settings, hashes)

    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """See Encoder.encode. A text without a word has the vector 0; counts.unknown are words that word.dic lacks."""
        prompt = self.settings.query_prompt if kind == "query" else self.settings.document_prompt
        sentences = [self._segment(prompt + text) for text in texts]
        vectors = np.zeros((len(sentences), self.dimension), dtype=np.float32)
        rows = np.array([row for row, words in enumerate(sentences) if words], dtype=np.int64)
        without = len(sentences) - len(rows)
        self.counts += EncoderCounts(without_vector=without)
        if without and on_batch is not None:
            on_batch(without)
        for batch in _batches([len(sentences[row]) for row in rows]):
            vectors[rows[batch]] = self._forward([sentences[row] for row in rows[batch]])
            if on_batch is not None:
                on_batch(len(batch))
        return vectors

    def _segment(self, text: str) -> list[str]:
        words = segment(text)
        limit = self.settings.max_length or len(words)
        kept = [word[: self._network.config.max_characters - 2] for word in words[:limit]]
        self.counts += EncoderCounts(
            truncated=int(len(words) > limit),
            tokens=len(kept),
            unknown=sum(not self._knows(word) for word in kept),
        )
        return kept

    def _knows(self, word: str) -> bool:
        if self._words:
            return word in self._words
        return all(character in self._characters for character in word)

    @torch.inference_mode()
    def _forward(self, sentences: list[list[str]]) -> NDArray[np.float32]:
        """Texts of one word at least, the longest first -> (B, d)."""
        framed = [[BOS, *words, EOS] for words in sentences]
        distinct = sorted({word for words in framed for word in words}, key=lambda word: (len(word), word))
        parts = [distinct[start : start + _EMBEDDED_WORDS] for start in range(0, len(distinct), _EMBEDDED_WORDS)]
        table = torch.cat([self._network.embed(*self._numbers(part)) for part in parts])  # (words, P)
        row = {word: place for place, word in enumerate(distinct)}
        tokens = np.zeros((len(framed[0]), len(framed)), dtype=np.int64)  # (T, B)
        for column, words in enumerate(framed):
            tokens[: len(words), column] = [row[word] for word in words]
        lengths = torch.tensor([len(words) for words in framed], device=self._device)
        return self._network.average(table[torch.from_numpy(tokens).to(self._device)], lengths).cpu().numpy()

    def _numbers(self, words: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """(N,) numbers of the words and (N, K) of their characters.

        K is as small as it can be without a change of any maximum over a filter's windows: the longest word and one
        window of nothing but padding, and never more than max_characters.
        """
        known = [self._words.get(word, self._words.get(OOV, 0)) for word in words]
        spelled = [self._spell(word) for word in words] if self._characters else [[] for _ in words]
        config = self._network.config
        width = min(config.max_characters, max(map(len, spelled)) + config.widest_filter)
        characters = np.full((len(words), width), self._characters.get(PAD, 0), dtype=np.int64)
        for place, numbers in enumerate(spelled):
            characters[place, : len(numbers)] = numbers
        return torch.tensor(known, device=self._device), torch.from_numpy(characters).to(self._device)

    def _spell(self, word: str) -> list[int]:
        """Characters between the two marks, which the original exchanges, in training as well: its issue 71."""
        numbers, unknown = self._characters, self._characters[OOV]
        inner = [numbers[word]] if word in (BOS, EOS) else [numbers.get(character, unknown) for character in word]
        return [numbers[EOW], *inner, numbers[BOW]]


def _batches(lengths: Sequence[int]) -> Iterator[NDArray[np.int64]]:
    """Places in `lengths`, longest first, in batches of BATCH_TEXTS or, with <bos> and <eos>, BATCH_TOKENS."""
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    start = 0
    while start < len(order):
        size = max(1, min(BATCH_TEXTS, BATCH_TOKENS // (lengths[order[start]] + 2)))
        yield order[start : start + size]
        start += size
