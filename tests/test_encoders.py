"""Texts -> vectors: poolings, batches, prompts, lengths, fingerprints."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from conftest import HIDDEN, LAYERS, POSITIONS, make_tiny_model, random_texts
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from retrieval import Index
from retrieval.encoders import catalog
from retrieval.encoders.base import EncoderSettings
from retrieval.encoders.batches import BATCH_TOKENS, GPU_BATCH_TOKENS, batches
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.encoders.pooling import POOLINGS, pool
from retrieval.encoders.transformer import TransformerEncoder
from retrieval.errors import EncoderError, UsageError

# float32 sums in another order differ by a few units of 2^-24 of the values, which are about 1 here.
BATCH_TOLERANCE = 1e-5

# What transformers computes in another way below.
SIMPLE_POOLINGS = ("cls", "last-avg", "last2-avg", "first-last-avg", "max", "last-token")
MASKED_POOLINGS = (*SIMPLE_POOLINGS, "sqrt-avg", "weighted-avg", "layers-0,2")
KINDS = ("bert", "roberta", "distilbert", "albert", "xlm-roberta")


@pytest.fixture(scope="module")
def encoder(tiny_model: Path) -> TransformerEncoder:
    return load(tiny_model)


def load(folder: Path, **options: object) -> TransformerEncoder:
    encoder = load_encoder(resolve_settings(folder, **options), "cpu")  # type: ignore[arg-type]
    assert isinstance(encoder, TransformerEncoder)
    return encoder


def test_pool_of_worked_values() -> None:
    # One text, three tokens of which the last is padding, H = 1; states 0 to 2.
    states = [torch.tensor([[[9.0], [9.0], [9.0]]]), torch.tensor([[[1.0], [2.0], [50.0]]])]
    states += [torch.tensor([[[3.0], [6.0], [70.0]]])]
    mask = torch.tensor([[1, 1, 0]])
    expected = {
        "cls": 3.0,  # first token of the last state
        "last-avg": 4.5,  # (3 + 6) / 2
        "last2-avg": 3.0,  # ((1 + 3)/2 + (2 + 6)/2) / 2 = (2 + 4) / 2
        "first-last-avg": 3.0,  # state 1 and state 2: the same two states here
    }
    assert {pooling: pool(states, mask, pooling).item() for pooling in expected} == expected


def test_first_last_avg_takes_hidden_state_1_not_the_embedding_layer() -> None:
    states = [torch.full((1, 1, 1), value) for value in (100.0, 1.0, 10.0, 5.0)]
    assert pool(states, torch.ones(1, 1), "first-last-avg").item() == 3.0  # (1 + 5) / 2
    assert pool(states, torch.ones(1, 1), "last2-avg").item() == 7.5  # (10 + 5) / 2


@given(st.integers(1, 6), st.integers(0, 5), st.sampled_from(MASKED_POOLINGS), st.integers(0, 2**31))
def test_padding_never_changes_a_vector(length: int, padding: int, pooling: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    states = [torch.randn(1, length, 4, generator=generator) for _ in range(4)]
    padded = [torch.cat([state, torch.full((1, padding, 4), 1e6)], dim=1) for state in states]
    mask = torch.tensor([[1] * length + [0] * padding])
    expected = pool(states, torch.ones(1, length), pooling)
    torch.testing.assert_close(pool(padded, mask, pooling), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", SIMPLE_POOLINGS)
def test_vectors_equal_transformers_own_one_text_at_a_time(tmp_path: Path, kind: str, pooling: str) -> None:
    folder = make_tiny_model(tmp_path / kind, kind)
    vectors = load(folder, pooling=pooling).encode(texts := random_texts(20))
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(texts, vectors, strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        expected = {
            "cls": states[-1][0, 0],
            "last-avg": states[-1][0].mean(0),
            "last2-avg": (states[-1][0] + states[-2][0]).mean(0) / 2,
            "first-last-avg": (states[1][0] + states[-1][0]).mean(0) / 2,
            "max": states[-1][0].amax(0),
            "last-token": states[-1][0, -1],
        }[pooling]
        np.testing.assert_allclose(vector, expected.numpy(), atol=BATCH_TOLERANCE)


@settings(max_examples=20)
@given(st.lists(st.sampled_from(random_texts(40)), min_size=1, max_size=40))
def test_a_vector_never_depends_on_its_batch(encoder: TransformerEncoder, texts: list[str]) -> None:
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(encoder.encode(texts), alone, atol=BATCH_TOLERANCE)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_encode_gives_float32_of_the_same_rank_for_none_one_and_many(encoder: TransformerEncoder, count: int) -> None:
    vectors = encoder.encode(random_texts(count))
    assert vectors.shape == (count, HIDDEN) == (count, encoder.dimension)
    assert vectors.dtype == np.float32


@given(st.lists(st.integers(1, 3000), max_size=50))
def test_batches_hold_every_row_once_and_long_texts_first(lengths: list[int]) -> None:
    rows = [int(row) for batch in batches(lengths) for row in batch]
    assert sorted(rows) == list(range(len(lengths)))
    ordered = [lengths[row] for row in rows]
    assert ordered == sorted(ordered, reverse=True)


@given(st.lists(st.integers(1, 300), max_size=50), st.integers(1, 1000))
def test_batches_hold_no_more_tokens_than_asked_for_unless_one_text_does(lengths: list[int], tokens: int) -> None:
    for batch in batches(lengths, tokens):
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= tokens


@pytest.mark.parametrize(("device", "tokens"), [("cpu", BATCH_TOKENS), ("cuda", GPU_BATCH_TOKENS)])
def test_a_gpu_is_given_larger_batches(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, device: str, tokens: int
) -> None:
    encoder = load(tiny_model)
    shapes: list[tuple[int, int]] = []

    def forward(batch: dict[str, list[list[int]]], prompt_tokens: int) -> torch.Tensor:
        shapes.append((len(batch["input_ids"]), max(map(len, batch["input_ids"]))))
        return torch.zeros(len(batch["input_ids"]), HIDDEN)

    monkeypatch.setattr(encoder, "_device", torch.device(device))
    monkeypatch.setattr(encoder, "forward", forward)
    encoder.encode(["a b c d e f"] * (GPU_BATCH_TOKENS // 8 + 1))  # 6 words and 2 special tokens: 8
    assert shapes[0] == (tokens // 8, 8)
    assert sum(count for count, _ in shapes) == GPU_BATCH_TOKENS // 8 + 1


@pytest.mark.parametrize("pooling", [*MASKED_POOLINGS, "pooler"])
def test_what_is_done_around_the_model_stays_on_its_device(tiny_model: Path, pooling: str) -> None:
    # Of PyTorch's devices without a GPU, `meta` is the one that refuses, as a GPU does, to be mixed with the CPU.
    encoder = load(tiny_model, pooling=pooling)
    encoder._device = torch.device("meta")

    def model(output_hidden_states: bool, **inputs: torch.Tensor) -> SimpleNamespace:
        assert {tensor.device.type for tensor in inputs.values()} == {"meta"}
        states = [torch.zeros(*inputs["input_ids"].shape, HIDDEN, device="meta") for _ in range(LAYERS + 1)]
        return SimpleNamespace(hidden_states=states, last_hidden_state=states[-1], pooler_output=states[-1][:, 0])

    encoder.model = model
    vectors = encoder.forward(encoder.tokenize(["a b", "c d e"], "document"), prompt_tokens=1)
    assert (vectors.device.type, vectors.dtype, vectors.shape) == ("meta", torch.float32, (2, HIDDEN))


@pytest.mark.parametrize("pooling", [*MASKED_POOLINGS, "pooler"])
def test_bf16_is_near_float32_and_another_encoder(tiny_model: Path, pooling: str) -> None:
    settings = resolve_settings(tiny_model, pooling=pooling)
    exact, rounded = (load_encoder(settings, "cpu", precision=precision) for precision in ("float32", "bf16"))
    assert isinstance(rounded, TransformerEncoder)
    assert {parameter.dtype for parameter in rounded.model.parameters()} == {torch.bfloat16}
    vectors, expected = rounded.encode(texts := random_texts(50)), exact.encode(texts)
    assert vectors.dtype == np.float32
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    cosines = (vectors * expected).sum(axis=1) / lengths
    # 8 bits of mantissa through 3 layers of widely spread random weights
    assert 0.99 <= cosines.min() < 1 - 1e-6
    assert rounded.fingerprint != exact.fingerprint == load(tiny_model, pooling=pooling).fingerprint


def test_bf16_is_averaged_in_float32(tiny_model: Path) -> None:
    encoder = load_encoder(resolve_settings(tiny_model, pooling="last-avg"), "cpu", precision="bf16")
    # An average of many bf16 numbers, taken in bf16, would be one of the few numbers that bf16 has.
    vectors = torch.from_numpy(encoder.encode(["a b c d e f g h i j"]))
    assert (vectors != vectors.bfloat16().float()).float().mean() > 0.5


def test_unknown_precision_names_the_precisions(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match="unknown precision 'int8': expected auto or one of float32, bf16"):
        load_encoder(resolve_settings(tiny_model), "cpu", precision="int8")


def test_bf16_of_a_model_that_is_no_transformer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("1 2\n字 1 2\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"precision 'bf16' is for transformers, and .*words\.txt is none"):
        load_encoder(resolve_settings(tmp_path / "words.txt"), "cpu", precision="bf16")


def test_prompts_are_put_before_queries_and_documents(tiny_model: Path) -> None:
    prompted = TransformerEncoder(tiny_model, EncoderSettings("x", "last-avg", "ab", "cd", 0), "cpu")
    plain = load(tiny_model)
    np.testing.assert_array_equal(prompted.encode(["ef"], kind="query"), plain.encode(["abef"]))
    np.testing.assert_array_equal(prompted.encode(["ef"]), plain.encode(["cdef"]))


def test_long_texts_are_cut_at_max_length_and_counted(tiny_model: Path) -> None:
    encoder = load(tiny_model, max_length=10)
    long, same_start = "a b c d e f g h i j k", "a b c d e f g h"
    vectors = encoder.encode([long, same_start, "a b c d e f g"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=BATCH_TOLERANCE)  # 8 words and 2 special tokens are 10
    assert encoder.counts.truncated == 1


def test_truncation_is_counted_for_tokenizers_without_a_fast_version(tiny_model: Path) -> None:
    encoder = load(tiny_model, max_length=10)
    fast = encoder.tokenizer

    class Slow:
        """What BatchEncoding looks like without the Rust tokenizers: no `encodings`."""

        model_input_names = fast.model_input_names
        unk_token_id = fast.unk_token_id

        def __call__(self, *args: object, **options: object) -> transformers.BatchEncoding:
            return transformers.BatchEncoding(dict(fast(*args, **options)))

        def pad(self, *args: object, **options: object) -> object:
            return fast.pad(*args, **options)

    encoder.tokenizer = Slow()
    encoder.encode(["a b c d e f g h i j k", "a b c d e f g h", "a"])
    assert encoder.counts.truncated == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_text_that_the_positions_allow_is_encoded(tmp_path: Path, kind: str) -> None:
    encoder = load(make_tiny_model(tmp_path / kind, kind))
    assert encoder.settings.max_length == POSITIONS
    assert np.isfinite(encoder.encode(["字 " * 500])).all()


def test_max_length_beyond_the_positions_is_refused(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match=f"max length 65 is more than the {POSITIONS} tokens"):
        load(tiny_model, max_length=POSITIONS + 1)


def test_fingerprint_is_the_same_for_a_copy_and_another_for_anything_that_shapes_a_vector(
    tiny_model: Path, tmp_path: Path
) -> None:
    original = load(tiny_model)
    copy = shutil.copytree(tiny_model, tmp_path / "copy")
    assert load(copy).fingerprint == original.fingerprint
    variants = [
        replace(original.settings, pooling="cls"),
        replace(original.settings, query_prompt="query: "),
        replace(original.settings, document_prompt="query: "),
        replace(original.settings, max_length=20),
    ]
    prints = {TransformerEncoder(tiny_model, variant, "cpu").fingerprint for variant in variants}
    other_weights = load(make_tiny_model(tmp_path / "other", seed=1)).fingerprint
    vocabulary = (copy / "tokenizer.json").read_text(encoding="utf-8")
    (copy / "tokenizer.json").write_text(
        vocabulary.replace('"lowercase": true', '"lowercase": false'), encoding="utf-8"
    )
    assert (copy / "tokenizer.json").read_text(encoding="utf-8") != vocabulary
    assert len(prints | {other_weights, load(copy).fingerprint, original.fingerprint}) == 7


@pytest.mark.parametrize("joined", ["cls+last-avg", "last-avg+last2-avg+first-last-avg+cls+layers-0", "max+pooler"])
def test_poolings_side_by_side_are_those_of_a_pass_each(tiny_model: Path, joined: str) -> None:
    encoder, texts = load(tiny_model, pooling=joined), random_texts(20)
    apart = [load(tiny_model, pooling=pooling) for pooling in joined.split("+")]
    assert encoder.dimension == sum(each.dimension for each in apart)
    np.testing.assert_allclose(
        encoder.encode(texts), np.concatenate([each.encode(texts) for each in apart], axis=1), atol=1e-6
    )


@pytest.mark.parametrize("joined", ["cls+cls", "cls+sentence-transformers", "use+cls", "cls+", "cls+maximum"])
def test_poolings_that_cannot_stand_side_by_side_are_refused(joined: str) -> None:
    with pytest.raises(UsageError, match=r"cannot stand beside|unknown pooling"):
        resolve_settings("x", pooling=joined)


def test_unknown_pooling_names_the_poolings() -> None:
    with pytest.raises(UsageError, match="unknown pooling 'maximum': expected one of cls, last-avg"):
        pool([torch.ones(1, 1, 1)], torch.ones(1, 1), "maximum")


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (["config.json"], "has no config.json"),
        (["model.safetensors"], "has no weights"),
        (["vocab.txt", "tokenizer.json", "tokenizer_config.json"], "has no tokenizer"),
    ],
)
def test_incomplete_folder_is_named_with_what_it_lacks(
    tiny_model: Path, tmp_path: Path, removed: list[str], message: str
) -> None:
    copy = shutil.copytree(tiny_model, tmp_path / "copy")
    for name in removed:
        (copy / name).unlink(missing_ok=True)
    with pytest.raises(EncoderError, match=message):
        load(copy)


def test_checkpoint_without_all_weights_is_refused_not_filled_at_random(tiny_model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_model, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    lacking = {name: tensor for name, tensor in weights.items() if not name.startswith("encoder.layer.1.attention")}
    save_file(lacking, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EncoderError, match=r"lacks \d+ of the model's tensors"):
        load(copy)


def test_truncated_weights_are_one_clear_error(tiny_model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_model, tmp_path / "copy")
    weights = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(EncoderError, match=r"the weights in .* damaged or cut short .*: download or copy them again$"):
        load(copy)


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("bert", "BertForMaskedLM"),
        ("bert", "BertForSequenceClassification"),
        ("roberta", "RobertaForMaskedLM"),
        ("albert", "AlbertForMaskedLM"),
    ],
)
def test_checkpoint_with_a_head_and_a_prefix_loads(tmp_path: Path, kind: str, head: str) -> None:
    folder = make_tiny_model(tmp_path / kind, kind)
    torch.manual_seed(5)  # other weights than those of the folder before
    model = getattr(transformers, head)(transformers.AutoConfig.from_pretrained(folder)).eval()
    model.save_pretrained(folder)
    assert sum(name.startswith(f"{kind}.encoder.") for name in load_file(folder / "model.safetensors")) > 10
    vector = load(folder).encode(["abc"])[0]
    tokens = transformers.AutoTokenizer.from_pretrained(folder)("abc", return_tensors="pt")
    with torch.no_grad():
        expected = model.base_model(**tokens).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(vector, expected.numpy(), atol=BATCH_TOLERANCE)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_checkpoint_of_half_precision_is_computed_in_float32(
    tiny_model: Path, tmp_path: Path, dtype: torch.dtype, file: str
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "half")
    weights = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    if file == "model.safetensors":
        save_file(weights, folder / file, metadata={"format": "pt"})
    else:
        torch.save(weights, folder / file)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": str(dtype).removeprefix("torch.")}))
    encoder = load(folder)
    assert {tensor.dtype for tensor in encoder.model.state_dict().values() if tensor.is_floating_point()} == {
        torch.float32
    }
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)("甲乙丙", return_tensors="pt")
    with torch.no_grad():
        expected = model(**tokens).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(encoder.encode(["甲乙丙"])[0], expected.numpy(), atol=BATCH_TOLERANCE)


class _Payload:
    """What makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch '{self.target}'",)


@pytest.mark.parametrize("container", ["zip", "tar of old", "bare pickle"])
def test_pickled_code_in_a_checkpoint_is_refused_and_not_run(tiny_model: Path, tmp_path: Path, container: str) -> None:
    folder, ran = shutil.copytree(tiny_model, tmp_path / "pickled"), tmp_path / "ran"
    content = {**load_file(folder / "model.safetensors"), "extra": _Payload(ran)}
    (folder / "model.safetensors").unlink()
    if container == "bare pickle":
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(content["extra"]))
    else:
        torch.save(content, folder / "pytorch_model.bin", _use_new_zipfile_serialization=container == "zip")
    with pytest.raises(EncoderError, match=r"hold more than tensors.*convert them to model\.safetensors") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert not ran.exists()


def test_vocabulary_larger_than_the_embedding_table_is_refused_at_load(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "large")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = len(tokenizer)
    tokenizer.add_tokens(["[a]", "[b]", "[c]"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(EncoderError, match=f"has {rows + 3} tokens, and the model's embedding table {rows} rows"):
        load(folder)


def test_poolings_that_a_model_cannot_give_are_refused(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(EncoderError, match="has no pooler: choose another pooling"):
        load(make_tiny_model(tmp_path / "distilbert", "distilbert"), pooling="pooler")
    with pytest.raises(UsageError, match=r"pooling 'sentence-transformers' needs a modules\.json, and .* has none"):
        load(tiny_model, pooling="sentence-transformers")


@pytest.fixture
def without_special_tokens(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny BERT with a tokenizer that puts no [CLS] and [SEP] about a text."""
    folder = shutil.copytree(tiny_model, tmp_path / "bare")
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    (folder / "tokenizer.json").write_text(json.dumps({**content, "post_processor": None}), encoding="utf-8")
    return folder


NOTHING = "\ufffd\u0301"  # the tokenizer's normalizer deletes both


@pytest.mark.parametrize("pooling", [pooling for pooling in POOLINGS if pooling != "sentence-transformers"])
def test_a_text_without_a_token_has_no_vector_and_is_counted(without_special_tokens: Path, pooling: str) -> None:
    encoder = load(without_special_tokens, pooling=pooling)
    texts, done = [NOTHING, "甲乙", "丙", NOTHING], []
    vectors = encoder.encode(texts, on_batch=done.append)
    assert sum(done) == len(texts)
    assert not vectors[[0, 3]].any()
    np.testing.assert_allclose(vectors[[1, 2]], load(without_special_tokens, pooling=pooling).encode(texts[1:3]))
    assert (encoder.counts.without_vector, encoder.counts.tokens) == (2, 3)
    assert not encoder.encode([NOTHING]).any()


def test_a_prompt_that_does_not_count_is_no_token_of_a_text(without_special_tokens: Path) -> None:
    (without_special_tokens / "modules.json").write_text(
        json.dumps(
            [
                {"path": "", "type": "sentence_transformers.models.Transformer"},
                {"path": "1", "type": "sentence_transformers.models.Pooling"},
            ]
        )
    )
    (without_special_tokens / "1").mkdir()
    (without_special_tokens / "1" / "config.json").write_text('{"pooling_mode": "max", "include_prompt": false}')
    encoder = load(without_special_tokens, query_prompt="丁")
    vectors = encoder.encode([NOTHING, "甲"], kind="query")
    assert not vectors[0].any()
    assert np.isfinite(vectors[1]).all()
    assert encoder.counts.without_vector == 1


def test_a_text_without_a_token_is_never_a_hit_and_has_none(without_special_tokens: Path, tmp_path: Path) -> None:
    texts = [*random_texts(8), NOTHING]
    (tmp_path / "c.txt").write_text("\n".join(texts), encoding="utf-8")
    for transform in ("none", "whiten-3"):
        index = Index.build(tmp_path / "c.txt", tmp_path / "i", model=without_special_tokens, transform=transform)
        assert index.manifest.documents["without_vector"] == 1
        hits = index.search([texts[0], NOTHING], k=20)
        assert sorted(hit.doc_id for hit in hits[0]) == [str(row) for row in range(8)]
        assert hits[1] == []


@pytest.mark.parametrize("missing", ["./no/such/folder", "/no/such/folder", "a/b/c"])
def test_missing_folder_is_named(missing: str) -> None:
    with pytest.raises(EncoderError, match="no model folder at"):
        load_encoder(resolve_settings(missing))


def test_hub_id_that_cannot_be_had_says_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(EncoderError, match=r"no model 'some/model'.*the hub did not give it.*--model FOLDER"):
        load_encoder(resolve_settings("some/model"))


def test_catalog_entries_have_known_poolings_and_the_default_is_among_them() -> None:
    assert catalog.DEFAULT_MODEL in catalog.names()
    for name in catalog.names():
        entry = catalog.lookup(name)
        assert entry is not None
        assert entry.pooling in (*POOLINGS, "use")
        assert entry.family in catalog.SUITED_TRANSFORM
        assert resolve_settings(name).query_prompt == entry.query_prompt


def test_sentence_transformers_folder_counts_as_tuned(tiny_model: Path, tmp_path: Path) -> None:
    assert load(tiny_model).family == "raw"
    tuned = shutil.copytree(tiny_model, tmp_path / "tuned")
    entries = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    entries += [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (tuned / "modules.json").write_text(json.dumps(entries), encoding="utf-8")
    (tuned / "1_Pooling").mkdir()
    (tuned / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}', encoding="utf-8")
    assert load(tuned).family == "tuned"


def test_weights_that_do_not_fit_the_config_are_named(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 2000}), encoding="utf-8")
    with pytest.raises(EncoderError, match=r"do not fit its config.json: embeddings.word_embeddings.weight has shape"):
        load(folder)


def test_a_length_of_special_tokens_alone_is_refused(tiny_model: Path) -> None:
    for length in (-1, 2):
        with pytest.raises(UsageError, match=f"max length {length} is less than 3"):
            resolve_settings(tiny_model, max_length=length)
