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


_TAIL = ("centred", "transformed", "length", "safe_length", VECTOR)
_CONSTANTS = ("mean", "kernel", "vector_axis", "least_length")


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
    # The names begin with `retr.`: the exporter calls values of its own `mean`, for one, where layers are averaged.
    model = onnx.load(folder / GRAPH, load_external_data=False)
    _cut_tail(model.graph)
    if dimension is not None:
        _add_tail(model.graph, dimension, affine)
    with atomic_file(folder / GRAPH) as file:
        file.write(model.SerializeToString())


def _cut_tail(graph: onnx.GraphProto) -> None:
    if VECTOR not in (output.name for output in graph.output):
        return
    for repeated, names in ((graph.node, _TAIL), (graph.initializer, _CONSTANTS), (graph.output, (VECTOR,))):
        kept = [each for each in repeated if (each.output[0] if repeated is graph.node else each.name) not in names]
        del repeated[:]
        repeated.extend(kept)


def _add_tail(
    graph: onnx.GraphProto, dimension: int, affine: tuple[NDArray[np.float32], NDArray[np.float32]] | None
) -> None:
    last = POOLED
    if affine is not None:
        mean, kernel = affine
        graph.initializer.extend(
            [numpy_helper.from_array(mean, "retr.mean"), numpy_helper.from_array(kernel, "retr.kernel")]
        )
        graph.node.append(helper.make_node("Sub", [last, "retr.mean"], ["retr.centred"]))
        graph.node.append(helper.make_node("MatMul", ["retr.centred", "retr.kernel"], ["retr.transformed"]))
        last = "retr.transformed"
    graph.initializer.append(numpy_helper.from_array(np.array([1], dtype=np.int64), "retr.vector_axis"))
    graph.initializer.append(numpy_helper.from_array(_LEAST_LENGTH, "retr.least_length"))
    graph.node.append(helper.make_node("ReduceL2", [last, "retr.vector_axis"], ["retr.length"], keepdims=1))
    graph.node.append(helper.make_node("Max", ["retr.length", "retr.least_length"], ["retr.safe_length"]))
    graph.node.append(helper.make_node("Div", [last, "retr.safe_length"], [VECTOR]))
    graph.output.append(helper.make_tensor_value_info(VECTOR, TensorProto.FLOAT, ["batch", dimension]))
