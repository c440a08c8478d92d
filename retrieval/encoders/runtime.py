"""What runs a graph: OpenVINO, or ONNX Runtime."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.compiled import CompiledGraphs
from retrieval.errors import EncoderError, UsageError

POOLED, VECTOR = "pooled", "vector"
"""A graph's outputs: the raw embedding, and what an index holds, transformed and of unit length."""

PACKAGES = {"openvino": "openvino", "onnx": "onnxruntime"}
RUNTIMES = tuple(PACKAGES)
"""What can run a graph, the fastest first."""

Feeds = dict[str, NDArray[Any]]


class Session(Protocol):
    """A graph that is ready to run."""

    inputs: frozenset[str]
    outputs: frozenset[str]

    def run(self, output: str, feeds: Feeds) -> NDArray[np.float32]: ...


def open_session(graph: Path, runtime: str, precision: str) -> Session:
    """Load a graph.

    Raises
    ------
    UsageError
        An unknown runtime.
    EncoderError
        The runtime is not installed.
    Exception
        Of the runtime's own, where the graph is damaged.
    """
    if runtime not in _SESSIONS:
        raise UsageError(f"unknown runtime {runtime!r}: expected one of {', '.join(RUNTIMES)}")
    try:
        return _SESSIONS[runtime](graph, precision)
    except ImportError as error:
        raise EncoderError(
            f"the backend {runtime} is not installed ({error}): pip install {PACKAGES[runtime]}"
        ) from error


def import_runtime(runtime: str) -> None:
    """Import what `open_session` will; where it is missing, `open_session` says so."""
    with contextlib.suppress(ImportError, KeyError):
        importlib.import_module(PACKAGES[runtime])


class _OpenVinoSession:
    """bf16 holds up to the pooled embedding; the transform, which enlarges small directions, stays float32."""

    def __init__(self, graph: Path, precision: str) -> None:
        import openvino

        core = openvino.Core()
        body = "bf16" if precision == "bf16" and openvino_has_bf16() else "f32"
        threads = {"INFERENCE_NUM_THREADS": str(_threads())} if _threads() else {}
        properties = {
            output: {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": hint,
                "CACHE_MODE": "OPTIMIZE_SIZE",  # what CompiledGraphs keeps is without the weights
                **threads,
            }
            for output, hint in ((POOLED, body), (VECTOR, "f32"))
        }
        kept = CompiledGraphs(core, graph, properties)
        parts = kept.load()
        if not parts:
            models = _split(core.read_model(graph))
            with ThreadPoolExecutor(len(models)) as executor:
                compiling = {
                    output: executor.submit(core.compile_model, model, "CPU", properties[output])
                    for output, model in models.items()
                }
                parts = {output: compiled.result() for output, compiled in compiling.items()}
            kept.save(parts)
        self.inputs = frozenset(value.get_any_name() for value in parts[POOLED].inputs)
        self.outputs = frozenset(parts)
        self._requests = {output: part.create_infer_request() for output, part in parts.items()}
        self._lock = threading.Lock()

    def run(self, output: str, feeds: Feeds) -> NDArray[np.float32]:
        with self._lock:  # a request serves one caller at a time
            result = np.array(self._requests[POOLED].infer(feeds)[0], dtype=np.float32)
            if output == VECTOR:
                result = np.array(self._requests[VECTOR].infer([result])[0], dtype=np.float32)
        return result


def _split(model: Any) -> dict[str, Any]:
    """The part up to the pooled embedding, and the part from there to the vector where the graph goes that far."""
    import openvino

    pooled = model.output(POOLED)
    parts = {POOLED: openvino.Model([pooled], model.get_parameters())}
    if any(VECTOR in value.get_names() for value in model.outputs):
        source = pooled.get_node().input_value(0)
        entry = openvino.opset13.parameter(source.get_partial_shape(), np.float32)
        for target in source.get_target_inputs():
            if target.get_node().get_type_name() != "Result":
                target.replace_source_output(entry.output(0))
        parts[VECTOR] = openvino.Model([model.output(VECTOR)], [entry])
    return parts


class _OnnxRuntimeSession:
    def __init__(self, graph: Path, precision: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = _threads()
        # Threads that spin while they wait slow down everything else on a shared machine.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self.inputs = frozenset(value.name for value in self._session.get_inputs())
        self.outputs = frozenset(value.name for value in self._session.get_outputs())

    def run(self, output: str, feeds: Feeds) -> NDArray[np.float32]:
        return np.asarray(self._session.run([output], feeds)[0], dtype=np.float32)


def _threads() -> int:
    """What OMP_NUM_THREADS says, which torch and FAISS read themselves; 0 where it says nothing."""
    value = os.environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isascii() and value.isdigit() else 0


_SESSIONS: dict[str, type[_OpenVinoSession] | type[_OnnxRuntimeSession]] = {
    "openvino": _OpenVinoSession,
    "onnx": _OnnxRuntimeSession,
}


def openvino_has_bf16() -> bool:
    """Whether this CPU multiplies in bfloat16 (AVX-512 BF16, AMX)."""
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
