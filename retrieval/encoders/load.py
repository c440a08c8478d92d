"""A model's name, folder, file, hub id or fusion -> the encoder."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from retrieval.encoders import catalog
from retrieval.encoders.base import Encoder, EncoderSettings
from retrieval.encoders.device import has_gpu
from retrieval.encoders.find import absolute, find_model, model_kind
from retrieval.encoders.fusion import POOLING as FUSION_POOLING
from retrieval.encoders.fusion import FusionEncoder, FusionPart, fusion_text, parse_fusion
from retrieval.encoders.graphs import NotExportableError, fill_place, graph_place, is_whole
from retrieval.encoders.normalize import NormalizingEncoder, parse_normalization
from retrieval.encoders.onnx import PRECISIONS, OnnxEncoder
from retrieval.encoders.pooling import check_pooling
from retrieval.encoders.runtime import PACKAGES, RUNTIMES, openvino_has_bf16
from retrieval.errors import EncoderError, UsageError

Note = Callable[[str], None]
AUTO = "auto"
LEAST_LENGTH = 3
BACKENDS = (AUTO, "torch", *RUNTIMES)
_LACKS = {"torch": ("int8",), "onnx": ("bf16",)}
FUSION_STATE = "fusion.safetensors"


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
    if max_length and max_length < LEAST_LENGTH:  # 0 stands for none
        raise UsageError(
            f"max length {max_length} is less than {LEAST_LENGTH}: two of a text's tokens are special ones"
        )
    source = str(model)
    steps = ",".join(parse_normalization(normalize))
    if pooling is not None:
        check_pooling(pooling)
    if terms := parse_fusion(source):
        if pooling is not None or query_prompt is not None or document_prompt is not None:
            raise UsageError(f"{source!r} is a fusion: its parts have their own poolings and prompts; leave out --pool")
        text = fusion_text([term._replace(model=absolute(term.model)) for term in terms])
        return EncoderSettings(text, FUSION_POOLING, "", "", max_length or 0, steps)
    entry = catalog.lookup(source)
    return EncoderSettings(
        source=source if entry else absolute(source),
        pooling=pooling or (entry.pooling if entry else ""),
        query_prompt=query_prompt if query_prompt is not None else (entry.query_prompt if entry else ""),
        document_prompt=document_prompt if document_prompt is not None else (entry.document_prompt if entry else ""),
        max_length=max_length or 0,
        normalize=steps,
    )


def load_encoder(
    settings: EncoderSettings,
    device: str = AUTO,
    note: Note = lambda message: None,
    state: Path | None = None,
    *,
    backend: str = "torch",
    precision: str = "float32",
    trust_remote_code: bool = False,
) -> Encoder:
    """Load a model with its weights.

    Parameters
    ----------
    settings : from `resolve_settings`, or out of an index's manifest.
    device : `auto`, `cpu`, `cuda` or any torch device.
    note : called with one line before slow steps.
    state : the index's own folder of what its encoder needs: a graph, which is then all that is loaded, or the means of
        a fusion.
    backend : what runs the graph in `state`.
    precision : of a transformer that torch runs: float32, bf16, or auto (bf16 on a GPU that has it).
    trust_remote_code : whether Python code that a model brings along may be run; no file can say so, only the caller.

    Raises
    ------
    EncoderError
        The model cannot be found, is not whole, or brings code that is not trusted.
    """
    if state is not None and backend in RUNTIMES:
        if device not in (AUTO, "cpu"):
            note(f"the index's own graph runs on the CPU; the device {device} does not matter")
        return _normalizing(OnnxEncoder(state, backend))
    # Only where resolve_settings has found one: a folder that is gone may have had a plus sign in its name.
    terms = parse_fusion(settings.source) if settings.pooling == FUSION_POOLING else None
    if settings.pooling == FUSION_POOLING and (terms or state):
        if state is not None:
            return FusionEncoder.load(
                state / FUSION_STATE,
                lambda part: load_encoder(part, device, note, trust_remote_code=trust_remote_code),
            )
        if precision not in (AUTO, "float32"):
            raise UsageError(f"precision {precision!r} is for one transformer, and {settings.source} is a fusion")
        parts = []
        for weight, model, centred in terms or []:
            part = resolve_settings(model, max_length=settings.max_length, normalize=settings.normalize)
            encoder = load_encoder(part, device, note, trust_remote_code=trust_remote_code)
            parts.append(FusionPart(encoder, weight, centred))
        return FusionEncoder(parts)
    return _normalizing(_load_one(settings, device, note, precision, trust_remote_code))


def load_to_build(
    settings: EncoderSettings,
    device: str,
    backend: str,
    precision: str,
    note: Note = lambda message: None,
    *,
    trust_remote_code: bool = False,
) -> Encoder:
    """Load a model for a new index; `auto` takes the way that is fastest here and exact enough.

    On a CPU that is the model's graph, exported where it is not in the user's cache; on a GPU, and for models that have
    no graph, it is torch or the model's own package.

    Raises
    ------
    UsageError
        An unknown backend or precision, or two that do not go together.
    EncoderError
        The model cannot be found or is not whole; the backend that was asked for cannot run it, or is not installed.
    """
    check_backend(backend, precision, device)
    runtime = _runtime_here(device, precision) if backend == AUTO else backend
    model = transformer_folder(settings, note) if runtime in RUNTIMES else None
    if runtime is None or model is None:
        if backend in RUNTIMES or precision == "int8":
            wanted = backend if backend in RUNTIMES else "int8"
            why = f"{settings.source} has none" if runtime else "nothing that runs one is installed"
            raise EncoderError(f"{wanted} needs a graph, and {why}: leave the option out")
        return load_encoder(settings, device, note, precision=precision, trust_remote_code=trust_remote_code)
    if not importlib.util.find_spec(PACKAGES[runtime]):
        raise EncoderError(f"the backend {runtime} is not installed: pip install {PACKAGES[runtime]}")
    asked = precision
    if asked == AUTO:
        precision = "bf16" if runtime == "openvino" and openvino_has_bf16() else "float32"
    entry = catalog.lookup(settings.source)
    place = graph_place(model, settings, precision, entry.family if entry else "")
    if not is_whole(place, note):
        encoder = _load_one(settings, "cpu", note, "float32", trust_remote_code)
        try:
            _export(encoder, place, precision, note)
        except (NotExportableError, OSError) as error:
            if backend != AUTO or precision == "int8":
                hint = "leave out --precision int8" if precision == "int8" else "use --backend torch"
                raise error if isinstance(error, OSError) else EncoderError(f"{error}: {hint}") from None
            kept = "; set RETR_CACHE to a folder that can be written" if isinstance(error, OSError) else ""
            note(f"backend torch: {error}{kept}")
            if asked == "bf16":
                return load_encoder(settings, device, note, precision=asked, trust_remote_code=trust_remote_code)
            return _normalizing(encoder)
    return _normalizing(OnnxEncoder(place, runtime, settings.source))


def source_kind(settings: EncoderSettings, note: Note = lambda message: None) -> str:
    """What the settings' source is, told without loading it: transformer, static, elmo, word vectors, fusion, USE."""
    if settings.pooling == FUSION_POOLING:
        return "fusion"
    entry = catalog.lookup(settings.source)
    if entry is not None and entry.source == catalog.USE:
        return "USE"
    return model_kind(find_model(settings.source, note))


def check_backend(backend: str, precision: str, device: str = AUTO) -> None:
    """UsageError where there is no such backend or precision, or they do not go together."""
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r}: expected one of {', '.join(BACKENDS)}")
    if precision not in (AUTO, *PRECISIONS):
        raise UsageError(f"unknown precision {precision!r}: expected one of {', '.join((AUTO, *PRECISIONS))}")
    if precision in _LACKS.get(backend, ()):
        able = " or ".join(name for name in BACKENDS if name != AUTO and precision not in _LACKS.get(name, ()))
        raise UsageError(f"the backend {backend} has no precision {precision!r}: use --backend {able}")
    if (backend in RUNTIMES or precision == "int8") and device not in (AUTO, "cpu"):
        wanted = f"the backend {backend}" if backend in RUNTIMES else "int8"
        raise UsageError(f"{wanted} runs on the CPU, not on {device!r}: use --device cpu")


def _runtime_here(device: str, precision: str) -> str | None:
    """The first installed runtime of graphs that has the precision; None where a GPU is faster."""
    if precision != "int8" and (device not in (AUTO, "cpu") or (device == AUTO and has_gpu())):
        return None
    able = (name for name in RUNTIMES if precision not in _LACKS.get(name, ()))
    return next((name for name in able if importlib.util.find_spec(PACKAGES[name])), None)


def _export(encoder: Encoder, place: Path, precision: str, note: Note) -> None:
    try:
        import onnx  # noqa: F401 (the exporter needs both, and says so less clearly)
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise NotExportableError(f"the exporter is not installed ({error}; pip install onnx onnxscript)") from error
    from retrieval.encoders.onnx_export import export_graph
    from retrieval.encoders.transformer import TransformerEncoder

    assert isinstance(encoder, TransformerEncoder)
    note(f"exporting {encoder.settings.source} to ONNX, {precision} (once, some seconds)")
    fill_place(place, lambda folder: export_graph(encoder, folder, precision))


def _refuse_precision(precision: str, settings: EncoderSettings) -> None:
    if precision not in (AUTO, "float32"):
        raise UsageError(f"precision {precision!r} is for transformers, and {settings.source} is none: leave it out")


def _normalizing(encoder: Encoder) -> Encoder:
    return NormalizingEncoder(encoder) if encoder.settings.normalize else encoder


def _load_one(settings: EncoderSettings, device: str, note: Note, precision: str, trust_remote_code: bool) -> Encoder:
    """One model, by what lies at its source."""
    entry = catalog.lookup(settings.source)
    if entry is not None and entry.source == catalog.USE:
        from retrieval.encoders.use import UseEncoder

        _refuse_precision(precision, settings)
        return UseEncoder(settings)
    path = find_model(settings.source, note)
    kind = model_kind(path)
    if kind == "transformer":
        from retrieval.encoders.transformer import TransformerEncoder

        family = entry.family if entry else None
        return TransformerEncoder(
            path, settings, device, family, precision=precision, trust_remote_code=trust_remote_code
        )
    _refuse_precision(precision, settings)
    if kind == "static":
        from retrieval.encoders.static import StaticEncoder

        return StaticEncoder(path, settings)
    averaged = replace(settings, pooling=settings.pooling or "average")
    if kind == "elmo":
        from retrieval.encoders.elmo import ElmoEncoder

        return ElmoEncoder(path, averaged, device)
    from retrieval.encoders.word2vec import Word2VecEncoder

    return Word2VecEncoder(path, averaged, note)


def transformer_folder(settings: EncoderSettings, note: Note = lambda message: None) -> Path | None:
    """Where the model lies, if it is one transformer. Raises EncoderError where it cannot be found."""
    return find_model(settings.source, note) if source_kind(settings, note) == "transformer" else None
