"""A model folder of ELMoForManyLangs -> vocabularies, settings and weights, each of them checked."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from retrieval.encoders.elmo_network import ElmoConfig, Shapes, embedder_shapes, encoder_shapes
from retrieval.errors import EncoderError

BOS, EOS, OOV, PAD = "<bos>", "<eos>", "<oov>", "<pad>"
BOW, EOW = "<bow>", "<eow>"

_PUBLISHED_FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]
_PUBLISHED: dict[str, dict[str, Any]] = {
    "encoder": {"name": "elmo", "projection_dim": 512, "dim": 4096, "n_layers": 2, "cell_clip": 3, "proj_clip": 3},
    "token_embedder": {
        "name": "cnn",
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
        "filters": _PUBLISHED_FILTERS,
        "n_highway": 2,
        "activation": "relu",
    },
}
"""The settings of the published models, whose folders name this file without holding it."""

_PUBLISHED_NAME = "cnn_50_100_512_4096_sample.json"
_ACTIVATIONS = ("relu", "tanh")


@dataclass(frozen=True)
class ElmoFolder:
    """A model as it was read, on the CPU."""

    config: ElmoConfig
    words: dict[str, int]
    """Empty where the model has no word embedding; `characters` likewise."""
    characters: dict[str, int]
    embedder: dict[str, torch.Tensor]
    encoder: dict[str, torch.Tensor]
    files: tuple[Path, ...]
    """What the vectors depend on beside `config`: vocabularies and weights."""


def read_elmo_folder(folder: Path) -> ElmoFolder:
    """Read the whole model.

    Raises
    ------
    EncoderError
        A file is missing, damaged, holds pickled code, or does not fit the others.
    """
    source, content = _network_settings(folder)
    config = _parse(source, content)
    files = [folder / "token_embedder.pkl", folder / "encoder.pkl"]
    words: dict[str, int] = {}
    characters: dict[str, int] = {}
    if config.word_dim:
        words = _vocabulary(folder / "word.dic", (OOV, PAD))
        files.append(folder / "word.dic")
    if config.char_dim:
        characters = _vocabulary(folder / "char.dic", (OOV, PAD, BOS, EOS, BOW, EOW))
        files.append(folder / "char.dic")
    embedder = _weights(files[0], embedder_shapes(config, len(words), len(characters)), source)
    encoder = _weights(files[1], encoder_shapes(config), source)
    return ElmoFolder(config, words, characters, embedder, encoder, tuple(files))


def _network_settings(folder: Path) -> tuple[str, Any]:
    """What config.json's config_path names, and where it was found."""
    config = _json(folder / "config.json")
    named = config.get("config_path") if isinstance(config, dict) else None
    if not isinstance(named, str) or not Path(named).name:
        raise EncoderError(f"{folder / 'config.json'} has no 'config_path', the name of the file with the settings")
    for base in (folder, folder.resolve().parent):
        for path in (base / named, base / Path(named).name):
            if path.is_file():
                return str(path), _json(path)
    if Path(named).name == _PUBLISHED_NAME:
        return f"{_PUBLISHED_NAME} as published", _PUBLISHED
    raise EncoderError(f"{folder / 'config.json'} names {named!r}, which is neither in {folder} nor beside it")


def _parse(source: str, content: Any) -> ElmoConfig:
    _choice(source, content, "encoder.name", ("elmo",))
    _choice(source, content, "token_embedder.name", ("cnn",))
    word_dim = _whole(source, content, "token_embedder.word_dim", 0)
    char_dim = _whole(source, content, "token_embedder.char_dim", 0)
    if not word_dim + char_dim:
        raise EncoderError(f"{source}: token_embedder.word_dim and char_dim are both 0: words would have no embedding")
    config = ElmoConfig(
        projection_dim=_whole(source, content, "encoder.projection_dim", 1),
        cell_dim=_whole(source, content, "encoder.dim", 1),
        layers=_whole(source, content, "encoder.n_layers", 1),
        cell_clip=_clip(source, content, "encoder.cell_clip"),
        projection_clip=_clip(source, content, "encoder.proj_clip"),
        word_dim=word_dim,
        char_dim=char_dim,
        max_characters=_whole(source, content, "token_embedder.max_characters_per_token", 3),
        filters=_filters(source, content) if char_dim else (),
        highways=_whole(source, content, "token_embedder.n_highway", 0) if char_dim else 0,
        activation=_choice(source, content, "token_embedder.activation", _ACTIVATIONS) if char_dim else "relu",
    )
    if config.widest_filter > config.max_characters:
        raise EncoderError(
            f"{source}: a filter is {config.widest_filter} characters wide, "
            f"more than the {config.max_characters} of max_characters_per_token"
        )
    return config


def _value(source: str, content: Any, key: str) -> Any:
    section, name = key.split(".")
    try:
        return content[section][name]
    except (KeyError, TypeError, IndexError):
        raise EncoderError(f"{source} has no '{key}'") from None


def _choice(source: str, content: Any, key: str, choices: tuple[str, ...]) -> str:
    value = _value(source, content, key)
    if not isinstance(value, str) or value.lower() not in choices:
        raise EncoderError(f"{source}: {key} is {value!r}: only {' and '.join(choices)} can be computed")
    return value.lower()


def _whole(source: str, content: Any, key: str, least: int) -> int:
    value = _value(source, content, key)
    if type(value) is not int or value < least:
        raise EncoderError(f"{source}: {key} is {value!r}: expected a whole number of {least} or more")
    return value


def _clip(source: str, content: Any, key: str) -> float:
    value = _value(source, content, key) or 0
    if type(value) not in (int, float) or not value >= 0:
        raise EncoderError(f"{source}: {key} is {value!r}: expected a number above 0, or 0 for none")
    return float(value)


def _filters(source: str, content: Any) -> tuple[tuple[int, int], ...]:
    value = _value(source, content, "token_embedder.filters")
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(pair, list) and len(pair) == 2 for pair in value)
        or not all(type(number) is int and number > 0 for pair in value for number in pair)
    ):
        raise EncoderError(f"{source}: token_embedder.filters is {value!r}: expected pairs of width and number")
    return tuple((width, count) for width, count in value)


def _vocabulary(path: Path, needed: tuple[str, ...]) -> dict[str, int]:
    """Token -> number. A line without a token stands for the ideographic space, which the original strips as well."""
    try:
        lines = _bytes(path).decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise EncoderError(f"{path} is not UTF-8: {error}") from None
    vocabulary: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        *token, index = line.strip().split("\t")
        try:
            vocabulary[token[0] if token else "\u3000"] = int(index)
        except ValueError:
            raise EncoderError(f"{path} line {number}: expected a token, a tab and a number, not {line!r}") from None
        if len(token) > 1:
            raise EncoderError(f"{path} line {number}: expected one tab, not {len(token)}")
    if lacking := [token for token in needed if token not in vocabulary]:
        raise EncoderError(f"{path} has no entry {lacking[0]}")
    for entry, place in vocabulary.items():
        if not 0 <= place < len(vocabulary):
            raise EncoderError(f"{path}: {entry!r} has number {place}, expected 0 to {len(vocabulary) - 1}")
    return vocabulary


def _weights(path: Path, shapes: Shapes, source: str) -> dict[str, torch.Tensor]:
    loaded = _checkpoint(path)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in shapes:
        tensor = loaded.get(name)
        if not isinstance(tensor, torch.Tensor):
            raise EncoderError(f"{path} has no tensor {name}: expected shape {shape} by {source}")
        if tuple(tensor.shape) != shape:
            raise EncoderError(
                f"{path}: tensor {name} has shape {tuple(tensor.shape)}, "
                f"expected {shape} by {source} and the vocabularies"
            )
        if tensor.layout is not torch.strided or not tensor.is_floating_point() or not tensor.isfinite().all():
            raise EncoderError(f"{path}: tensor {name} does not hold finite floats")
        weights[name] = tensor.to(torch.float32).contiguous()
    if surplus := [name for name in loaded if name not in weights]:
        raise EncoderError(f"{path} has a tensor {surplus[0]} that {source} has no place for")
    return weights


def _checkpoint(path: Path) -> dict[Any, Any]:
    if not path.is_file():
        raise _missing(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))  # the rest of the message advises to run it
        found = f"holds code ({refused[1]}) beside tensors" if refused else "is damaged or holds more than tensors"
        raise EncoderError(f"{path} {found}: it was not loaded") from error
    except Exception as error:  # each stage of reading has failures of its own
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise EncoderError(f"{path} is not a whole torch checkpoint ({type(error).__name__}: {reason})") from error
    if not isinstance(loaded, dict):
        raise EncoderError(f"{path} holds {type(loaded).__name__}, expected tensors by name")
    return loaded


def _json(path: Path) -> Any:
    try:
        return json.loads(_bytes(path))
    except (ValueError, RecursionError) as error:
        raise EncoderError(f"{path} is not JSON: {error}") from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise EncoderError(f"{path} cannot be read: {error.strerror}") from None


def _missing(path: Path) -> EncoderError:
    return EncoderError(
        f"{path.parent} has no {path.name}: expected a folder of ELMoForManyLangs with config.json, "
        "char.dic, word.dic, encoder.pkl and token_embedder.pkl"
    )
