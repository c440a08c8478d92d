"""Paraphrases out of a trained SimBERT: sampled token by token, ranked by cosine with their source.

Source: Su 2020, kexue.fm/archives/7427 (gen_synonyms); top-p: Holtzman et al. 2020, arXiv:1904.09751.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from retrieval.errors import UsageError
from retrieval.training.unilm import UnilmModel
from retrieval.transforms.apply import unit_vectors

_ROWS, _GPU_ROWS = 256, 2048
"""Texts that are written at once: 2,048 rows of logits over 21,128 tokens take 165 MiB."""
_SAMPLES_A_PARAPHRASE = 5
_FIRST_TOKENS = 64
_MARKS = 2  # [CLS] and [SEP]
# Between tokens a tokenizer writes a space, which Chinese and Japanese do not have.
_WIDE = r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff‘-‟…—]"
_SPACE = re.compile(rf"(?<={_WIDE}) | (?={_WIDE})")


class Paraphrase(NamedTuple):
    """A text that was written, and its cosine with the text that it says again."""

    text: str
    score: float


def generate(
    model: UnilmModel,
    texts: Sequence[str],
    count: int = 20,
    *,
    samples: int = 0,
    top_p: float = 0.95,
    temperature: float = 1.0,
    seed: int = 0,
    on_batch: Callable[[int], None] | None = None,
) -> list[list[Paraphrase]]:
    """Paraphrases of each text, the nearest first; none of a text without a token.

    Parameters
    ----------
    count : the most that are kept of a text. Fewer come back where samples are equal, are the text itself, or have not
        ended at the encoder's max length.
    samples : texts that are written for each; 0 stands for five times `count`.
    top_p : a token is drawn from the fewest likeliest ones whose probabilities reach this sum; 0 takes the likeliest.
    temperature : divides the logits; below 1 the likely tokens become likelier.
    seed : with a text it decides what is drawn, whatever the other texts are.
    on_batch : called after each batch with its number of texts.

    Raises
    ------
    UsageError
        A number is out of its range.
    """
    samples = samples or _SAMPLES_A_PARAPHRASE * count
    check_drawing(count, samples, top_p, temperature, seed)
    encoder = model.encoder
    limit = encoder.settings.max_length
    tokens = encoder.tokenize(texts, "document")["input_ids"] if texts else []
    rows = _GPU_ROWS if model.network.device.type == "cuda" else _ROWS
    found: list[list[Paraphrase]] = [[] for _ in texts]
    known = [place for place, ids in enumerate(tokens) if len(ids) > _MARKS]
    training = model.training
    model.eval()
    try:
        for places in _equal_lengths(tokens, known, max(1, rows // samples)):
            draws = [np.random.default_rng([seed, *texts[place].encode()]) for place in places]
            uniforms = np.stack([draw.random((samples, limit - 1), dtype=np.float32) for draw in draws])
            sources = torch.tensor([tokens[place] for place in places], device=model.network.device)
            written = [_text(model, ids) for ids in _write(model, sources, uniforms, top_p, temperature)]
            for number, place in enumerate(places):
                own = {"", texts[place], _text(model, tokens[place])}
                others = sorted({*written[number * samples : (number + 1) * samples]} - own)
                found[place] = _ranked(model, texts[place], others)[:count]
            if on_batch is not None:
                on_batch(len(places))
        if on_batch is not None and len(known) < len(texts):
            on_batch(len(texts) - len(known))
    finally:
        model.train(training)
    return found


def check_drawing(count: int, samples: int = 1, top_p: float = 0.0, temperature: float = 1.0, seed: int = 0) -> None:
    """Raises UsageError as `generate` does."""
    for name, value in (("paraphrases a text", count), ("samples a text", samples)):
        if value < 1:
            raise UsageError(f"{value} {name}: expected 1 or more")
    if not 0 <= top_p <= 1:
        raise UsageError(f"top-p {top_p}: expected a number from 0 to 1")
    if not (math.isfinite(temperature) and temperature > 0):
        raise UsageError(f"temperature {temperature}: expected a number above 0; top-p 0 takes the likeliest token")
    if seed < 0:
        raise UsageError(f"seed {seed}: expected 0 or more")


def _equal_lengths(tokens: Sequence[Sequence[int]], places: Sequence[int], most: int) -> Iterator[list[int]]:
    """Places of texts with as many tokens, so that a batch has no padding, at most so many at once."""

    def length(place: int) -> int:
        return len(tokens[place])

    for _, group in itertools.groupby(sorted(places, key=length), key=length):
        equal = list(group)
        yield from (equal[start : start + most] for start in range(0, len(equal), most))


@torch.inference_mode()
def _write(
    model: UnilmModel, sources: Tensor, uniforms: NDArray[np.float32], top_p: float, temperature: float
) -> list[list[int]]:
    """Tokens of what is written for each source, [SEP] left out; none where it did not end.

    Parameters
    ----------
    sources : int64, shape (n, T)
    uniforms : what is drawn with, from 0 to 1, shape (n, samples, steps)

    Returns
    -------
    n * samples lists, those of a source together
    """
    count, samples, steps = uniforms.shape
    chances = torch.from_numpy(uniforms.reshape(count * samples, steps)).to(sources.device)
    tokenizer = model.encoder.tokenizer
    never = [number for number in tokenizer.all_special_ids if number != tokenizer.sep_token_id]
    written: list[list[int]] = [[] for _ in range(count * samples)]
    going = torch.arange(count * samples, device=sources.device)
    cache = DynamicCache()
    logits = model.next_logits(sources, 0, cache).repeat_interleave(samples, dim=0)
    cache.batch_repeat_interleave(samples)
    for step in range(steps):
        logits[:, never] = -torch.inf
        drawn = _draw(logits.float() / temperature, chances[going, step], top_p)
        on = drawn != tokenizer.sep_token_id
        going, drawn = going[on], drawn[on]
        for row, token in zip(going.tolist(), drawn.tolist(), strict=True):
            written[row].append(token)
        if not len(going) or step == steps - 1:
            break
        cache.batch_select_indices(on.nonzero()[:, 0])
        logits = model.next_logits(drawn[:, None], 1, cache)
    for row in going.tolist():
        written[row] = []
    return written


def _draw(logits: Tensor, chances: Tensor, top_p: float) -> Tensor:
    """A token for each row, by chance among its likeliest; (N, V) and (N,) -> (N,)."""
    shares = logits.softmax(dim=-1)
    size = min(_FIRST_TOKENS, shares.shape[1])
    likeliest, tokens = shares.topk(size)
    while size < shares.shape[1] and bool(
        (likeliest.sum(dim=-1) < top_p).any()
    ):  # to sort all takes thirty times as long
        size = min(8 * size, shares.shape[1])
        likeliest, tokens = shares.topk(size)
    kept = likeliest.cumsum(dim=-1) - likeliest < top_p
    kept[:, 0] = True
    sums = (likeliest * kept).cumsum(dim=-1)
    places = torch.searchsorted(sums, chances[:, None] * sums[:, -1:], right=True)
    places = places.minimum(kept.sum(dim=-1, keepdim=True) - 1)  # rounding may lead beyond the last
    return tokens.gather(1, places)[:, 0]


def _text(model: UnilmModel, ids: Sequence[int]) -> str:
    decoded = model.encoder.tokenizer.decode(ids, skip_special_tokens=True)
    return _SPACE.sub("", decoded).strip()


def _ranked(model: UnilmModel, text: str, others: Sequence[str]) -> list[Paraphrase]:
    """The nearest first; of equal ones in the order that they are given."""
    if not others:
        return []
    vectors = unit_vectors(model.encoder.encode([text, *others]), None)
    scores = vectors[1:] @ vectors[0]
    return [Paraphrase(others[row], float(scores[row])) for row in np.argsort(-scores, kind="stable")]
