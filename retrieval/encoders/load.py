"""A model's name, folder, file, hub id or fusion -> the encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from retrieval.encoders import catalog
from retrieval.encoders.base import Encoder, EncoderSettings
from retrieval.encoders.bundled import bundled_folder
from retrieval.encoders.fusion import POOLING as FUSION_POOLING
from retrieval.encoders.fusion import FusionEncoder, FusionPart, fusion_text, parse_fusion
from retrieval.encoders.normalize import NormalizingEncoder, parse_normalization
from retrieval.encoders.onnx import GRAPH, PRECISIONS, OnnxEncoder
from retrieval.encoders.pooling import check_pooling
from retrieval.errors import EncoderError, UsageError

Note = Callable[[str], None]
BACKENDS = ("torch", "onnx")
FUSION_STATE = "fusion.safetensors"
_HUB_FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "pytorch_model*.bin")
_ELMO_FILES = ("encoder.pkl", "token_embedder.pkl")


def resolve_settings(
    model: str | Path = catalog.DEFAULT_MODEL,
    *,
    pooling: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    max_length: int | None = None,
    normalize: str = "",
) -> EncoderSettings:
    """Fill what is not given from the catalog; what stays empty, the model tells.

    Raises
    ------
    UsageError
        An unknown pooling or normalisation, a fusion that cannot be read, or options that have no meaning for one.
    """
    source = str(model)
    steps = ",".join(parse_normalization(normalize))
    if pooling is not None:
        check_pooling(pooling)
    if terms := parse_fusion(source):
        if pooling is not None or query_prompt is not None or document_prompt is not None:
            raise UsageError(f"{source!r} is a fusion: its parts have their own poolings and prompts; leave out --pool")
        text = fusion_text([term._replace(model=_absolute(term.model)) for term in terms])
        return EncoderSettings(text, FUSION_POOLING, "", "", max_length or 0, steps)
    entry = catalog.lookup(source)
    return EncoderSettings(
        source=source if entry else _absolute(source),
        pooling=pooling or (entry.pooling if entry else ""),
        query_prompt=query_prompt if query_prompt is not None else (entry.query_prompt if entry else ""),
        document_prompt=document_prompt if document_prompt is not None else (entry.document_prompt if entry else ""),
        max_length=max_length or 0,
        normalize=steps,
    )


def load_encoder(
    settings: EncoderSettings,
    device: str = "auto",
    note: Note = lambda message: None,
    state: Path | None = None,
    *,
    precision: str = "float32",
) -> Encoder:
    """Load a model with its weights.

    Parameters
    ----------
    settings : from `resolve_settings`, or out of an index's manifest.
    device : `auto`, `cpu`, `cuda` or any torch device.
    note : called with one line before slow steps.
    state : the index's own folder of what its encoder needs: a graph, which is then all that is loaded, or the means of
        a fusion.
    precision : what a transformer computes with, `float32` or `bf16`; a graph has its own.

    Raises
    ------
    EncoderError
        The model cannot be found or is not whole.
    UsageError
        There is no such precision, or the model is no transformer and has float32 alone.
    """
    if state is not None and (state / GRAPH).exists():
        return OnnxEncoder(state)
    # Only where resolve_settings has found one: a folder that is gone may have had a plus sign in its name.
    terms = parse_fusion(settings.source) if settings.pooling == FUSION_POOLING else None
    if settings.pooling == FUSION_POOLING and (terms or state):
        if state is not None:
            return FusionEncoder.load(
                state / FUSION_STATE, lambda part: load_encoder(part, device, note, precision=precision)
            )
        parts = []
        for weight, model, centred in terms or []:
            part = resolve_settings(model, max_length=settings.max_length, normalize=settings.normalize)
            parts.append(FusionPart(load_encoder(part, device, note, precision=precision), weight, centred))
        return FusionEncoder(parts)
    encoder = _load_one(settings, device, note, precision)
    if precision != getattr(encoder, "precision", "float32"):
        raise UsageError(f"{settings.source} is no transformer, and computes in float32: got precision {precision!r}")
    return NormalizingEncoder(encoder) if settings.normalize else encoder


def check_backend(backend: str, precision: str) -> None:
    """UsageError where there is no such backend or precision, or the two do not go together."""
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r}: expected one of {', '.join(BACKENDS)}")
    if precision not in PRECISIONS:
        raise UsageError(f"unknown precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    if precision != "float32" and backend != "onnx":
        raise UsageError(f"precision {precision!r} needs the backend onnx, got {backend!r}")


def as_graph(encoder: Encoder, precision: str, note: Note = lambda message: None) -> OnnxEncoder:
    """The same encoder through ONNX Runtime, exported where it is not in the user's cache already.

    Raises
    ------
    EncoderError
        The encoder is no transformer, cannot be exported, or the extra `onnx` is not installed.
    """
    try:
        import onnx  # noqa: F401 (the exporter needs them all, and says so less clearly)
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise EncoderError(f"the backend onnx is not installed ({error}): pip install 'retr[onnx]'") from error
    from retrieval.encoders.onnx_export import graph_folder
    from retrieval.encoders.transformer import TransformerEncoder

    if not isinstance(encoder, TransformerEncoder):
        raise EncoderError(f"{encoder.settings.source} is no transformer, and has no graph: use --backend torch")
    return OnnxEncoder(graph_folder(encoder, precision, note))


def _load_one(settings: EncoderSettings, device: str, note: Note, precision: str) -> Encoder:
    """One model, by what lies at its source."""
    entry = catalog.lookup(settings.source)
    if entry is not None and entry.source == catalog.USE:
        from retrieval.encoders.use import UseEncoder

        return UseEncoder(settings)
    path = _find(settings.source, note)
    if path.is_file():
        from retrieval.encoders.word2vec import Word2VecEncoder

        return Word2VecEncoder(path, replace(settings, pooling=settings.pooling or "average"), note)
    if any((path / name).exists() for name in _ELMO_FILES):
        from retrieval.encoders.elmo import ElmoEncoder

        return ElmoEncoder(path, replace(settings, pooling=settings.pooling or "average"), device)
    from retrieval.encoders.modules import begins_with_static_embedding

    if begins_with_static_embedding(path):
        from retrieval.encoders.static import StaticEncoder

        return StaticEncoder(path, settings)
    from retrieval.encoders.transformer import TransformerEncoder

    return TransformerEncoder(path, settings, device, entry.family if entry else None, precision=precision)


def _find(source: str, note: Note) -> Path:
    entry = catalog.lookup(source)
    if entry is not None and entry.source == catalog.BUNDLED:
        return bundled_folder(note)
    hub_id = entry.source if entry is not None else source
    if (path := _existing(source)) is not None:
        return path
    if source.startswith((".", "~", "/")) or source.count("/") > 1:
        raise EncoderError(
            f"no model folder at {source!r}: expected a Hugging Face or ELMo folder, or a file of word vectors"
        )
    return _download(hub_id, note)


def _absolute(source: str) -> str:
    """Paths that exist are stored whole, so that an index finds its model from another folder."""
    path = _existing(source)
    return str(path.resolve()) if path is not None else source


def _existing(source: str) -> Path | None:
    try:
        path = Path(source).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):  # longer than a name may be; no such user
        return None


def _download(hub_id: str, note: Note) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(huggingface_hub.snapshot_download(hub_id, local_files_only=True, allow_patterns=list(_HUB_FILES)))
    except HFValidationError as error:
        raise EncoderError(
            f"no model {hub_id!r}: neither a folder, a hub id nor a name that retr models lists"
        ) from error
    except Exception:  # not in the local cache
        note(f"downloading {hub_id} from the hub")
    try:
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # offline, unknown, gated: each with an exception of its own
        raise EncoderError(
            f"no model {hub_id!r}: there is no such folder, and the hub did not give it ({type(error).__name__}). "
            f"Give a folder with --model FOLDER, or a name that retr models lists as ready"
        ) from error
