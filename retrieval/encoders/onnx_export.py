"""A transformer with its pooling -> a graph folder."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import torch

from retrieval.encoders.graphs import NotExportableError
from retrieval.encoders.onnx import FORMAT, GRAPH, WEIGHTS, graph_fingerprint, write_description
from retrieval.encoders.onnx_precision import with_precision
from retrieval.encoders.pooling import pool
from retrieval.encoders.quick_tokenizer import TOKENIZER, VOCABULARY, write_vocabulary
from retrieval.encoders.runtime import POOLED
from retrieval.encoders.transformer import TransformerEncoder
from retrieval.storage import make_readable

_OPSET = 18


def export_graph(encoder: TransformerEncoder, folder: Path, precision: str) -> None:
    """Write the graph folder of an encoder.

    Parameters
    ----------
    encoder : in float32, on the CPU.
    precision : float32, bf16 or int8, of the graph's weights.

    Raises
    ------
    NotExportableError
        The model's code, its tokenizer or its prompts do not go into a graph.
    """
    backend = getattr(encoder.tokenizer, "backend_tokenizer", None)
    if backend is None or not encoder.is_plain:
        what = "has a tokenizer without a fast version" if backend is None else "changes texts or leaves out prompts"
        raise NotExportableError(f"{encoder.settings.source} {what}, which a graph cannot")
    try:
        (folder / TOKENIZER).write_text(backend.to_str(), encoding="utf-8")
        with _quiet(), _plain_attention(encoder.model):
            model = with_precision(_without_traces(_export(encoder)), precision)
            # Beside the graph, weights are mapped into memory, not read; and the graph alone is changed quickly.
            onnx.save(model, folder / GRAPH, save_as_external_data=True, location=WEIGHTS, size_threshold=1024)
    except OSError:
        raise
    except Exception as error:  # the exporter raises what the model's code makes it; RoFormer's tokenizer is Python
        detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise NotExportableError(f"{encoder.settings.source} cannot be exported to ONNX ({detail[:150]})") from error
    write_vocabulary(folder / TOKENIZER, folder / VOCABULARY)
    for name in (GRAPH, WEIGHTS):
        make_readable(folder / name)
    write_description(
        folder,
        {
            "format": FORMAT,
            "settings": encoder.settings.to_json(),
            "family": encoder.family,
            "precision": precision,
            "dimension": encoder.dimension,
            "pad_token": encoder.tokenizer.pad_token_id,
            "unknown_token": encoder.tokenizer.unk_token_id,
            "fingerprint": graph_fingerprint(encoder.fingerprint, precision),
        },
    )


class _Pooled(torch.nn.Module):
    """Token numbers -> the pooled embedding, as TransformerEncoder computes it."""

    def __init__(self, encoder: TransformerEncoder) -> None:
        super().__init__()
        self.model, self.poolings, self.steps = encoder.model, encoder.poolings, encoder.steps
        self.every_state = encoder.reads_every_state

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
    dynamic = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    example = encoder.tokenizer(["ab", "a b c d"], padding=True, return_tensors="pt")
    with torch.inference_mode():
        program: Any = torch.onnx.export(
            _Pooled(encoder).eval(),
            tuple(example[name] for name in names),
            dynamo=True,
            dynamic_shapes=tuple(dynamic for _ in names),
            input_names=names,
            output_names=[POOLED],
            opset_version=_OPSET,
            verbose=False,
        )
    model: onnx.ModelProto = program.model_proto
    return model


@contextlib.contextmanager
def _plain_attention(model: Any) -> Iterator[None]:
    """Products and a softmax: what the exporter makes of torch's fused attention has twice as many nodes."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without the exporter's notes on which line of which file made a node: most of the graph's size, and paths."""
    for item in (
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.input,
        *model.graph.output,
        model.graph,
        model,
    ):
        item.ClearField("metadata_props")
        item.ClearField("doc_string")
    return model


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
