"""sentence-transformers' folders: modules.json and what it names, without the library and without its code.

A folder lists modules: a Transformer (and perhaps a WeightedLayerPooling) with a Pooling, or a StaticEmbedding, then
Dense, LayerNorm and Normalize steps. The vectors equal `SentenceTransformer.encode`; a module of another kind is an
error that names it.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from retrieval.encoders.base import EncoderSettings
from retrieval.errors import EncoderError

MODULES = "modules.json"
_POOLING_OF_MODE = {
    "cls": "cls",
    "max": "max",
    "mean": "last-avg",
    "mean_sqrt_len_tokens": "sqrt-avg",
    "weightedmean": "weighted-avg",
    "lasttoken": "last-token",
}
MODE_OF_POOLING = {pooling: mode for mode, pooling in _POOLING_OF_MODE.items()}
# Before version 5 a Pooling had a key a mode; several may be true, and are concatenated in this order.
_MODE_OF_OLD_KEY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_LAYERS = "WeightedLayerPooling"
_WHOLE, _MOST_LAYERS = 1e-4, 256
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "LeakyReLU", "ELU", "Softplus", "Mish")
_SETTINGS_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_QUERY_PROMPTS, _DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")


@dataclass(frozen=True)
class Modules:
    """What a folder's modules.json says."""

    base: Path
    """The folder of the transformer, or of the static embedding."""
    static: bool
    poolings: tuple[str, ...]
    include_prompt: bool
    """Whether the tokens of a prompt count in the pooling."""
    steps: torch.nn.Sequential
    """What comes after the pooling: (B, H) -> (B, d)."""
    max_length: int | None
    lower_case: bool
    query_prompt: str
    document_prompt: str
    files: tuple[Path, ...]
    """Everything read here that shapes a vector."""

    def settings(self, settings: EncoderSettings) -> EncoderSettings:
        """The settings with the folder's prompts and length where none are given."""
        return replace(
            settings,
            query_prompt=settings.query_prompt or self.query_prompt,
            document_prompt=settings.document_prompt or self.document_prompt,
            max_length=settings.max_length or self.max_length or 0,
        )

    @property
    def dimension(self) -> int | None:
        """d where a step changes it; None where the pooling's stays."""
        widths = [step.out_features for step in self.steps.modules() if isinstance(step, torch.nn.Linear)]
        return int(widths[-1]) if widths else None


def read_modules(folder: Path) -> Modules:
    """Read a sentence-transformers folder.

    Raises
    ------
    EncoderError
        A module of an unknown kind, a missing file, or settings that this code does not know.
    """
    entries = module_entries(folder)
    names, base = [name for name, _ in entries], entries[0][1]
    static, layered = names[0] == "StaticEmbedding", names[1:2] == [_LAYERS]
    pooled = 2 if layered else 1  # the place of the Pooling
    if not static and (names[0] != "Transformer" or names[pooled : pooled + 1] != ["Pooling"]):
        raise EncoderError(f"{folder / MODULES} begins with {names[: pooled + 1]}, expected Transformer and Pooling")
    poolings, include_prompt = ((), True) if static else _pooling(entries[pooled][1])
    if layered:
        poolings = (_layers(entries[1][1], poolings),)
    rest = entries[1 if static else pooled + 1 :]
    steps = torch.nn.Sequential(*(_STEPS[name](path) for name, path in rest if name != "Dropout"))
    prompts = _prompts(folder)
    settings = {} if static else _transformer_settings(base)
    if layered:
        rest = [entries[1], *rest]
    files = [folder / MODULES, *(path for step in rest for path in sorted(step[1].glob("*.safetensors")))]
    files += [
        path for step in rest for path in (step[1] / "config.json", step[1] / "pytorch_model.bin") if path.exists()
    ]
    return Modules(
        base=base,
        static=static,
        poolings=poolings,
        include_prompt=include_prompt,
        steps=steps.eval(),
        max_length=settings.get("max_seq_length"),
        lower_case=bool(settings.get("do_lower_case", False)),
        query_prompt=prompts[0],
        document_prompt=prompts[1],
        files=tuple(files),
    )


def module_entries(folder: Path) -> list[tuple[str, Path]]:
    """The kinds and folders that modules.json lists, at least one; EncoderError where one is not the library's own."""
    entries = _json(folder / MODULES)
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise EncoderError(f"{folder / MODULES} is not a list of modules")
    kinds = [(str(entry.get("type", "")), folder / str(entry.get("path", ""))) for entry in entries]
    names = [kind.rsplit(".", 1)[-1] for kind, _ in kinds]
    for (kind, _), name in zip(kinds, names, strict=True):
        if name not in _KNOWN or not kind.startswith("sentence_transformers."):
            raise EncoderError(
                f"{folder / MODULES} names the module {kind!r}, which is not one of {', '.join(sorted(_KNOWN))}: "
                f"its code would have to be run, and never is, not even with --trust-remote-code"
            )
    return [(name, path) for name, (_, path) in zip(names, kinds, strict=True)]


def base_folder(folder: Path) -> Path:
    """Where the transformer of a folder lies: in the folder, or where its modules.json says."""
    if not (folder / MODULES).exists():
        return folder
    entries = _json(folder / MODULES)
    return folder / str(entries[0].get("path", "")) if isinstance(entries, list) and entries else folder


def names_code(path: Path) -> bool:
    """Whether a JSON file of a model names Python classes of the model's own: `auto_map`."""
    config = _json(path, missing={})
    return isinstance(config, dict) and bool(config.get("auto_map"))


def not_only_tensors(folder: Path, error: pickle.UnpicklingError) -> EncoderError:
    """What torch refuses to unpickle, as an error; torch's own message advises to run it."""
    refused = re.search(r"GLOBAL (\S+)", str(error))
    found = f"hold more than tensors ({refused[1]})" if refused else "are damaged or hold more than tensors"
    return EncoderError(
        f"the weights in {folder} {found}, and were not loaded, since that could run code: "
        f"convert them to model.safetensors where you trust them, or download them again"
    )


def _transformer_settings(base: Path) -> Any:
    """The first that is there of the names that sentence-transformers gave the file, by architecture."""
    names = (base / f"sentence_{kind}_config.json" for kind in _SETTINGS_KINDS)
    return next((_json(path) for path in names if path.exists()), {})


def _prompts(folder: Path) -> tuple[str, str]:
    config = _json(folder / "config_sentence_transformers.json", missing={})
    prompts = config.get("prompts") or {}
    default = prompts.get(config.get("default_prompt_name"), "")

    def first(names: Sequence[str]) -> str:
        return next((str(prompts[name]) for name in names if name in prompts), str(default))

    return first(_QUERY_PROMPTS), first(_DOCUMENT_PROMPTS)


def _pooling(folder: Path) -> tuple[tuple[str, ...], bool]:
    config = _json(folder / "config.json")
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _MODE_OF_OLD_KEY.items() if config.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if unknown := [mode for mode in modes if mode not in _POOLING_OF_MODE]:
        raise EncoderError(f"{folder / 'config.json'} has the pooling mode {unknown[0]!r}, which is not known")
    return tuple(_POOLING_OF_MODE[mode] for mode in modes), bool(config.get("include_prompt", True))


def _layers(folder: Path, poolings: tuple[str, ...]) -> str:
    """The pooling that averages hidden states as a WeightedLayerPooling does, where its weights are equal or whole."""
    config, weights = _json(folder / "config.json"), _weights(folder).get("layer_weights")
    if poolings != ("last-avg",):
        raise EncoderError(f"{folder}: {_LAYERS} with a pooling other than mean is not known")
    if weights is None or weights.ndim != 1 or not bool((weights >= 0).all()) or not bool(weights.any()):
        raise EncoderError(f"{folder} holds no layer_weights of at least 0")
    counts = weights / weights[weights > 0].min()
    if bool((counts - counts.round()).abs().max() > _WHOLE) or counts.sum() > _MOST_LAYERS:
        raise EncoderError(f"{folder}: layers are weighted by other than whole numbers, which is not known")
    start = int(config.get("layer_start", 4))
    numbers = [start + place for place, count in enumerate(counts.round().int().tolist()) for _ in range(count)]
    return f"layers-{','.join(map(str, numbers))}"


class _Residual(torch.nn.Module):
    """A linear layer with activation, and its input added to it."""

    def __init__(self, inner: torch.nn.Module, shortcut: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.shortcut = inner, shortcut

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(vectors) + self.shortcut(vectors)
        return result


class _UnitLength(torch.nn.Module):
    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(vectors, dim=-1)


def _dense(folder: Path) -> torch.nn.Module:
    config, weights = _json(folder / "config.json"), _weights(folder)
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise EncoderError(
                f"{folder / 'config.json'}: {key} {config[key]!r} is not known, expected sentence_embedding"
            )
    path = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    name = path.rsplit(".", 1)[-1]
    if not path.startswith("torch.nn.") or name not in _ACTIVATIONS:
        raise EncoderError(f"{folder / 'config.json'}: the activation {path!r} is not one of {', '.join(_ACTIVATIONS)}")
    sizes = int(config["in_features"]), int(config["out_features"])
    linear = torch.nn.Linear(*sizes, bias=bool(config.get("bias", True)))
    _load(linear, weights, "linear.", folder)
    layer = torch.nn.Sequential(linear, getattr(torch.nn, name)())
    if not config.get("use_residual"):
        return layer
    shortcut: torch.nn.Module = torch.nn.Identity()
    if sizes[0] != sizes[1]:
        shortcut = torch.nn.Linear(*sizes, bias=False)
        _load(shortcut, weights, "residual.", folder)
    return _Residual(layer, shortcut)


def _layer_norm(folder: Path) -> torch.nn.Module:
    norm = torch.nn.LayerNorm(int(_json(folder / "config.json")["dimension"]))
    _load(norm, _weights(folder), "norm.", folder)
    return norm


def _normalize(folder: Path) -> torch.nn.Module:
    return _UnitLength()


_STEPS = {"Dense": _dense, "LayerNorm": _layer_norm, "Normalize": _normalize}
_KNOWN = {"Transformer", _LAYERS, "Pooling", "StaticEmbedding", "Dropout", *_STEPS}


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if (folder / "model.safetensors").exists():
            return load_file(folder / "model.safetensors")
        if (folder / "pytorch_model.bin").exists():
            return dict(torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        raise not_only_tensors(folder, error) from error
    except (SafetensorError, RuntimeError, OSError, ValueError) as error:
        raise EncoderError(f"the weights in {folder} cannot be loaded: {error}") from error
    raise EncoderError(f"{folder} has no weights: expected model.safetensors or pytorch_model.bin")


def _load(module: torch.nn.Module, weights: dict[str, torch.Tensor], prefix: str, folder: Path) -> None:
    own = {name.removeprefix(prefix): tensor.float() for name, tensor in weights.items() if name.startswith(prefix)}
    try:
        module.load_state_dict(own)
    except RuntimeError as error:
        raise EncoderError(
            f"the weights in {folder} do not fit its config.json: {' '.join(str(error).split())}"
        ) from None


def _json(path: Path, missing: Any = None) -> Any:
    if not path.exists() and missing is not None:
        return missing
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EncoderError(f"{path} cannot be read: {error}") from None
