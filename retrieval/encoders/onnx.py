"""A transformer as an ONNX graph: no torch and no transformers to load, and it can travel.

A graph folder holds `model.onnx` with its weights in `model.onnx.data` (token numbers -> pooled embedding; in an index
also -> transformed -> unit length), `tokenizer.json`, a large Unigram vocabulary again in a form that opens quickly,
and `encoder.json` (settings, precision, fingerprint). It is all that a query needs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import Encoder, EncoderCounts, EncoderSettings, Family, TextKind
from retrieval.encoders.batches import batches, parts
from retrieval.encoders.normalize import NormalizingEncoder
from retrieval.encoders.quick_tokenizer import QuickTokenizer, Tokens
from retrieval.encoders.runtime import POOLED, VECTOR, Feeds, open_session
from retrieval.errors import EncoderError, RetrError, UsageError
from retrieval.storage import HASHES, atomic_file, copy_file

GRAPH, WEIGHTS, DESCRIPTION = "model.onnx", "model.onnx.data", "encoder.json"
FORMAT = 1
PRECISIONS = ("float32", "bf16", "int8")


def graph_fingerprint(fingerprint: str, precision: str) -> str:
    """Of a graph in this precision, exported from the encoder of this fingerprint."""
    return _digest(f"{fingerprint} onnx {FORMAT} {precision}")


def encoder_fingerprint(fingerprint: str, precision: str, runtime: str) -> str:
    """Of an OnnxEncoder whose graph has this fingerprint: two runtimes round bf16 and int8 each in its own way."""
    return fingerprint if precision == "float32" else _digest(f"{fingerprint} {runtime}")


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


class OnnxEncoder:
    """A transformer with its pooling as one ONNX graph.

    Parameters
    ----------
    folder : what `onnx_export.export_graph` wrote.
    runtime : what runs it: openvino or onnx (ONNX Runtime).
    source : what the settings call the model, where it is not what the graph was exported from.

    Raises
    ------
    EncoderError
        A file is missing or unreadable, or the runtime is not installed.
    """

    def __init__(self, folder: Path, runtime: str, source: str | None = None) -> None:
        self.folder, self.backend = folder, runtime
        try:
            description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
            if description.get("format") != FORMAT:
                raise EncoderError(
                    f"the encoder in {folder} has format {description.get('format')!r}, and this retr reads {FORMAT}: "
                    f"build the index again"
                )
            settings = EncoderSettings(**description["settings"])
            self.settings = replace(settings, source=source or settings.source)
            self.family: Family = description["family"]
            self.precision: str = description["precision"]
            self.fingerprint = encoder_fingerprint(description["fingerprint"], self.precision, runtime)
            self._dimension = int(description["dimension"])
            self._pad, self._unknown = description["pad_token"], description["unknown_token"]
            with ThreadPoolExecutor(1) as beside:  # most of a session's time is not spent in Python
                tokenizer = beside.submit(QuickTokenizer, folder, self.settings.max_length)
                self._session = open_session(folder / GRAPH, runtime, self.precision)
                self._tokenizer = tokenizer.result()
        except RetrError:
            raise
        except Exception as error:  # the runtimes have no common exception
            detail = " ".join(str(error).split())[:200]
            raise EncoderError(f"the encoder in {folder} cannot be loaded: {detail}") from error
        self.counts = EncoderCounts()

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def holds_transform(self) -> bool:
        """Whether `unit_vectors` can be asked: the graph is an index's own."""
        return VECTOR in self._session.outputs

    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """See Encoder.encode."""
        return self._run(texts, kind, POOLED, self._dimension, on_batch)

    def unit_vectors(self, texts: Sequence[str], m: int, kind: TextKind = "query") -> NDArray[np.float32]:
        """Texts -> what an index of m dimensions holds of them: float32, shape (n, m), of unit length or all 0."""
        return self._run(texts, kind, VECTOR, m, None)

    def _run(
        self, texts: Sequence[str], kind: TextKind, output: str, width: int, on_batch: Callable[[int], None] | None
    ) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), width), dtype=np.float32)
        tokens = self._tokenize(texts, kind)
        for rows in batches([len(each.ids) for each in tokens]):
            known = [row for row in rows if tokens[row].ids]
            if known:
                vectors[known] = self._session.run(output, self._feeds([tokens[row] for row in known]))
            if on_batch is not None:
                on_batch(len(rows))
        return vectors

    def _tokenize(self, texts: Sequence[str], kind: TextKind) -> list[Tokens]:
        prompt = self.settings.query_prompt if kind == "query" else self.settings.document_prompt
        tokens: list[Tokens] = []
        for part in parts(texts):
            try:
                found = self._tokenizer.encode_batch([prompt + text for text in part])
            except (UnicodeEncodeError, TypeError) as error:  # by the version of tokenizers
                raise UsageError(f"a text holds half a surrogate pair, which is not a character: {error}") from None
            self.counts += EncoderCounts(
                truncated=sum(each.truncated for each in found),
                tokens=sum(len(each.ids) for each in found),
                unknown=sum(each.ids.count(self._unknown) for each in found),
                without_vector=sum(not each.ids for each in found),
            )
            tokens += found
        return tokens

    def _feeds(self, batch: Sequence[Tokens]) -> Feeds:
        shape = (len(batch), max(len(each.ids) for each in batch))
        feeds = {
            "input_ids": np.full(shape, self._pad, dtype=np.int64),
            "attention_mask": np.zeros(shape, dtype=np.int64),
            "token_type_ids": np.zeros(shape, dtype=np.int64),
        }
        for row, each in enumerate(batch):
            feeds["input_ids"][row, : len(each.ids)] = each.ids
            feeds["attention_mask"][row, : len(each.ids)] = 1
            feeds["token_type_ids"][row, : len(each.ids)] = each.type_ids
        return {name: feeds[name] for name in self._session.inputs}


def graph_of(encoder: Encoder) -> OnnxEncoder | None:
    """The graph that computes an encoder's vectors, if one does: itself, or of the texts that it normalises."""
    inner = encoder.inner if isinstance(encoder, NormalizingEncoder) else encoder
    return inner if isinstance(inner, OnnxEncoder) else None


def graph_vectors(encoder: Encoder, queries: Sequence[str], m: int) -> NDArray[np.float32] | None:
    """`unit_vectors` of an index's own graph, where the encoder is one."""
    graph = graph_of(encoder)
    if graph is None or not graph.holds_transform:
        return None
    return graph.unit_vectors(encoder.normalized(queries) if isinstance(encoder, NormalizingEncoder) else queries, m)


def copy_graph(encoder: OnnxEncoder, folder: Path) -> None:
    """Put a copy of the graph folder there. No links: onnx refuses weights that have a second name."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in encoder.folder.iterdir():
        if path.name not in (DESCRIPTION, HASHES):
            copy_file(path, folder / path.name)
    description = json.loads((encoder.folder / DESCRIPTION).read_text(encoding="utf-8"))
    write_description(folder, description | {"settings": encoder.settings.to_json()})


def write_description(folder: Path, description: dict[str, object]) -> None:
    """Write `encoder.json`."""
    with atomic_file(folder / DESCRIPTION) as file:
        file.write((json.dumps(description, indent=2, ensure_ascii=False) + "\n").encode("utf-8"))
