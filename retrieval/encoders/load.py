"""A model's name, folder or hub id -> the encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retrieval.encoders import catalog
from retrieval.encoders.base import Encoder, EncoderSettings
from retrieval.encoders.bundled import bundled_folder
from retrieval.errors import EncoderError

Note = Callable[[str], None]
_HUB_FILES = ("*.json", "*.txt", "*.model", "model*.safetensors", "pytorch_model*.bin")


def resolve_settings(
    model: str | Path = catalog.DEFAULT_MODEL,
    *,
    pooling: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    max_length: int | None = None,
) -> EncoderSettings:
    """Fill what is not given from the catalog; what stays empty, the model tells."""
    source = str(model)
    entry = catalog.lookup(source)
    if entry is None:
        path = Path(source).expanduser()
        if path.is_dir():
            source = str(path.resolve())
    return EncoderSettings(
        source=source,
        pooling=pooling or (entry.pooling if entry else ""),
        query_prompt=query_prompt if query_prompt is not None else (entry.query_prompt if entry else ""),
        document_prompt=document_prompt if document_prompt is not None else (entry.document_prompt if entry else ""),
        max_length=max_length or 0,
    )


def load_encoder(settings: EncoderSettings, device: str = "auto", note: Note = lambda message: None) -> Encoder:
    """Load a model with its weights.

    Parameters
    ----------
    settings : from `resolve_settings`, or out of an index's manifest.
    device : `auto`, `cpu`, `cuda` or any torch device.
    note : called with one line before slow steps.

    Raises
    ------
    EncoderError
        The model cannot be found or is not whole.
    """
    folder = _find_folder(settings.source, note)
    if is_static(folder):
        from retrieval.encoders.static import StaticEncoder

        return StaticEncoder(folder, settings)
    from retrieval.encoders.transformer import TransformerEncoder

    entry = catalog.lookup(settings.source)
    return TransformerEncoder(folder, settings, device, entry.family if entry else None)


def is_static(folder: Path) -> bool:
    """Whether a sentence-transformers folder begins with a StaticEmbedding."""
    path = folder / "modules.json"
    return (
        path.exists()
        and '"sentence_transformers' in (text := path.read_text("utf-8", "replace"))
        and ("StaticEmbedding" in text)
    )


def _find_folder(source: str, note: Note) -> Path:
    entry = catalog.lookup(source)
    if entry is not None and entry.source == "bundled":
        return bundled_folder(note)
    hub_id = entry.source if entry is not None else source
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or source.startswith((".", "~")) or path.exists() or source.count("/") > 1:
        raise EncoderError(f"no model folder at {source!r}: expected a Hugging Face folder with config.json")
    return _download(hub_id, note)


def _download(hub_id: str, note: Note) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(huggingface_hub.snapshot_download(hub_id, local_files_only=True, allow_patterns=list(_HUB_FILES)))
    except HFValidationError as error:
        raise EncoderError(f"no model {hub_id!r}: neither a folder, a hub id nor one of {_known()}") from error
    except Exception:  # not in the local cache
        note(f"downloading {hub_id} from the hub")
    try:
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # offline, unknown, gated: each with an exception of its own
        raise EncoderError(
            f"no model {hub_id!r}: there is no such folder, and the hub did not give it ({type(error).__name__}). "
            f"Give a folder with --model FOLDER, or one of {_known()}"
        ) from error


def _known() -> str:
    return ", ".join(catalog.names())
