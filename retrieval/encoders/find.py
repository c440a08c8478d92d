"""A model's name, path or hub id -> where it lies here, and what lies there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from retrieval.encoders import catalog
from retrieval.errors import EncoderError

Note = Callable[[str], None]
_HUB_FILES = ("*.json", "*.txt", "*.model", "*.codes", "*.safetensors", "pytorch_model*.bin", "*.py")
_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
_ELMO_FILES = ("encoder.pkl", "token_embedder.pkl")


def model_kind(path: Path) -> Literal["word vectors", "elmo", "static", "transformer"]:
    """What lies there, told without reading weights; a folder that is none of the others is taken for a transformer."""
    if path.is_file():
        return "word vectors"
    if any((path / name).exists() for name in _ELMO_FILES):
        return "elmo"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        modules = json.loads((path / "modules.json").read_text(encoding="utf-8"))
        if str(modules[0].get("type", "")).endswith(".StaticEmbedding"):
            return "static"
    return "transformer"


def find_model(source: str, note: Note) -> Path:
    """The folder or file of a model, unpacked or downloaded first where it must be; EncoderError if there is none."""
    entry = catalog.lookup(source)
    if entry is not None and entry.source == catalog.BUNDLED:
        from retrieval.encoders.bundled import bundled_folder

        return bundled_folder(note)
    hub_id = entry.source if entry is not None else source
    if (path := _existing(source)) is not None:
        return path
    check_path(source)
    return _download(hub_id, note)


def model_here(source: str, note: Note) -> Path | None:
    """As `find_model`, but nothing is downloaded: None where the model is not on this machine."""
    entry = catalog.lookup(source)
    if _is_path(source) or (entry is not None and entry.source == catalog.BUNDLED):
        return find_model(source, note)
    return _existing(source) or _cached(entry.source if entry is not None else source)


def absolute(source: str) -> str:
    """Paths that exist are stored whole, so that an index finds its model from another folder."""
    path = _existing(source)
    return str(path.resolve()) if path is not None else source


def check_path(source: str) -> None:
    """EncoderError where a source can only be a path, and nothing is there."""
    if _is_path(source) and _existing(source) is None:
        raise EncoderError(
            f"no model folder at {source!r}: expected a Hugging Face or ELMo folder, or a file of word vectors"
        )


def _is_path(source: str) -> bool:
    return source.startswith((".", "~", "/")) or source.count("/") > 1


def _existing(source: str) -> Path | None:
    try:
        path = Path(source).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):  # longer than a name may be; no such user
        return None


def _cached(hub_id: str) -> Path | None:
    """The folder in the hub's own cache; None where it is not there whole. The network is not asked."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    try:
        found = Path(huggingface_hub.snapshot_download(hub_id, local_files_only=True, allow_patterns=list(_HUB_FILES)))
    except HFValidationError as error:
        raise EncoderError(
            f"no model {hub_id!r}: neither a folder, a hub id nor a name that retr models lists"
        ) from error
    except Exception:  # each version of the library has an exception of its own
        return None
    # Without weights a download was broken off.
    return found if any(next(found.rglob(pattern), None) for pattern in _WEIGHT_FILES) else None


def _download(hub_id: str, note: Note) -> Path:
    import huggingface_hub

    if (found := _cached(hub_id)) is not None:
        return found
    note(f"downloading {hub_id} from the hub")
    try:
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # offline, unknown, gated: each with an exception of its own
        raise EncoderError(
            f"no model {hub_id!r}: there is no such folder, it is not in the hub's cache on this machine, and the hub "
            f"did not give it ({hub_reason(error)}). "
            f"Give a folder with --model FOLDER, or a name that retr models lists as ready"
        ) from error


def hub_reason(error: BaseException) -> str:
    """What went wrong on the way to the hub, in a few words."""
    cause: BaseException | None = error
    while cause is not None:
        if "offline" in type(cause).__name__.lower():
            return "the hub's offline mode is on"
        if "connect" in type(cause).__name__.lower() or isinstance(cause, ConnectionError):
            return f"no network: {str(cause).splitlines()[0] if str(cause) else type(cause).__name__}"
        cause = cause.__cause__
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
