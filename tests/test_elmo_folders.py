"""Folders of ELMoForManyLangs: where the settings are found, checkpoints of 2018, and what is wrong in one line."""

from __future__ import annotations

import json
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_elmo import CHARACTERS, TEXTS, changed, load, make_model, weights_of

from retrieval.errors import EncoderError


@pytest.mark.parametrize(
    ("named", "place"),
    [
        ("configs/tiny.json", "configs/tiny.json"),
        ("configs/tiny.json", "tiny.json"),
        ("/users/somebody/configs/tiny.json", "tiny.json"),
        ("configs/tiny.json", "../configs/tiny.json"),
        ("configs/tiny.json", "../tiny.json"),
    ],
)
def test_settings_are_found_in_the_folder_and_beside_it(tmp_path: Path, named: str, place: str) -> None:
    folder = make_model(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({"config_path": named}), encoding="utf-8")
    content = (folder / "configs" / "tiny.json").read_bytes()
    (folder / "configs" / "tiny.json").unlink()
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_bytes(content)
    assert load(folder).dimension == 12


def test_settings_of_the_published_models_need_no_file(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", changed(word_dim=100))
    named = json.dumps({"config_path": "/users/x/configs/cnn_50_100_512_4096_sample.json"})
    (folder / "config.json").write_text(named, encoding="utf-8")
    # word_dim 100 fits what was published, the next tensor does not: char_dim is 50 there.
    with pytest.raises(
        EncoderError, match=r"char_emb_layer.* has shape \(22, 5\), expected \(22, 50\) by cnn_50.* as pub"
    ):
        load(folder)


@pytest.mark.parametrize("storage", ["torch", "torch.cuda"])
def test_checkpoints_of_2018_load(tmp_path: Path, storage: str) -> None:
    """torch 0.4 wrote pickles without a zip around them, and a GPU's tensors with the class and place they had."""
    new, old = make_model(tmp_path / "new"), make_model(tmp_path / "old")
    for file in ("token_embedder.pkl", "encoder.pkl"):
        torch.save(OrderedDict(weights_of(new, file)), old / file, _use_new_zipfile_serialization=False)
        content = (old / file).read_bytes()
        if storage == "torch.cuda":
            changed_content = content.replace(b"ctorch\nFloatStorage", b"ctorch.cuda\nFloatStorage")
            changed_content = changed_content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            assert changed_content != content
            (old / file).write_bytes(changed_content)
    np.testing.assert_array_equal(load(old).encode(TEXTS), load(new).encode(TEXTS))


def test_ideographic_space_is_a_vocabulary_line_without_a_token(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    text = (folder / "char.dic").read_text(encoding="utf-8")
    (folder / "char.dic").write_text(text.replace("园\t", "\u3000\t"), encoding="utf-8")
    encoder = load(folder)
    assert encoder._characters["\u3000"] == CHARACTERS.index("园")


class Payload:
    """What unpickling would run."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.file}",)


def edit(file: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        weights = weights_of(folder, file)
        torch.save(change(weights) or weights, folder / file)

    return apply


def write(file: str, content: str | bytes) -> Callable[[Path], None]:
    return lambda folder: void((folder / file).write_bytes(content if isinstance(content, bytes) else content.encode()))


def configure(**values: Any) -> Callable[[Path], None]:
    return write("configs/tiny.json", json.dumps(changed(**values)))


def remove(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def truncate(file: str) -> Callable[[Path], None]:
    return lambda folder: void((folder / file).write_bytes((folder / file).read_bytes()[:900]))


def replaced(file: str, old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: write(file, (folder / file).read_text(encoding="utf-8").replace(old, new))(folder)


def void(*values: object) -> None:
    """Nothing, whatever calls give."""


STATE = "forward_layer_1.state_linearity.weight"
NOT_FINITE = "backward_layer_0.state_projection.weight"
BAD_FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    **{
        f"no {file}": (remove(file), rf"model has no {file}: expected a folder of ELMoForManyLangs")
        for file in ("config.json", "char.dic", "word.dic", "encoder.pkl", "token_embedder.pkl")
    },
    "no settings": (remove("configs/tiny.json"), r"config.json names 'configs/tiny.json', which is neither in"),
    "config not JSON": (write("config.json", "{"), "config.json is not JSON"),
    "config of bytes": (write("config.json", b"\xff\xfe\x00"), "config.json is not JSON"),
    "config without a path": (write("config.json", "[1]"), "config.json has no 'config_path'"),
    "settings without a section": (write("configs/tiny.json", "{}"), r"tiny.json has no 'encoder.name'"),
    "settings of a list": (write("configs/tiny.json", "[]"), r"tiny.json has no 'encoder.name'"),
    "settings without a key": (replaced("configs/tiny.json", '"dim"', '"other"'), "tiny.json has no 'encoder.dim'"),
    "lstm embedder": (
        replaced("configs/tiny.json", '"cnn"', '"lstm"'),
        "token_embedder.name is 'lstm': only cnn can be computed",
    ),
    "lstm encoder": (replaced("configs/tiny.json", '"elmo"', '"lstm"'), "encoder.name is 'lstm': only elmo"),
    "activation": (configure(activation="gelu"), "activation is 'gelu': only relu and tanh"),
    "dimension of text": (configure(dim="8"), "encoder.dim is '8': expected a whole number of 1 or more"),
    "dimension of true": (configure(projection_dim=True), "projection_dim is True: expected a whole number"),
    "clip below 0": (configure(cell_clip=-1), "cell_clip is -1: expected a number above 0"),
    "no embedding": (configure(word_dim=0, char_dim=0), "word_dim and char_dim are both 0"),
    "filters": (configure(filters=[[1, 2], 3]), r"filters is \[\[1, 2\], 3\]: expected pairs"),
    "wide filter": (configure(filters=[[9, 2]]), "a filter is 9 characters wide, more than the 8"),
    "many layers": (configure(n_layers=10**9), r"encoder.pkl has no tensor forward_layer_2.input_linearity.weight"),
    "few layers": (configure(n_layers=1), r"encoder.pkl has a tensor forward_layer_1\S* that .*tiny.json has no place"),
    "other dimensions": (
        configure(projection_dim=7),
        r"tensor projection.weight has shape \(6, 13\), expected \(7, 13\)",
    ),
    "shorter vocabulary": (
        replaced("word.dic", "abcdef\t6\n", ""),
        "word.dic: '<pad>' has number 10, expected 0 to 9",
    ),
    "longer vocabulary": (
        lambda folder: write("word.dic", (folder / "word.dic").read_bytes() + "公园\t11\n".encode())(folder),
        r"word_emb_layer.embedding.weight has shape \(11, 4\), expected \(12, 4\) by .* and the vocabularies",
    ),
    "vocabulary without a mark": (replaced("char.dic", "<bow>", "w"), "char.dic has no entry <bow>"),
    "vocabulary without numbers": (replaced("char.dic", "\t3\n", "\n"), "char.dic line 19: expected a token, a tab"),
    "vocabulary of three columns": (
        replaced("word.dic", "\t3\n", "\t3\t3\n"),
        "word.dic line 8: expected one tab, not 2",
    ),
    "vocabulary of bytes": (write("word.dic", b"\xff\t0\n"), "word.dic is not UTF-8"),
    "empty vocabulary": (write("word.dic", ""), "word.dic line 1: expected a token, a tab and a number"),
    "truncated": (truncate("encoder.pkl"), "encoder.pkl is not a whole torch checkpoint"),
    "truncated, of 2018": (
        lambda folder: void(
            torch.save(weights_of(folder, "encoder.pkl"), folder / "encoder.pkl", _use_new_zipfile_serialization=False),
            truncate("encoder.pkl")(folder),
        ),
        "encoder.pkl is not a whole torch checkpoint",
    ),
    "no checkpoint": (write("encoder.pkl", "hello"), "encoder.pkl is not a whole torch checkpoint"),
    "no checkpoint, a plain pickle": (write("encoder.pkl", pickle.dumps({"x": 1})), "encoder.pkl is"),
    "empty checkpoint": (write("encoder.pkl", ""), "encoder.pkl is not a whole torch checkpoint"),
    "code": (
        lambda folder: torch.save({"x": Payload(folder / "was-run")}, folder / "encoder.pkl"),
        r"encoder.pkl holds code \(posix.system\) beside tensors: it was not loaded$",
    ),
    "a list": (lambda folder: torch.save([1], folder / "encoder.pkl"), "encoder.pkl holds list, expected tensors"),
    "a number": (edit("encoder.pkl", lambda w: {**w, STATE: 3}), f"encoder.pkl has no tensor {STATE}: expected shape"),
    "a lost tensor": (edit("encoder.pkl", lambda w: void(w.pop(STATE))), f"encoder.pkl has no tensor {STATE}"),
    "whole numbers": (edit("encoder.pkl", lambda w: {**w, STATE: w[STATE].int()}), f"{STATE} does not hold finite"),
    "not finite": (edit("encoder.pkl", lambda w: void(w[NOT_FINITE].fill_(np.nan))), f"{NOT_FINITE} does not hold"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_bad_folder_is_one_clear_line(tmp_path: Path, case: str) -> None:
    damage, message = BAD_FOLDERS[case]
    folder = make_model(tmp_path / "model")
    damage(folder)
    with pytest.raises(EncoderError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert not (folder / "was-run").exists()
