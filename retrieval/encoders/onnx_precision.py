"""A float32 graph -> smaller numbers.

`bf16` keeps matrices in bfloat16 (8 bits of fraction), `int8` in blocks of 32 weights along their input, each with a
scale of its own, and rounds the activations in blocks of 32 too (ONNX Runtime's MatMulNBits, accuracy level 4): one
scale for a whole tensor costs a sentence encoder half a Spearman point and more. In both, the table of the words has
8 bits with a scale a row.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

_BLOCK = 32
_INT8_ACTIVATIONS = 4  # MatMulNBits' accuracy level that rounds activations to 8 bits, in blocks
_LEAST_TABLE = 1 << 16  # values; smaller tables (positions, types) stay float32


def with_precision(model: onnx.ModelProto, precision: str) -> onnx.ModelProto:
    """The same graph in float32, bf16 or int8; `model` may be changed on the way."""
    if precision == "float32":
        return model
    model = with_8_bit_matrices(model) if precision == "int8" else with_bfloat16_matrices(model)
    with_8_bit_tables(model.graph)
    return model


def with_bfloat16_matrices(model: onnx.ModelProto) -> onnx.ModelProto:
    """MatMul(x, matrix) -> MatMul(x, Cast(bfloat16 matrix))."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    matrices = {node.input[1]: tensors[node.input[1]] for node in graph.node if _multiplies_constant(node, tensors)}
    for name, tensor in matrices.items():
        rounded = numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16)
        graph.initializer.remove(tensor)
        graph.initializer.append(
            helper.make_tensor(f"{name}_bf16", TensorProto.BFLOAT16, tensor.dims, rounded.tobytes(), raw=True)
        )
        graph.node.insert(0, helper.make_node("Cast", [f"{name}_bf16"], [name], to=TensorProto.FLOAT))
    return model


def _multiplies_constant(node: onnx.NodeProto, tensors: dict[str, onnx.TensorProto]) -> bool:
    tensor = tensors.get(node.input[1]) if node.op_type == "MatMul" else None
    return tensor is not None and tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2


def with_8_bit_matrices(model: onnx.ModelProto) -> onnx.ModelProto:
    """MatMul(x, matrix) -> MatMulNBits(x, 8-bit blocks, scales)."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    places = [place for place, node in enumerate(graph.node) if _multiplies_constant(node, tensors)]
    for place in places:
        node = graph.node[place]
        name, (k, n) = node.input[1], tensors[node.input[1]].dims
        quantized = helper.make_node(
            "MatMulNBits",
            [node.input[0], f"{name}_blocks", f"{name}_scales"],
            node.output,
            node.name,
            domain="com.microsoft",
            **{"K": k, "N": n, "bits": 8, "block_size": _BLOCK, "accuracy_level": _INT8_ACTIVATIONS},
        )
        graph.node.remove(node)
        graph.node.insert(place, quantized)
    used = {name for node in graph.node for name in node.input}
    for name in {node.input[1].removesuffix("_blocks") for node in (graph.node[place] for place in places)}:
        blocks, scales = rounded_blocks(numpy_helper.to_array(tensors[name]))
        graph.initializer.append(numpy_helper.from_array(blocks, f"{name}_blocks"))
        graph.initializer.append(numpy_helper.from_array(scales, f"{name}_scales"))
        if name not in used:
            graph.initializer.remove(tensors[name])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def rounded_blocks(matrix: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Blocks of 32 along the input, and their scales: weight = (block - 128) x scale.

    Parameters
    ----------
    matrix : float32, shape (k, n)

    Returns
    -------
    uint8, shape (n, ceil(k / 32), 32), and float32, shape (n, ceil(k / 32)): MatMulNBits' own layout.
    """
    padded = np.pad(matrix.T, ((0, 0), (0, -matrix.shape[0] % _BLOCK)))
    blocks, scales = rounded_rows(padded.reshape(-1, _BLOCK))
    shape = (matrix.shape[1], -1, _BLOCK)
    return (blocks.astype(np.int16) + 128).astype(np.uint8).reshape(shape), scales.reshape(shape[:2])


def with_8_bit_tables(graph: onnx.GraphProto) -> None:
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
        rounded, scales = rounded_rows(table)
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


def rounded_rows(table: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8, shape (rows, d), and scales, float32, shape (rows, 1): row = int8 x scale."""
    largest = np.abs(table).max(axis=1, keepdims=True)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    return np.rint(table / scales).astype(np.int8), scales
