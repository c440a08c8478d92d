"""A graph that ends in the pooled embedding -> one that goes on to what an index holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from retrieval.encoders.onnx import GRAPH
from retrieval.encoders.runtime import POOLED, VECTOR
from retrieval.storage import atomic_file

_LEAST_LENGTH = np.array(1e-30, dtype=np.float32)
_OWN = "retr."  # what names begin with: the exporter calls values of its own `mean`, for one, where layers are averaged


def set_transform(
    folder: Path, dimension: int | None, affine: tuple[NDArray[np.float32], NDArray[np.float32]] | None
) -> None:
    """Let the graph of a folder give unit vectors too: (pooled - mean) kernel, divided by its length.

    What it did after the pooled embedding before is taken away. The graph's file is replaced; the weights beside it
    stay as they are.

    Parameters
    ----------
    folder : a graph folder, as `onnx.copy_graph` wrote it.
    dimension : m, of the vectors; None ends the graph in the pooled embedding.
    affine : mean, float32, shape (d,), and kernel, float32, shape (d, m); None where nothing is transformed.
    """
    model = onnx.load(folder / GRAPH, load_external_data=False)
    _cut_tail(model.graph)
    if dimension is not None:
        _add_tail(model.graph, dimension, affine)
    with atomic_file(folder / GRAPH) as file:
        file.write(model.SerializeToString())


def _cut_tail(graph: onnx.GraphProto) -> None:
    if VECTOR not in (output.name for output in graph.output):
        return
    for repeated in (graph.node, graph.initializer, graph.output):
        names = [each.output[0] if isinstance(each, onnx.NodeProto) else each.name for each in repeated]
        kept = [
            each for each, name in zip(repeated, names, strict=True) if name != VECTOR and not name.startswith(_OWN)
        ]
        del repeated[:]
        repeated.extend(kept)


def _add_tail(
    graph: onnx.GraphProto, dimension: int, affine: tuple[NDArray[np.float32], NDArray[np.float32]] | None
) -> None:
    last = POOLED
    if affine is not None:
        mean, kernel = affine
        graph.initializer.extend(
            [numpy_helper.from_array(mean, _OWN + "mean"), numpy_helper.from_array(kernel, _OWN + "kernel")]
        )
        graph.node.append(helper.make_node("Sub", [last, _OWN + "mean"], [_OWN + "centred"]))
        graph.node.append(helper.make_node("MatMul", [_OWN + "centred", _OWN + "kernel"], [_OWN + "transformed"]))
        last = _OWN + "transformed"
    graph.initializer.append(numpy_helper.from_array(np.array([1], dtype=np.int64), _OWN + "vector_axis"))
    graph.initializer.append(numpy_helper.from_array(_LEAST_LENGTH, _OWN + "least_length"))
    graph.node.append(helper.make_node("ReduceL2", [last, _OWN + "vector_axis"], [_OWN + "length"], keepdims=1))
    graph.node.append(helper.make_node("Max", [_OWN + "length", _OWN + "least_length"], [_OWN + "safe_length"]))
    graph.node.append(helper.make_node("Div", [last, _OWN + "safe_length"], [VECTOR]))
    graph.output.append(helper.make_tensor_value_info(VECTOR, TensorProto.FLOAT, ["batch", dimension]))
