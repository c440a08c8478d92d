"""Tokenizers with ways of their own: RoFormer's, which splits words first, and one without a fast version."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from conftest import CHARACTERS, POSITIONS, SPECIAL, make_tiny_model, random_texts

from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.encoders.pooling import averaged_states
from retrieval.encoders.transformer import TransformerEncoder
from retrieval.errors import EncoderError, UsageError

TOLERANCE = 1e-5  # as BATCH_TOLERANCE in test_encoders
POOLINGS = ("cls", "last-avg", "last2-avg", "first-last-avg", "max", "last-token", "sqrt-avg", "weighted-avg")
WORDS = ("快递", "退货", "怎么")
ROFORMER_VOCABULARY = [*SPECIAL, *CHARACTERS, *WORDS, "递"]


def load(folder: Path, **options: object) -> TransformerEncoder:
    encoder = load_encoder(resolve_settings(folder, **options), "cpu")  # type: ignore[arg-type]
    assert isinstance(encoder, TransformerEncoder)
    return encoder


def plain_vector(model: object, ids: list[int], pooling: str) -> np.ndarray:
    """The pooled states of one text, without padding and without this package's code."""
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states  # type: ignore[operator]
    last, weights = states[-1][0], torch.arange(1.0, len(ids) + 1)
    averaged = torch.stack([states[number][0] for number in averaged_states(pooling) or (-1,)]).mean(0)
    return {
        "cls": last[0],
        "max": last.amax(0),
        "last-token": last[-1],
        "sqrt-avg": last.sum(0) / len(ids) ** 0.5,
        "weighted-avg": weights @ last / weights.sum(),
    }.get(pooling, averaged.mean(0)).numpy()


@pytest.fixture(scope="module")
def roformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A RoFormer with the files that the published ones have: a vocab.txt with whole words, and no tokenizer.json."""
    pytest.importorskip("rjieba")
    folder = tmp_path_factory.mktemp("models") / "tiny-roformer"
    make_tiny_model(folder, "roformer")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (folder / "vocab.txt").write_text("\n".join(ROFORMER_VOCABULARY) + "\n", encoding="utf-8")
    config = transformers.AutoConfig.from_pretrained(folder)
    config.vocab_size = len(ROFORMER_VOCABULARY)
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


def test_roformer_keeps_the_words_of_its_vocabulary_whole(roformer: Path) -> None:
    tokens = load(roformer).tokenizer.tokenize("怎么退货 快递丁 递abc")
    assert tokens == ["怎么", "退货", "快递", "丁", "递", "[UNK]"]


@pytest.mark.parametrize("pooling", [*POOLINGS, "layers-0,2"])
def test_roformer_vectors_equal_transformers_own(roformer: Path, pooling: str) -> None:
    texts = [*random_texts(12), "怎么退货", "快递" * 9]
    vectors = load(roformer, pooling=pooling).encode(texts)
    model = transformers.AutoModel.from_pretrained(roformer).eval()
    tokenizer = transformers.RoFormerTokenizer(vocab={token: row for row, token in enumerate(ROFORMER_VOCABULARY)})
    expected = [plain_vector(model, tokenizer(text)["input_ids"], pooling) for text in texts]
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE)


def test_roformer_has_no_pooler(roformer: Path) -> None:
    with pytest.raises(EncoderError, match="has no pooler: choose another pooling"):
        load(roformer, pooling="pooler")


def test_roformer_is_cut_at_its_positions(roformer: Path) -> None:
    encoder = load(roformer)
    assert encoder.settings.max_length == POSITIONS
    vectors = encoder.encode(["快递" * 100, "快递" * (POSITIONS - 2)])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=TOLERANCE)
    assert encoder.counts.truncated == 1
    with pytest.raises(UsageError, match=f"max length 65 is more than the {POSITIONS} tokens"):
        load(roformer, max_length=POSITIONS + 1)


def test_roformer_without_rjieba_names_the_command_that_installs_it(
    roformer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(EncoderError, match=r"needs the package rjieba.*: pip install 'retr\[roformer\]'$"):
        load(roformer)


def test_roformers_fingerprint_holds_the_version_of_its_dictionary(
    roformer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = load(roformer).fingerprint
    monkeypatch.setattr(importlib.metadata, "version", lambda package: f"another {package}")
    assert load(roformer).fingerprint != installed


@pytest.fixture
def phobert(tmp_path: Path) -> Path:
    """A RoBERTa with PhoBERT's tokenizer, which is Python alone: byte pairs out of vocab.txt and bpe.codes."""
    letters = "abcdefgh"
    tokens = [*letters, *(f"{letter}@@" for letter in letters), "ab", "cd@@"]
    folder = tmp_path / "tiny-phobert"
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{token} 1\n" for token in tokens), encoding="utf-8")
    (folder / "bpe.codes").write_text("a b</w> 2\nc d 1\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PhobertTokenizer"}')
    config = transformers.RobertaConfig(
        vocab_size=len(tokens) + 5,  # <s>, <pad>, </s>, <unk> and <mask>
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=POSITIONS + 2,
        initializer_range=0.3,
        pad_token_id=1,
    )
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_of_a_tokenizer_without_a_fast_version_equal_transformers_own(phobert: Path, pooling: str) -> None:
    encoder = load(phobert, pooling=pooling)
    assert not encoder.tokenizer.is_fast
    texts = ["ab", "abc cdef g h", "h", "cd cd cd cd cd cd cd", "x ab"]  # of 1 to 14 tokens: padding of every length
    model = transformers.AutoModel.from_pretrained(phobert).eval()
    tokenizer = transformers.PhobertTokenizer(str(phobert / "vocab.txt"), str(phobert / "bpe.codes"))
    assert tokenizer.tokenize("ab cde") == ["ab", "cd@@", "e"]
    expected = [plain_vector(model, tokenizer(text)["input_ids"], pooling) for text in texts]
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=TOLERANCE)
    assert encoder.counts.unknown == 1


def test_texts_that_a_tokenizer_without_a_fast_version_cuts_are_counted(phobert: Path) -> None:
    encoder = load(phobert, max_length=10)
    # 8 tokens and 2 special ones are 10; the third is cut after the eighth.
    vectors = encoder.encode(["a", "a b c d e f g h", "a b c d e f g h a", "ab " * 300])
    np.testing.assert_allclose(vectors[1], vectors[2], atol=TOLERANCE)
    assert encoder.counts.truncated == 2
    assert encoder.counts.tokens == 3 + 10 + 10 + 10
    assert load(phobert).settings.max_length == POSITIONS
    with pytest.raises(UsageError, match=f"max length 65 is more than the {POSITIONS} tokens"):
        load(phobert, max_length=POSITIONS + 1)


def test_every_file_of_a_tokenizer_is_in_the_fingerprint(phobert: Path) -> None:
    prints = {load(phobert).fingerprint}
    for name, content in (("bpe.codes", "a b</w> 2\n"), ("tokenizer_config.json", None)):
        path = phobert / name
        path.write_text(content or json.dumps({**json.loads(path.read_text()), "model_max_length": 40}))
        prints.add(load(phobert).fingerprint)
    assert len(prints) == 3
