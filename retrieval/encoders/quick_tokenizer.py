"""The tokens of a few short texts without loading a Unigram vocabulary of hundreds of thousands of pieces.

Loading one takes half a second, most of the time of a process that asks one query. `write_vocabulary` lays the
vocabulary beside tokenizer.json in a form that is mapped, not read. From it QuickTokenizer makes the same tokenizer
with a cut vocabulary, the pieces that occur in the texts at hand, and gives its tokens their numbers in the whole one.

Why the tokens are the same. A Unigram model (Kudo 2018, arXiv:1804.10959) splits a pre-token into the pieces whose
scores have the highest sum. The Viterbi search of `tokenizers` looks up nothing but substrings of the pre-token, to
lengthen a path and to name a run of unknown characters, and every piece that is such a substring is in the cut; among
equal sums it takes the path found first, by place and length, whatever the pieces' numbers. It needs one thing more of
the vocabulary, the lowest score (an unknown character scores 10 less), so a piece of that score is in every cut, as
are the unknown piece and the byte pieces of `byte_fallback`. A piece too many that occurs in no pre-token is never
looked up. Scores reach the library as the digits of tokenizer.json, through the same parser (which does not round as
Python does). Normaliser, pre-tokenizer, post-processor and truncation are the file's own and run in the library.
What this does not cover goes to the whole tokenizer: a text in which an added token occurs, and each file that
`write_vocabulary` refuses.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import EncoderError
from retrieval.storage import make_readable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER, VOCABULARY = "tokenizer.json", "vocabulary.safetensors"
LEAST_PIECES = 50_000
"""A smaller vocabulary is loaded in a tenth of a second and needs no cut."""

_LONGEST_PIECE = 64  # characters; SentencePiece's own limit is 16
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BATCH_CHARACTERS = 4_000
_ALL_CHARACTERS = 50_000  # cutting for so many takes as long as loading the whole vocabulary
_CALL_CHARACTERS = 30  # what a call takes besides, as characters


class Tokens(NamedTuple):
    """One text's tokens, special tokens included, cut off at the longest length."""

    ids: list[int]
    type_ids: list[int]
    truncated: bool


def write_vocabulary(tokenizer_json: Path, path: Path, least: int = LEAST_PIECES) -> bool:
    """Write the file that QuickTokenizer maps; False, and nothing written, where a cut is no use or not proved equal.

    That is for every model but Unigram, fewer than `least` pieces, pieces that are there twice, are longer than 64
    characters or have equal hashes, no unknown piece, a post-processor other than a template, and numbers written in
    digits that Python would not give back.

    The file is in safetensors' format, so that it opens without a library and can be looked at with one. Pieces are in
    the order of their hashes: `hashes` uint64, `ids` int32, `scores` float64, shape (n,), `ends` uint32, shape
    (n + 1,), into `text`, their UTF-8; `kept` int32, the rows in every cut, the unknown piece first. Its metadata hold
    tokenizer.json without the vocabulary.
    """
    from safetensors.numpy import save_file

    changed: list[str] = []

    def number(digits: str) -> float:
        value = float(digits)
        if repr(value) != digits:
            changed.append(digits)
        return value

    content = tokenizer_json.read_bytes()
    tokenizer: dict[str, Any] = json.loads(content, parse_float=number)
    model, template = tokenizer["model"], tokenizer.get("post_processor") or {"type": "TemplateProcessing"}
    if model.get("type") != "Unigram" or model.get("unk_id") is None or template["type"] != "TemplateProcessing":
        return False
    pieces: list[str] = [piece for piece, _ in model["vocab"]]
    longest = max(map(len, pieces))
    if changed or len(pieces) < least or longest > _LONGEST_PIECE:
        return False
    hashes = _hashes(pieces, longest)
    order = np.argsort(hashes)
    if (np.diff(hashes[order]) == 0).any():
        return False

    scores = np.array([score for _, score in model.pop("vocab")], dtype=np.float64)
    kept = [model["unk_id"], int(scores.argmin())]
    if model.get("byte_fallback"):
        names = {f"<0x{byte:02X}>" for byte in range(256)}
        kept += [number for number, piece in enumerate(pieces) if piece in names]
    rows = np.empty_like(order)
    rows[order] = np.arange(len(order))
    text = [pieces[number].encode() for number in order]
    arrays: dict[str, NDArray[Any]] = {
        "hashes": hashes[order],
        "ids": order.astype(np.int32),
        "scores": scores[order],
        "ends": np.cumsum([0, *map(len, text)], dtype=np.uint32),
        "text": np.frombuffer(b"".join(text), dtype=np.uint8),
        "kept": rows[list(dict.fromkeys(kept))].astype(np.int32),
    }
    description = {
        "tokenizer": tokenizer | {"truncation": None, "padding": None, "model": model | {"unk_id": 0}},
        "longest": longest,
        "tokenizer_bytes": len(content),
    }
    save_file(arrays, path, metadata={"description": json.dumps(description, ensure_ascii=False)})
    make_readable(path)
    return True


class QuickTokenizer:
    """The tokens of a folder's tokenizer.json, which is loaded only when that pays.

    A cut serves each batch of up to 4,000 characters, until all batches together had 50,000 (each counts 30 besides),
    which takes as long as loading. Then, or at the first longer batch, or at the first text in which an added token
    occurs, the whole tokenizer is loaded, once, and serves all that follows.

    Parameters
    ----------
    folder : holds tokenizer.json, and the file of `write_vocabulary` where there is one; else all is loaded at once.
    max_length : of a text, in tokens, special tokens included.

    Raises
    ------
    EncoderError
        A file cannot be read, or they do not belong together.
    """

    def __init__(self, folder: Path, max_length: int) -> None:
        self._path, self._max_length = folder / TOKENIZER, max_length
        self._left = _ALL_CHARACTERS
        self._whole: Tokenizer | None = None
        if (folder / VOCABULARY).exists():
            self._vocabulary = _Vocabulary(folder / VOCABULARY, self._path)
        else:
            self._whole = self._load()

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text, whatever the others are."""
        if self._whole is None:
            characters = sum(map(len, texts))
            self._left -= characters + _CALL_CHARACTERS
            if characters <= _BATCH_CHARACTERS and self._left >= 0:
                tokens = self._vocabulary.encode(texts, self._max_length)
                if tokens is not None:
                    return tokens
            self._whole = self._load()
        return [
            Tokens(encoding.ids, encoding.type_ids, bool(encoding.overflowing))
            for encoding in self._whole.encode_batch(list(texts))
        ]

    def _load(self) -> Tokenizer:
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(self._path))
        except Exception as error:  # tokenizers raises nothing narrower
            raise EncoderError(f"{self._path} cannot be loaded: {error}") from error
        tokenizer.no_padding()
        tokenizer.enable_truncation(self._max_length)
        return tokenizer


class _Vocabulary:
    """The file of `write_vocabulary`, mapped."""

    def __init__(self, path: Path, tokenizer_json: Path) -> None:
        from tokenizers import Tokenizer

        try:
            with path.open("rb") as file:
                self._image = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            start = 8 + int.from_bytes(self._image[:8], "little")
            header = json.loads(self._image[8:start])
            description = json.loads(header["__metadata__"]["description"])

            def array(name: str, dtype: str) -> NDArray[Any]:
                first, last = header[name]["data_offsets"]
                size = (last - first) // np.dtype(dtype).itemsize
                return np.frombuffer(self._image, dtype, size, start + first)

            self._hashes, self._ids, self._scores = array("hashes", "<u8"), array("ids", "<i4"), array("scores", "<f8")
            self._ends, self._kept = array("ends", "<u4"), array("kept", "<i4").tolist()
            self._text = start + header["text"]["data_offsets"][0]
            self._longest: int = description["longest"]
            self._model = description["tokenizer"]["model"]
            # It knows nothing but the added tokens, and so gives back each pre-token whole, as token 0.
            bare = description["tokenizer"] | {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["", 0.0]]}}
            self._bare = Tokenizer.from_str(json.dumps(bare))
            expected, found = description["tokenizer_bytes"], tokenizer_json.stat().st_size
        except Exception as error:  # tokenizers raises nothing narrower
            raise EncoderError(f"{path} cannot be loaded: {error}") from error
        if expected != found:
            raise EncoderError(f"{tokenizer_json} has {found} bytes, {path} was made from one of {expected}")

    def encode(self, texts: Sequence[str], max_length: int) -> list[Tokens] | None:
        """The texts' tokens by a cut made for them; None where one holds an added token."""
        from tokenizers import Tokenizer

        bare = [self._bare.encode(text, add_special_tokens=False) for text in texts]
        if any(any(encoding.ids) for encoding in bare):
            return None
        pieces = self._pieces("".join(token for encoding in bare for token in encoding.tokens))
        rows = list(pieces)
        vocabulary = list(zip(pieces.values(), self._scores[rows].tolist(), strict=True))
        cut = Tokenizer.from_str(json.dumps({"version": "1.0", "model": self._model | {"vocab": vocabulary}}))
        cut.normalizer, cut.pre_tokenizer = self._bare.normalizer, self._bare.pre_tokenizer
        cut.post_processor = self._bare.post_processor
        cut.enable_truncation(max_length)
        ids = self._ids[rows].tolist()
        encodings = [cut.encode(text) for text in texts]
        return [
            Tokens(
                # The template's own tokens have the whole vocabulary's numbers already.
                [i if special else ids[i] for i, special in zip(each.ids, each.special_tokens_mask, strict=True)],
                each.type_ids,
                bool(each.overflowing),
            )
            for each in encodings
        ]

    def _pieces(self, text: str) -> dict[int, str]:
        """Row -> piece, for the rows in every cut and each piece that is a substring of `text`."""
        pieces = {row: self._stored(row).decode() for row in self._kept}
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        hashes = np.ones(len(codes), dtype=np.uint64)
        for length in range(1, min(self._longest, len(codes)) + 1):
            # (characters - length + 1,): the hash of the substring of this length from each place
            hashes = hashes[: len(codes) - length + 1] * _FACTOR + codes[length - 1 :]
            rows = np.searchsorted(self._hashes, hashes).clip(max=len(self._hashes) - 1)
            places = np.flatnonzero(self._hashes[rows] == hashes)
            for row, place in zip(rows[places].tolist(), places.tolist(), strict=True):
                if row not in pieces and self._stored(row) == text[place : place + length].encode():
                    pieces[row] = text[place : place + length]
        return pieces

    def _stored(self, row: int) -> bytes:
        return self._image[self._text + int(self._ends[row]) : self._text + int(self._ends[row + 1])]


def _hashes(pieces: Sequence[str], longest: int) -> NDArray[np.uint64]:
    """The piece's code points c as a polynomial modulo 2^64: h = h x factor + c, from h = 1."""
    codes = np.array(pieces, dtype=f"<U{longest}").view("<u4").reshape(len(pieces), longest)
    lengths = np.array([len(piece) for piece in pieces])
    hashes = np.ones(len(pieces), dtype=np.uint64)
    for place in range(longest):
        hashes = np.where(lengths > place, hashes * _FACTOR + codes[:, place], hashes)
    return hashes
