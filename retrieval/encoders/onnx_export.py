"""A transformer with its pooling -> a graph folder, in float32 or with 8-bit weights.

`int8` keeps a matrix in blocks of 32 weights along its input, each with a scale of its own, and rounds the activations
in blocks of 32 too (ONNX Runtime's MatMulNBits, accuracy level 4): one scale for a whole tensor costs a sentence
encoder half a Spearman point and more. The embedding table has a scale a row.
"""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from retrieval.encoders.onnx import DESCRIPTION, GRAPH, PRECISIONS, TOKENIZER
from retrieval.encoders.pooling import averaged_states, pool
from retrieval.encoders.transformer import TransformerEncoder
from retrieval.errors import EncoderError, UsageError
from retrieval.storage import cache_directory, new_folder

Note = Callable[[str], None]
_OPSET = 18
_BLOCK = 32
_LEAST_TABLE = 1 << 16  # values; smaller tables (positions, types) stay float32


def graph_folder(encoder: TransformerEncoder, precision: str, note: Note = lambda message: None) -> Path:
    """The graph folder of an encoder in the user's cache, exported first where it is not there.

    Raises
    ------
    UsageError
        An unknown precision.
    EncoderError
        The model or its tokenizer cannot be exported.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"unknown precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    folder = cache_directory() / "onnx" / f"{encoder.fingerprint[:32]}-{precision}"
    if (folder / DESCRIPTION).exists():
        return folder
    note(f"exporting {encoder.settings.source} to ONNX, {precision} (once, some seconds)")
    with new_folder(folder) as building:
        export_graph(encoder, building, precision)
    return folder


def export_graph(encoder: TransformerEncoder, folder: Path, precision: str) -> None:
    """Write the graph folder of an encoder. Errors as `graph_folder`."""
    backend = getattr(encoder.tokenizer, "backend_tokenizer", None)
    if backend is None or not encoder.is_plain:
        what = "has a tokenizer without a fast version" if backend is None else "changes texts or leaves out prompts"
        raise EncoderError(f"{encoder.settings.source} {what}, which a graph cannot: use --backend torch")
    (folder / TOKENIZER).write_text(backend.to_str(), encoding="utf-8")
    graph = _export(encoder)
    if precision == "int8":
        graph = _with_8_bit_matrices(graph)
        _with_8_bit_tables(graph.graph)
    onnx.save(graph, folder / GRAPH)
    description = {
        "settings": encoder.settings.to_json(),
        "family": encoder.family,
        "precision": precision,
        "dimension": encoder.dimension,
        "pad_token": encoder.tokenizer.pad_token_id,
        "unknown_token": encoder.tokenizer.unk_token_id,
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


class _Pooled(torch.nn.Module):
    """Token numbers -> the pooled embedding, as TransformerEncoder computes it."""

    def __init__(self, encoder: TransformerEncoder) -> None:
        super().__init__()
        self.model, self.poolings, self.steps = encoder.model, encoder.poolings, encoder.steps
        self.every_state = averaged_states(encoder.settings.pooling) is not None

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        output = self.model(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=self.every_state, **types
        )
        states = output.hidden_states if self.every_state else (output.last_hidden_state,)
        pooler = output.pooler_output if "pooler" in self.poolings else None
        pooled = torch.cat([pool(states, attention_mask, pooling, pooler) for pooling in self.poolings], dim=-1)
        result: torch.Tensor = self.steps(pooled)
        return result


def _export(encoder: TransformerEncoder) -> onnx.ModelProto:
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in encoder.input_names]
    example = encoder.tokenizer(["ab", "a b c d"], padding=True, return_tensors="pt")
    dynamic = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    try:
        with _quiet(), torch.inference_mode():
            program: Any = torch.onnx.export(
                _Pooled(encoder).eval(),
                tuple(example[name] for name in names),
                dynamo=True,
                dynamic_shapes=tuple(dynamic for _ in names),
                input_names=names,
                output_names=["pooled"],
                opset_version=_OPSET,
                verbose=False,
            )
    except Exception as error:  # the exporter raises what the model's code makes it
        detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EncoderError(
            f"{encoder.settings.source} cannot be exported to ONNX ({detail[:150]}): use --backend torch"
        ) from error
    model: onnx.ModelProto = program.model_proto
    return model


def _with_8_bit_matrices(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    config = DefaultWeightOnlyQuantConfig(block_size=_BLOCK, is_symmetric=True, accuracy_level=4, bits=8)
    with _quiet():
        quantizer = MatMulNBitsQuantizer(model, algo_config=config)
        quantizer.process()
    quantized: onnx.ModelProto = quantizer.model.model
    return quantized


def _with_8_bit_tables(graph: onnx.GraphProto) -> None:
    """Gather(table) -> Cast(Gather(8-bit table)) x Gather(scale a row)."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Gather" and node.input[0] in tensors]:
        tensor = tensors[node.input[0]]
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        if tensor.data_type != TensorProto.FLOAT or axis != 0 or len(tensor.dims) != 2:
            continue
        table = numpy_helper.to_array(tensor)
        if table.size < _LEAST_TABLE:
            continue
        rounded, scales = _rounded_rows(table)
        name = tensor.name
        graph.initializer.extend(
            [numpy_helper.from_array(rounded, f"{name}_int8"), numpy_helper.from_array(scales, f"{name}_scale")]
        )
        index, output, place = node.input[1], node.output[0], list(graph.node).index(node)
        nodes = [
            helper.make_node("Gather", [f"{name}_int8", index], [f"{output}_int8"], axis=0),
            helper.make_node("Gather", [f"{name}_scale", index], [f"{output}_scale"], axis=0),
            helper.make_node("Cast", [f"{output}_int8"], [f"{output}_cast"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{output}_cast", f"{output}_scale"], [output]),
        ]
        graph.node.remove(node)
        for offset, new in enumerate(nodes):
            graph.node.insert(place + offset, new)
        if not any(name in other.input for other in graph.node):
            graph.initializer.remove(tensor)


def _rounded_rows(table: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8, shape (rows, d), and scales, float32, shape (rows, 1): row = int8 x scale."""
    largest = np.abs(table).max(axis=1, keepdims=True)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    return np.rint(table / scales).astype(np.int8), scales


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings of packages that it does not need."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "onnxruntime", "")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
