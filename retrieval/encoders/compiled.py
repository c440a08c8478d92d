"""Graphs that OpenVINO has compiled, in the user's cache: it takes them up in half the time of compiling anew.

Kept is all but the weights, which stay in the file beside the graph: a megabyte a graph. The folder's name holds what
the content follows from (graph, weights, settings, OpenVINO, processor), so what changes is compiled anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.storage import cache_directory, cached_sha256, damaged_file, new_folder, write_hashes

MOST_GRAPHS = 64
"""How many are kept; the one unused longest goes first."""


class CompiledGraphs:
    """The compiled parts of one graph, by the name of the output that each computes.

    Parameters
    ----------
    core : openvino.Core
    graph : its file; the weights are beside it, in a file of that name with `.data` at the end.
    properties : the properties that each part is compiled with, by its output's name.
    """

    def __init__(self, core: Any, graph: Path, properties: dict[str, dict[str, str]]) -> None:
        import openvino

        self._core, self._properties = core, properties
        self._weights = graph.with_name(f"{graph.name}.data")
        self._folder: Path | None = None
        with contextlib.suppress(OSError):
            made_from = (
                openvino.__version__,
                core.get_property("CPU", "FULL_DEVICE_NAME"),
                *(cached_sha256(path) for path in (graph, self._weights)),
                properties,
            )
            key = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:32]
            self._folder = cache_directory() / "compiled" / key

    def load(self) -> dict[str, Any]:
        """The compiled parts; empty where they are not kept, or not as they were written."""
        if self._folder is None or not self._folder.exists() or damaged_file(self._folder) is not None:
            return {}
        try:
            parts = self._import(self._folder)
        except RuntimeError:  # of OpenVINO's own, whatever is wrong
            return {}
        with contextlib.suppress(OSError):
            os.utime(self._folder)
        return parts

    def save(self, parts: dict[str, Any]) -> None:
        """Keep compiled parts, where what is read back computes the same; a failure costs time, nothing else."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError, RuntimeError, _UnlikeError):
            with new_folder(self._folder) as building:
                for name, part in parts.items():
                    (building / name).write_bytes(part.export_model().getvalue())
                for name, part in self._import(building).items():
                    if not np.array_equal(_sample(part), _sample(parts[name])):
                        raise _UnlikeError
                write_hashes(building)
            self._forget()

    def _import(self, folder: Path) -> dict[str, Any]:
        import openvino

        def read(name: str) -> Any:
            blob = openvino.Tensor(np.fromfile(folder / name, dtype=np.uint8))
            found = self._properties[name] | {"WEIGHTS_PATH": str(self._weights)}
            return self._core.import_model(blob, "CPU", found)

        names = [name for name in self._properties if (folder / name).exists()]
        with ThreadPoolExecutor(len(names)) as executor:
            return dict(zip(names, executor.map(read, names), strict=True))

    def _forget(self) -> None:
        assert self._folder is not None
        folders = sorted(self._folder.parent.glob("[!.]*"), key=lambda path: path.stat().st_mtime)
        for path in folders[:-MOST_GRAPHS]:
            shutil.rmtree(path, ignore_errors=True)


class _UnlikeError(Exception):
    pass


def _sample(part: Any) -> Any:
    """What a compiled part makes of a small input."""
    inputs = [
        np.ones(
            [5 if size.is_dynamic else size.get_length() for size in value.get_partial_shape()],
            value.element_type.to_dtype(),
        )
        for value in part.inputs
    ]
    return part.create_infer_request().infer(inputs)[0]
