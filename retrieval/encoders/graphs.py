"""The graph folders in the user's cache: a model is exported once, and from then on loaded without torch."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from retrieval.encoders.base import EncoderSettings
from retrieval.encoders.onnx import FORMAT
from retrieval.errors import EncoderError
from retrieval.storage import cache_directory, cached_sha256, damaged_file, new_folder, write_hashes

Note = Callable[[str], None]
_MODEL_SUFFIXES = {".json", ".txt", ".model", ".codes", ".safetensors", ".bin", ".py"}
_OTHER_EXPORTS = {"onnx", "openvino"}  # folders that hub repositories carry beside the model


class NotExportableError(EncoderError):
    """The encoder works, but not as a graph."""


def graph_place(model: Path, settings: EncoderSettings, precision: str, family: str) -> Path:
    """Where the graph of a model folder is, or will be: a name of its content, of the settings and of the family."""
    files = {
        path.relative_to(model).as_posix(): cached_sha256(path)
        for path in sorted(model.rglob("*"))
        if path.suffix in _MODEL_SUFFIXES and not _OTHER_EXPORTS & set(path.relative_to(model).parts)
    }
    shaping = {name: value for name, value in settings.to_json().items() if name != "source"}
    content = json.dumps([FORMAT, precision, shaping, family, files], sort_keys=True)
    return cache_directory() / "onnx" / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}-{precision}"


def is_whole(place: Path, note: Note) -> bool:
    """Whether the graph folder is there; one that is damaged is thrown away."""
    if not place.exists():
        return False
    if (damaged := damaged_file(place)) is None:
        return True
    note(f"{place / damaged} is damaged; exporting again")
    shutil.rmtree(place)
    return False


def fill_place(place: Path, export: Callable[[Path], None]) -> None:
    """Let `export` write the graph folder, which then appears whole."""
    with new_folder(place) as building:
        export(building)
        write_hashes(building)
