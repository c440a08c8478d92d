"""The vectors of a transformer through ONNX Runtime: no torch and no transformers to load, and a graph that can travel.

A graph folder holds `model.onnx` (token numbers -> pooled embedding), `tokenizer.json`, and `encoder.json` (settings
and precision). It is all that a query needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import EncoderCounts, EncoderSettings, Family, TextKind, settings_fingerprint
from retrieval.encoders.batches import batches, parts
from retrieval.errors import EncoderError, UsageError
from retrieval.storage import cached_sha256, link_or_copy

GRAPH, TOKENIZER, DESCRIPTION = "model.onnx", "tokenizer.json", "encoder.json"
GRAPH_FILES = (GRAPH, TOKENIZER, DESCRIPTION)
PRECISIONS = ("float32", "int8")


class OnnxEncoder:
    """A transformer with its pooling as one ONNX graph.

    Parameters
    ----------
    folder : what `onnx_export.export_graph` wrote.

    Raises
    ------
    EncoderError
        A file is missing or unreadable.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise EncoderError(
                f"the encoder in {folder} needs ONNX Runtime ({error}): pip install onnxruntime"
            ) from error
        from tokenizers import Tokenizer

        self._folder = folder
        try:
            description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
            self.settings = EncoderSettings(**description["settings"])
            self.family: Family = description["family"]
            self.precision: str = description["precision"]
            self._dimension = int(description["dimension"])
            self._pad, self._unknown = description["pad_token"], description["unknown_token"]
            self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
            options = onnxruntime.SessionOptions()
            # Threads that spin while they wait slow down everything else on a shared machine.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            self._session = onnxruntime.InferenceSession(
                str(folder / GRAPH), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # tokenizers and ONNX Runtime have no common exception
            detail = " ".join(str(error).split())[:200]
            raise EncoderError(f"the encoder in {folder} cannot be loaded: {detail}") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.settings.max_length)
        self._inputs = [value.name for value in self._session.get_inputs()]
        self.counts = EncoderCounts()

    @property
    def dimension(self) -> int:
        return self._dimension

    @cached_property
    def fingerprint(self) -> str:
        names = {name: cached_sha256(self._folder / name) for name in (GRAPH, TOKENIZER)}
        return settings_fingerprint(self.settings, names)

    def copy_to(self, folder: Path) -> None:
        """Put the graph folder's files there too, without copying where the file system allows it."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in GRAPH_FILES:
            link_or_copy(self._folder / name, folder / name)

    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """See Encoder.encode."""
        vectors = np.empty((len(texts), self._dimension), dtype=np.float32)
        tokens = self._tokenize(texts, kind)
        for rows in batches([len(ids) for ids, _ in tokens]):
            vectors[rows] = self._forward([tokens[row] for row in rows])
            if on_batch is not None:
                on_batch(len(rows))
        return vectors

    def _tokenize(self, texts: Sequence[str], kind: TextKind) -> list[tuple[list[int], list[int]]]:
        prompt = self.settings.query_prompt if kind == "query" else self.settings.document_prompt
        tokens: list[tuple[list[int], list[int]]] = []
        for part in parts(texts):
            try:
                encodings = self._tokenizer.encode_batch([prompt + text for text in part])
            except UnicodeEncodeError as error:
                raise UsageError(f"a text holds half a surrogate pair, which is not a character: {error}") from None
            self.counts += EncoderCounts(
                truncated=sum(bool(encoding.overflowing) for encoding in encodings),
                tokens=sum(len(encoding.ids) for encoding in encodings),
                unknown=sum(encoding.ids.count(self._unknown) for encoding in encodings),
            )
            tokens += [(encoding.ids, encoding.type_ids) for encoding in encodings]
        return tokens

    def _forward(self, batch: Sequence[tuple[list[int], list[int]]]) -> NDArray[np.float32]:
        shape = (len(batch), max(len(ids) for ids, _ in batch))
        values: dict[str, NDArray[np.int64]] = {
            "input_ids": np.full(shape, self._pad, dtype=np.int64),
            "attention_mask": np.zeros(shape, dtype=np.int64),
            "token_type_ids": np.zeros(shape, dtype=np.int64),
        }
        for row, (ids, types) in enumerate(batch):
            values["input_ids"][row, : len(ids)] = ids
            values["attention_mask"][row, : len(ids)] = 1
            values["token_type_ids"][row, : len(ids)] = types
        output: Any = self._session.run(None, {name: values[name] for name in self._inputs})[0]
        return np.asarray(output, dtype=np.float32)
