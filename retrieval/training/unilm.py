"""SimBERT's second half: one BERT that is an encoder of the first text and writes the second, in one forward pass.

An input is `[CLS] a [SEP] b [SEP]` with segments 0 for a and 1 for b. By its mask a is read as if b were not there, so
that the state of [CLS] is that of a alone, and b is read from left to right, so that each token can be predicted.
Sources: Dong et al. 2019, arXiv:1905.03197 (UniLM); Su 2020, kexue.fm/archives/7427 (SimBERT).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from retrieval.encoders.base import EncoderSettings
from retrieval.encoders.checkpoint import load_config, load_language_model, quiet_transformers
from retrieval.encoders.modules import base_folder
from retrieval.encoders.st_export import export_folder
from retrieval.encoders.transformer import TransformerEncoder
from retrieval.errors import EncoderError, UsageError
from retrieval.storage import make_readable

_MODEL_TYPE, _POOLINGS = "bert", ("cls",)


class NoWriterError(EncoderError):
    """A model that cannot write paraphrases: it is no BERT with a language-model head, read at [CLS], unprompted."""


def unilm_mask(segments: Tensor, attention: Tensor) -> Tensor:
    """Which token sees which: [b, i, j] is whether token i of input b sees token j.

    Segment 0 sees segment 0; segment 1 sees segment 0 and itself up to the token; padding sees and is seen by nothing.

    Parameters
    ----------
    segments : 0 or 1, shape (B, T); all of segment 0 comes first.
    attention : 1 for a token, 0 for padding, shape (B, T)

    Returns
    -------
    bool, shape (B, T, T)

    Source: Dong et al. 2019, arXiv:1905.03197, section 2.3.
    """
    real = attention.bool()
    place = segments.cumsum(dim=1)  # 0 in all of segment 0, then 1, 2, ...
    return (place[:, None, :] <= place[:, :, None]) & real[:, None, :] & real[:, :, None]


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What attention scores are added to: 0 where a token is seen; (B, T, T) bool -> (B, 1, T, T).

    A row that sees nothing sees all: softmax over nothing is NaN, which a weight of 0 would not keep from the others.
    """
    seen = mask | ~mask.any(dim=-1, keepdim=True)
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)[:, None]


def seq2seq_loss(states: Tensor, ids: Tensor, segments: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean of -log p(token) over all tokens of segment 1, each predicted from the position before it.

    Parameters
    ----------
    states : shape (B, T, H)
    ids : int64, shape (B, T)
    segments : shape (B, T); 0 for padding.
    head : (N, H) -> logits (N, V), asked only where a token is predicted: those of all would be most of the memory.

    Returns
    -------
    a scalar

    Source: Dong et al. 2019, arXiv:1905.03197, section 2.2; Su 2020, kexue.fm/archives/7427.
    """
    predicted = segments[:, 1:] == 1  # the first token of b is predicted by the [SEP] of a
    return functional.cross_entropy(head(states[:, :-1][predicted]), ids[:, 1:][predicted])


def pairs_to_inputs(tokens: Sequence[Sequence[int]], padding: int) -> dict[str, Tensor]:
    """Each pair in both orders, [a b] and [b a].

    Parameters
    ----------
    tokens : of 2P texts, [CLS] and [SEP] included; texts 2i and 2i + 1 are a pair.
    padding : the number of the token [PAD].

    Returns
    -------
    input_ids, token_type_ids and attention_mask, int64, shape (2P, T); row i begins with text i.
    """
    rows = [(list(ids), list(tokens[row ^ 1][1:])) for row, ids in enumerate(tokens)]  # b without [CLS]
    shape = len(rows), max((len(a) + len(b) for a, b in rows), default=0)
    ids = torch.full(shape, padding)
    segments, attention = torch.zeros((2, *shape), dtype=torch.int64)
    for row, (a, b) in enumerate(rows):
        whole = len(a) + len(b)
        ids[row, :whole] = torch.tensor(a + b)
        segments[row, len(a) : whole] = 1
        attention[row, :whole] = 1
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": attention}


class UnilmModel(torch.nn.Module):
    """An encoder's BERT under its language-model head, which is tied to the word embeddings.

    Parameters
    ----------
    encoder : a BERT with the pooling cls. Its model becomes the body of this one: what is trained here is what it
        encodes with.

    Raises
    ------
    NoWriterError
        The checkpoint is no BERT, or has no language-model head; another pooling, or a prompt.
    UsageError
        A max length of which two are more than the model's positions.
    """

    def __init__(self, encoder: TransformerEncoder) -> None:
        super().__init__()
        network = _language_model(encoder.base, encoder.settings, encoder.poolings, encoder.model.dtype)
        self.network = network.to(encoder.model.device)
        self.network.base_model.load_state_dict(encoder.model.state_dict())
        trained = dict(encoder.model.named_parameters())
        for name, value in self.network.base_model.named_parameters():
            value.requires_grad_(trained[name].requires_grad)  # what was frozen stays so
        self.encoder = encoder
        encoder.model = self.network.base_model
        self.train(False)

    def inputs(self, first: Sequence[str], second: Sequence[str]) -> dict[str, Tensor]:
        """Pair i as rows 2i, [a b], and 2i + 1, [b a], on the model's device; see pairs_to_inputs.

        A text beyond the encoder's max length is cut off there, so that an input has up to twice as many tokens less 1.
        """
        if len(first) != len(second):
            raise UsageError(f"{len(first)} and {len(second)} texts are no pairs: expected as many of each")
        texts = [text for pair in zip(first, second, strict=True) for text in pair]
        tokens = self.encoder.tokenize(texts, "document")["input_ids"] if texts else []
        made = pairs_to_inputs(tokens, self.encoder.tokenizer.pad_token_id)
        return {name: tensor.to(self.network.device) for name, tensor in made.items()}

    def forward(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The vector of each input's first text, shape (B, d), and the sequence-to-sequence loss, a scalar."""
        states = self.states(inputs)
        vectors = self.encoder.steps(states[:, 0])
        return vectors, seq2seq_loss(states, inputs["input_ids"], inputs["token_type_ids"], self.network.cls)

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Of every token under the UniLM mask, shape (B, T, H)."""
        segments = inputs["token_type_ids"]
        mask = additive_mask(unilm_mask(segments, inputs["attention_mask"]), self.network.dtype)
        output = self.network.base_model(inputs["input_ids"], attention_mask=mask, token_type_ids=segments)
        states: Tensor = output.last_hidden_state
        return states

    def next_logits(self, ids: Tensor, segment: int, cache: Any) -> Tensor:
        """What follows rows without padding whose tokens before `ids` are in the cache; (B, T) -> (B, V).

        Every one of `ids` sees all of the cache and of `ids`: those of a at once, then of b one at a time.
        """
        seen = cache.get_seq_length() + ids.shape[1]
        output = self.network.base_model(
            ids,
            attention_mask=torch.zeros((len(ids), 1, ids.shape[1], seen), dtype=self.network.dtype, device=ids.device),
            token_type_ids=torch.full_like(ids, segment),
            **{_cache_argument(self.network.base_model): cache},
        )
        logits: Tensor = self.network.cls(output.last_hidden_state[:, -1])
        return logits

    def save(self, folder: Path) -> list[str]:
        """Write a sentence-transformers folder, head included, into an empty one; the kinds of its modules.

        `SentenceTransformer(folder)` and every encoder here read the body alone, UnilmModel all of it.
        """
        kinds = export_folder(self.encoder, None, folder, raw=True)
        with quiet_transformers():
            self.network.save_pretrained(folder)
        make_readable(folder / "model.safetensors")
        return kinds


def check_writer(folder: Path, settings: EncoderSettings) -> None:
    """Raises as UnilmModel does of an encoder with these settings, whose pooling is named."""
    _language_model(base_folder(folder), settings, (settings.pooling,), torch.float32)


def _language_model(base: Path, settings: EncoderSettings, poolings: Sequence[str], dtype: torch.dtype) -> Any:
    """The model under its head, once it is clear that the objective can be had of it."""
    source = settings.source
    with quiet_transformers():
        config = load_config(base, False)
        segments = int(getattr(config, "type_vocab_size", 0))
        if config.model_type != _MODEL_TYPE or segments < 2:
            raise NoWriterError(
                f"{source} is a {config.model_type} with {segments} kinds of segments, expected a {_MODEL_TYPE} with 2"
            )
        network = load_language_model(base, dtype)
    if network is None:
        raise NoWriterError(f"{source} has no language-model head (cls.predictions in its weights)")
    if tuple(poolings) != _POOLINGS:
        raise NoWriterError(f"pooling {settings.pooling!r}: SimBERT's vectors are those of [CLS], pooling cls")
    if settings.document_prompt:
        raise NoWriterError(f"the prompt {settings.document_prompt!r} would stand in paraphrases too")
    most = most_tokens(config)
    if settings.max_length > most:
        raise UsageError(
            f"max length {settings.max_length}: two such texts are more than the {config.max_position_embeddings} "
            f"tokens that {source} takes; expected at most {most}"
        )
    return network


def most_tokens(config: Any) -> int:
    """The longest text, in tokens, of which two are no more than the model's positions."""
    return (int(config.max_position_embeddings) + 1) // 2


def _cache_argument(body: Any) -> str:
    """Its name in transformers: past_key_values up to 5.23."""
    return "cache" if "cache" in inspect.signature(body.forward).parameters else "past_key_values"
