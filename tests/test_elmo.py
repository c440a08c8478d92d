"""ELMo in the format of ELMoForManyLangs: the arithmetic against plain numpy, batches, counts, segmentation."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
import warnings
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

if importlib.util.find_spec("jieba") is None:
    pytest.skip("jieba is not installed", allow_module_level=True)

from retrieval.encoders import elmo, elmo_network
from retrieval.encoders import words as words_room
from retrieval.encoders.base import EncoderCounts, EncoderSettings
from retrieval.encoders.elmo import ElmoEncoder
from retrieval.encoders.words import segment
from retrieval.errors import EncoderError, UsageError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its regular expressions and of pkg_resources
    import jieba

# float32 sums in another order differ by a few units of 2^-24 of the values, which are about 1 here.
TOLERANCE = 1e-5

SETTINGS = EncoderSettings("x", "average", "", "", 0)
MARKS = ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
CHARACTERS = [*"今天气很好我们去公园abcde。", *MARKS]
WORDS = ["今天", "天气", "很", "好", "我们", "abc", "abcdef", *MARKS[:4]]
TEXTS = ["今天天气很好。", "我们去公园", "abc 好", "好", "zzz 公园 很大", "abcdefgh 今天 a", "好 " * 30, "天" * 9]
CONFIG: dict[str, Any] = {
    # Clips so narrow that they act: test_both_clips_act proves it.
    "encoder": {"name": "elmo", "projection_dim": 6, "dim": 8, "n_layers": 2, "cell_clip": 0.3, "proj_clip": 0.4},
    "token_embedder": {
        "name": "cnn",
        "word_dim": 4,
        "char_dim": 5,
        "max_characters_per_token": 8,
        "filters": [[1, 3], [2, 2], [4, 4]],
        "n_highway": 2,
        "activation": "relu",
    },
}


def changed(**values: Any) -> dict[str, Any]:
    """CONFIG with other values, wherever their names are."""
    config = copy.deepcopy(CONFIG)
    for name, value in values.items():
        (section,) = [part for part in config.values() if name in part]
        section[name] = value
    return config


def make_model(folder: Path, config: dict[str, Any] = CONFIG, seed: int = 0) -> Path:
    """A folder as the original's training writes it, with random weights."""
    random = np.random.default_rng(seed)
    encoder, token = config["encoder"], config["token_embedder"]
    p, c = encoder["projection_dim"], encoder["dim"]
    filters = token["filters"] if token["char_dim"] else []
    n = sum(count for _, count in filters)
    shapes: dict[str, tuple[int, ...]] = {}
    if token["word_dim"]:
        shapes["word_emb_layer.embedding.weight"] = (len(WORDS), token["word_dim"])
    if token["char_dim"]:
        shapes["char_emb_layer.embedding.weight"] = (len(CHARACTERS), token["char_dim"])
    for i, (width, count) in enumerate(filters):
        shapes |= {f"convolutions.{i}.weight": (count, token["char_dim"], width), f"convolutions.{i}.bias": (count,)}
    for i in range(token["n_highway"] if n else 0):
        shapes |= {f"highways._layers.{i}.weight": (2 * n, n), f"highways._layers.{i}.bias": (2 * n,)}
    shapes |= {"projection.weight": (p, token["word_dim"] + n), "projection.bias": (p,)}
    cells: dict[str, tuple[int, ...]] = {}
    for name in (f"{way}_layer_{i}" for i in range(encoder["n_layers"]) for way in ("forward", "backward")):
        cells |= {f"{name}.input_linearity.weight": (4 * c, p), f"{name}.state_linearity.weight": (4 * c, p)}
        cells |= {f"{name}.state_linearity.bias": (4 * c,), f"{name}.state_projection.weight": (p, c)}
    folder.mkdir(parents=True, exist_ok=True)
    for file, part in (("token_embedder.pkl", shapes), ("encoder.pkl", cells)):
        weights = {name: torch.tensor(random.normal(0, 0.7, shape)).float() for name, shape in part.items()}
        torch.save(OrderedDict(weights), folder / file)
    (folder / "configs").mkdir(exist_ok=True)
    (folder / "configs" / "tiny.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"config_path": "configs/tiny.json", "seed": 1}), encoding="utf-8")
    for file, entries in (("char.dic", CHARACTERS), ("word.dic", WORDS)):
        lines = [f"{entry}\t{number}\n" for number, entry in enumerate(entries)]
        (folder / file).write_text("".join(reversed(lines)), encoding="utf-8")
    return folder


def load(folder: Path, **options: Any) -> ElmoEncoder:
    return ElmoEncoder(folder, replace(SETTINGS, **options), "cpu")


def weights_of(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return torch.load(folder / name, weights_only=True)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("elmo") / "tiny")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> ElmoEncoder:
    return load(folder)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def plain_layers(folder: Path, config: dict[str, Any], words: list[str]) -> np.ndarray:
    """The states of <bos>, words, <eos>, one token and one step at a time in float64: shape (1 + layers, T, 2 P)."""
    embedder, encoder = (
        {name: tensor.double().numpy() for name, tensor in weights_of(folder, file).items()}
        for file in ("token_embedder.pkl", "encoder.pkl")
    )
    token, lstm = config["token_embedder"], config["encoder"]
    longest = token["max_characters_per_token"]

    def embedded(word: str) -> np.ndarray:
        parts = []
        if token["word_dim"]:
            known = word if word in WORDS else "<oov>"
            parts.append(embedder["word_emb_layer.embedding.weight"][WORDS.index(known)])
        if token["char_dim"]:
            # The original's bow_id is the number of <eow>, and the other way round.
            spelled = ["<eow>", *([word] if word in ("<bos>", "<eos>") else word), "<bow>"]
            spelled += ["<pad>"] * (longest - len(spelled))
            known_ids = [CHARACTERS.index(each if each in CHARACTERS else "<oov>") for each in spelled]
            vectors = embedder["char_emb_layer.embedding.weight"][known_ids]
            features = []
            for i, (width, count) in enumerate(token["filters"]):
                kernel, bias = embedder[f"convolutions.{i}.weight"], embedder[f"convolutions.{i}.bias"]
                for f in range(count):
                    places = range(longest - width + 1)
                    best = max(sum(kernel[f, :, j] @ vectors[at + j] for j in range(width)) + bias[f] for at in places)
                    features.append(np.tanh(best) if token["activation"] == "tanh" else max(best, 0.0))
            x = np.array(features)
            for i in range(token["n_highway"]):
                y = embedder[f"highways._layers.{i}.weight"] @ x + embedder[f"highways._layers.{i}.bias"]
                gate = sigmoid(y[len(x) :])
                x = gate * x + (1 - gate) * np.maximum(y[: len(x)], 0)
            parts.append(x)
        return embedder["projection.weight"] @ np.concatenate(parts) + embedder["projection.bias"]

    def clipped(x: np.ndarray, bound: float | None) -> np.ndarray:
        return np.clip(x, -bound, bound) if bound else x

    tokens = ["<bos>", *(word[: longest - 2] for word in words), "<eos>"]
    first = [embedded(word) for word in tokens]
    halves = []
    for way in ("forward", "backward"):
        layers, order = [first], range(len(tokens)) if way == "forward" else reversed(range(len(tokens)))
        places = list(order)
        for layer in range(lstm["n_layers"]):
            w = {name: encoder[f"{way}_layer_{layer}.{name}"] for name in CELL_TENSORS}
            h, m = np.zeros(lstm["projection_dim"]), np.zeros(lstm["dim"])
            states = [np.zeros(0)] * len(tokens)
            for t in places:
                gates = w["input_linearity.weight"] @ layers[-1][t] + w["state_linearity.weight"] @ h
                i, f, g, o = np.split(gates + w["state_linearity.bias"], 4)
                m = clipped(sigmoid(i) * np.tanh(g) + sigmoid(f) * m, lstm["cell_clip"])
                h = clipped(w["state_projection.weight"] @ (sigmoid(o) * np.tanh(m)), lstm["proj_clip"])
                states[t] = h + layers[-1][t] if layer > 0 else h
            layers.append(states)
        halves.append(np.array(layers))
    return np.concatenate(halves, axis=2)


CELL_TENSORS = (
    "input_linearity.weight",
    "state_linearity.weight",
    "state_linearity.bias",
    "state_projection.weight",
)


def plain_vector(folder: Path, config: dict[str, Any], text: str) -> np.ndarray:
    words = segment(text)
    average_of_layers = plain_layers(folder, config, words).mean(axis=0)
    return average_of_layers[1:-1].mean(axis=0)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        changed(word_dim=0),
        changed(char_dim=0),
        changed(activation="tanh", n_highway=0),
        changed(n_layers=1, cell_clip=0, proj_clip=None),
        changed(n_layers=3, filters=[[8, 2]], cell_clip=3, proj_clip=3),
    ],
    ids=["words and characters", "characters", "words", "tanh", "one layer, no clip", "three layers, a wide filter"],
)
def test_vectors_equal_the_formulas_one_token_at_a_time(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = make_model(tmp_path / "model", config)
    expected = [plain_vector(folder, config, text) for text in TEXTS]
    np.testing.assert_allclose(load(folder).encode(TEXTS), expected, atol=TOLERANCE)


def test_characters_left_out_of_the_padding_change_no_maximum(tmp_path: Path) -> None:
    # In one text at a time the words are short, and far fewer than the configured 30 characters are computed. For some
    # of the filters a window of padding alone has the largest value, so that it may not be lost.
    config = changed(word_dim=0, max_characters_per_token=30, filters=[[1, 5], [2, 5], [4, 5]], n_highway=0)
    folder, texts = make_model(tmp_path / "model", config), ["好", "今天 a", "abc 公园"]
    expected = [plain_vector(folder, config, text) for text in texts]
    encoder = load(folder)
    np.testing.assert_allclose([encoder.encode([text])[0] for text in texts], expected, atol=TOLERANCE)


@pytest.mark.parametrize("clip", ["cell_clip", "proj_clip"])
def test_both_clips_act_in_the_tiny_model(folder: Path, clip: str) -> None:
    text = TEXTS[0]
    difference = plain_vector(folder, CONFIG, text) - plain_vector(folder, changed(**{clip: 0}), text)
    assert np.abs(difference).max() > 1e-2


def zeroed(folder: Path, **kept: list[float]) -> Path:
    """Give every weight the value 0 but those named, which hold the given numbers."""
    for file in ("token_embedder.pkl", "encoder.pkl"):
        weights = {name: torch.zeros_like(tensor) for name, tensor in weights_of(folder, file).items()}
        for name, numbers in kept.items():
            for tensor in (tensor for full, tensor in weights.items() if full.endswith(name.replace("__", "."))):
                tensor.copy_(torch.tensor(numbers).reshape(tensor.shape))
        torch.save(weights, folder / file)
    return folder


SMALL = changed(word_dim=1, char_dim=0, projection_dim=1, dim=1, cell_clip=0, proj_clip=0)


def test_vector_of_worked_values_is_the_mean_of_three_layers_and_starts_from_a_zero_state(tmp_path: Path) -> None:
    # All gates but the candidate are sigmoid(0) = 1/2, the candidate is tanh(1), whatever the token: the memory is
    # tanh(1)/2 at the first token and tanh(1)/2 + tanh(1)/4 at the second, which is the one word from either end.
    # The state there is tanh(memory)/2 * 4; layer 1 gives it as it is, layer 2 adds it to its input. Layer 0 is 9.
    folder = zeroed(
        make_model(tmp_path / "model", SMALL),
        projection__bias=[9.0],
        state_linearity__bias=[0.0, 0.0, 1.0, 0.0],
        state_projection__weight=[4.0],
    )
    state = 2 * np.tanh(0.75 * np.tanh(1.0))
    expected = (9 + state + 2 * state) / 3
    np.testing.assert_allclose(load(folder).encode(["好"]), [[expected, expected]], rtol=1e-6)


def test_states_of_bos_and_eos_do_not_count_and_words_count_alike(tmp_path: Path) -> None:
    # With all LSTMs at 0 a vector is a third of layer 0: here a number for each word.
    numbers = {"好": 3.0, "很": 6.0, "<oov>": 12.0, "<bos>": 1e6, "<eos>": 1e6, "<pad>": 1e6}
    folder = zeroed(
        make_model(tmp_path / "model", SMALL),
        embedding__weight=[numbers.get(word, 0.0) for word in WORDS],
        projection__weight=[1.0],
    )
    vectors = load(folder).encode(["好", "很 好 好", "好 公园"])
    np.testing.assert_allclose(vectors[:, 0], [1.0, 12 / 9, 15 / 6], rtol=1e-6)
    np.testing.assert_allclose(vectors[:, 1], vectors[:, 0])


@examples(max_examples=25)
@given(st.lists(st.one_of(st.sampled_from(TEXTS), st.text(st.sampled_from("今天气好ab z。"), max_size=12)), max_size=9))
def test_a_vector_never_depends_on_its_batch(encoder: ElmoEncoder, texts: list[str]) -> None:
    alone = [encoder.encode([text])[0] for text in texts]
    np.testing.assert_allclose(encoder.encode(texts), np.reshape(alone, (-1, 12)), atol=TOLERANCE)


def test_sizes_of_batches_and_blocks_are_invisible(encoder: ElmoEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = encoder.encode(TEXTS)
    monkeypatch.setattr(elmo, "BATCH_TEXTS", 3)
    monkeypatch.setattr(elmo, "BATCH_TOKENS", 20)
    monkeypatch.setattr(elmo, "_EMBEDDED_WORDS", 2)
    monkeypatch.setattr(elmo_network, "_PROJECTED_TOKENS", 5)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=TOLERANCE)


def test_lstm_states_do_not_run_on_into_the_next_call(folder: Path) -> None:
    encoder = load(folder)
    np.testing.assert_array_equal(encoder.encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_encode_gives_float32_of_the_same_rank_for_none_one_and_many(encoder: ElmoEncoder, count: int) -> None:
    vectors = encoder.encode(TEXTS[:count])
    assert vectors.shape == (count, 12) == (count, encoder.dimension)
    assert vectors.dtype == np.float32


def test_texts_without_a_word_are_zero_counted_and_reported(folder: Path) -> None:
    encoder, reported = load(folder), list[int]()
    vectors = encoder.encode(["", "好", " \n\u3000\t"], on_batch=reported.append)
    assert not vectors[[0, 2]].any()
    assert np.isfinite(vectors).all()
    assert encoder.counts == EncoderCounts(tokens=1, without_vector=2)
    assert sum(reported) == 3


def test_words_beyond_max_length_are_cut_and_counted(folder: Path) -> None:
    encoder = load(folder, max_length=2)
    vectors = encoder.encode(["今天 很 好", "今天 很", "今天"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=TOLERANCE)
    assert encoder.counts == EncoderCounts(truncated=1, tokens=5)


def test_words_that_the_vocabulary_lacks_are_counted(tmp_path: Path, folder: Path) -> None:
    encoder = load(folder)
    encoder.encode(["我们 去 公园"])  # word.dic lacks two of them
    assert encoder.counts == EncoderCounts(tokens=3, unknown=2)
    spelled = load(make_model(tmp_path / "spelled", changed(word_dim=0)))
    spelled.encode(["公园 z"])  # char.dic lacks z
    assert spelled.counts == EncoderCounts(tokens=2, unknown=1)


def test_long_words_are_cut_to_the_configured_characters(encoder: ElmoEncoder) -> None:
    # 8 characters with both marks: 6 are kept, and abcdef is the word that is looked up.
    np.testing.assert_allclose(encoder.encode(["abcdefgh"]), encoder.encode(["abcdef"]), atol=TOLERANCE)


def test_prompts_are_put_before_queries_and_documents(folder: Path, encoder: ElmoEncoder) -> None:
    prompted = load(folder, query_prompt="今天 ", document_prompt="我们 ")
    np.testing.assert_allclose(prompted.encode(["好"], kind="query"), encoder.encode(["今天 好"]), atol=TOLERANCE)
    np.testing.assert_allclose(prompted.encode(["好"]), encoder.encode(["我们 好"]), atol=TOLERANCE)


def test_text_of_half_a_surrogate_pair_is_an_unknown_word(encoder: ElmoEncoder) -> None:
    assert np.isfinite(encoder.encode(["\ud800 好"])).all()


def test_segmentation_is_jiebas_quiet_and_does_not_follow_its_shared_dictionary(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jieba.dt, "tmp_dir", str(tmp_path))
    text = "我们去公园，今天天气很好！ OK 3.5%"
    words = [word for word in jieba.lcut(text) if word.strip()]
    capfd.readouterr()
    words_room._segmenter.cache_clear()
    encoder = load(folder)
    assert encoder._segment(text) == words
    jieba.add_word("去公园")
    try:
        assert jieba.lcut(text) != words
        assert encoder._segment(text) == words
    finally:
        jieba.del_word("去公园")
    assert capfd.readouterr() == ("", "")


def test_fingerprint_follows_whatever_changes_a_vector(tmp_path: Path, folder: Path) -> None:
    original = load(folder).fingerprint
    assert load(folder).fingerprint == original == load(make_model(tmp_path / "same"), source="y").fingerprint
    others = [load(folder, max_length=3).fingerprint, load(folder, query_prompt="q").fingerprint]
    others += [load(make_model(tmp_path / "seed", seed=1)).fingerprint]
    others += [load(make_model(tmp_path / "clip", changed(cell_clip=0.2))).fingerprint]
    moved = make_model(tmp_path / "moved")
    text = (moved / "word.dic").read_text(encoding="utf-8")
    (moved / "word.dic").write_text(text.replace("很\t", "很很\t"), encoding="utf-8")
    others += [load(moved).fingerprint]
    assert len({original, *others}) == 6


@pytest.mark.parametrize(
    ("options", "device", "message"),
    [
        ({"pooling": "cls"}, "cpu", "unknown pooling 'cls' for ELMo: expected average"),
        ({"max_length": -1}, "cpu", "max length -1 is below 0"),
        ({}, "gpu9", "unknown device 'gpu9'"),
    ],
)
def test_wrong_arguments_are_named(folder: Path, options: dict[str, Any], device: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ElmoEncoder(folder, replace(SETTINGS, **options), device)


def test_missing_jieba_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jieba", None)
    words_room._segmenter.cache_clear()
    with pytest.raises(EncoderError, match="jieba is needed to find words"):
        load(folder)
