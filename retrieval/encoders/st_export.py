"""An encoder and a transform -> a stock sentence-transformers folder, which needs no code of ours.

A folder lists modules: a Transformer (with a WeightedLayerPooling where layers are averaged) and a Pooling, or what the
model's own modules.json lists, then the transform as a Dense, and Normalize. The general whitening
y = (x - beta mu) W is a Dense with weight W^T, bias -beta mu W and no activation.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import logging
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from retrieval import __version__
from retrieval.encoders.base import Encoder, TextKind
from retrieval.encoders.checkpoint import ROFORMER, TOKENIZER_FILES, quiet_transformers
from retrieval.encoders.modules import MODE_OF_POOLING, MODULES, module_entries, names_code
from retrieval.encoders.pooling import OWN_MODULES, averaged_states
from retrieval.encoders.static import StaticEncoder
from retrieval.encoders.transformer import TransformerEncoder
from retrieval.errors import EncoderError
from retrieval.storage import make_readable
from retrieval.transforms.whitening import Whitening

MARK = "retr_export.json"
"""Says that a folder is an export, and of what: only such a folder is replaced by the next one."""
TOLERANCE = 1e-5
"""Of the values of unit vectors: those of sentence-transformers against ours in float32."""
_LIBRARY = "sentence_transformers.models"
_TRANSFORM = "transform"


def export_folder(encoder: Encoder, transform: Whitening | None, folder: Path, *, raw: bool = False) -> list[str]:
    """Write the folder; `SentenceTransformer(folder).encode` then gives what an index holds.

    Parameters
    ----------
    encoder : a transformer or a static embedding, in float32; its prompts become those of the folder.
    transform : goes after the encoder's own modules.
    folder : empty.
    raw : leave out the transform and the normalisation.

    Returns
    -------
    The kinds of the modules, in their order.

    Raises
    ------
    EncoderError
        No stock module does what the encoder does; which part, is said.
    """
    known = _exportable(encoder)
    chain = _static_chain(known, folder) if isinstance(known, StaticEncoder) else _chain(known, folder)
    if not raw:
        if transform is not None:
            bias = -(transform.mean.astype(np.float64) @ transform.kernel.astype(np.float64))
            weight = np.ascontiguousarray(transform.kernel.T)
            chain.append("Dense")
            _write_dense(folder / f"{len(chain) - 1}_Dense", weight, bias.astype(np.float32), "linear.Identity")
        chain.append("Normalize")
        (folder / f"{len(chain) - 1}_Normalize").mkdir()
    entries = [
        {"idx": place, "name": str(place), "path": f"{place}_{kind}" if place else "", "type": f"{_LIBRARY}.{kind}"}
        for place, kind in enumerate(chain)
    ]
    _write_json(folder / MODULES, entries)
    settings = encoder.settings
    _write_json(
        folder / "config_sentence_transformers.json",
        {
            "prompts": {"query": settings.query_prompt, "document": settings.document_prompt},
            "default_prompt_name": "document" if settings.document_prompt else None,
            "similarity_fn_name": "cosine",
        },
    )
    return chain


def write_card(folder: Path, about: dict[str, Any]) -> None:
    """Add README.md, which says how the folder is used, and MARK.

    Parameters
    ----------
    about : source, pooling, transform, dimension, query_prompt, document_prompt, modules, raw; kept in MARK.
    """
    _write_json(folder / MARK, {"retr_version": __version__, **about})
    chain = " -> ".join(about["modules"])
    vectors = "raw embeddings, not of unit length" if about["raw"] else "unit vectors: their cosine is their product"
    (folder / "README.md").write_text(
        f"""---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, sentence-similarity, feature-extraction]
---
# {Path(about["source"]).name}, {about["pooling"]}, {about["transform"]}

Exported by retr {__version__}: {chain}, all of them stock modules. {about["dimension"]} dimensions, {vectors}.
The encoder's licence is its authors'.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{folder_name(about)}")
documents = model.encode(["..."])
queries = model.encode(["..."], prompt_name="query")
```

Prompts: {about["query_prompt"]!r} before a query, {about["document_prompt"]!r} before a document (the default).
""",
        encoding="utf-8",
    )


def folder_name(about: dict[str, Any]) -> str:
    """What the card calls the folder."""
    return str(about.get("name") or "FOLDER")


def largest_difference(
    folder: Path, encoder: Encoder, transform: Whitening | None, texts: Sequence[str], *, raw: bool = False
) -> float | None:
    """Load the folder with sentence-transformers and compare: the largest difference of two unit vectors' values.

    None where the library is not installed; EncoderError where it cannot run the folder. Texts are asked both as
    documents and as queries.
    """
    if importlib.util.find_spec("sentence_transformers") is None:
        return None
    kinds: tuple[TextKind, ...] = ("document", "query")
    try:
        with warnings.catch_warnings(), quiet_transformers(), _quiet_library():
            warnings.simplefilter("ignore")  # what the library warns of at import is not ours
            from sentence_transformers import SentenceTransformer

            library = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
            theirs = [np.asarray(library.encode(list(texts), prompt_name=kind)) for kind in kinds]
    except Exception as error:  # every model class has failures of its own
        detail = " ".join(str(error).split())[:150]
        raise EncoderError(
            f"sentence-transformers cannot run the export ({type(error).__name__}: {detail}): nothing was written; "
            f"--no-check writes it all the same"
        ) from error
    from retrieval.transforms.apply import unit_vectors

    applied = None if raw else transform
    return max(
        float(np.abs(unit_vectors(encoder.encode(texts, kind=kind), applied) - unit_vectors(found, None)).max())
        for kind, found in zip(kinds, theirs, strict=True)
    )


@contextlib.contextmanager
def _quiet_library() -> Iterator[None]:
    """Without its remarks on the folder, which are for those who use it."""
    log = logging.getLogger("sentence_transformers")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _exportable(encoder: Encoder) -> TransformerEncoder | StaticEncoder:
    """The encoder itself; EncoderError where stock modules do not do what it does."""
    settings = encoder.settings
    if settings.normalize:
        raise EncoderError(
            f"texts are normalised ({settings.normalize}) before they are encoded, which no stock module does: "
            f"leave out --normalize, and index texts that are normalised already"
        )
    if isinstance(encoder, StaticEncoder):
        if settings.max_length:
            raise EncoderError("a static embedding takes texts of any length, and max length was set: leave it out")
        return encoder
    if not isinstance(encoder, TransformerEncoder):
        raise EncoderError(f"{settings.source} is no transformer, and has no stock module")
    if any(names_code(encoder.base / name) for name in ("config.json", "tokenizer_config.json")):
        raise EncoderError(f"{settings.source} brings its own code (auto_map), which no stock module runs")
    if type(encoder.tokenizer).__name__ == ROFORMER:
        raise EncoderError(
            f"{settings.source} has RoFormer's word splitter, which sentence-transformers loads without its vocabulary"
        )
    return encoder


def _static_chain(encoder: StaticEncoder, folder: Path) -> list[str]:
    """Copy the table, its tokenizer and the modules after them."""
    for path in encoder.files:
        shutil.copyfile(path, folder / path.name)
    return ["StaticEmbedding", *_copy_modules(encoder.folder, folder, 1, 1)]


def _chain(encoder: TransformerEncoder, folder: Path) -> list[str]:
    """Write the transformer, and the modules up to the raw embedding."""
    settings, states = encoder.settings, averaged_states(encoder.settings.pooling)
    try:
        with quiet_transformers():
            encoder.model.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(f"the weights cannot be written (is the disk full?): {error}") from error
    for path in folder.iterdir():
        make_readable(path)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Without the name of a number format the library would take the one that the weights were published in.
    config |= {"dtype": "float32", "output_hidden_states": states is not None or encoder.reads_every_state}
    config.pop("torch_dtype", None)
    _write_json(folder / "config.json", config)
    for name in {*TOKENIZER_FILES, *encoder.tokenizer.vocab_files_names.values()}:
        if (encoder.base / name).exists():
            shutil.copyfile(encoder.base / name, folder / name)
    library: dict[str, Any] = {"max_seq_length": settings.max_length, "do_lower_case": encoder.lower_case}
    has_pooler = getattr(encoder.model, "pooler", None) is not None
    if not has_pooler and "add_pooling_layer" in inspect.signature(type(encoder.model)).parameters:
        library["model_args"] = {"add_pooling_layer": False}  # else one is made at random, unused, with a warning
    _write_json(folder / "sentence_bert_config.json", library)
    if settings.pooling == OWN_MODULES:
        return ["Transformer", *_copy_modules(encoder.folder, folder, 1, 1)]
    hidden, chain = int(encoder.model.config.hidden_size), ["Transformer"]
    if states is not None:
        chain.append("WeightedLayerPooling")
        _write_layers(folder / "1_WeightedLayerPooling", states, int(encoder.model.config.num_hidden_layers), hidden)
    chain.append("Pooling")
    pooling = "last-avg" if states is not None else "cls" if settings.pooling == "pooler" else settings.pooling
    _write_pooling(folder / f"{len(chain) - 1}_Pooling", hidden, MODE_OF_POOLING[pooling])
    if settings.pooling == "pooler":
        linear = _pooler_layer(encoder.model)
        chain.append("Dense")
        _write_dense(
            folder / f"{len(chain) - 1}_Dense",
            linear.weight.detach().numpy(),
            linear.bias.detach().numpy(),
            "activation.Tanh",
        )
    return chain


def _copy_modules(source: Path, folder: Path, first: int, place: int) -> list[str]:
    """Copy the source's modules from number `first` on to places from `place` on; their kinds."""
    kinds: list[str] = []
    for kind, path in module_entries(source)[first:]:
        if kind == "Dropout":  # does nothing once a model is trained
            continue
        target = folder / f"{place + len(kinds)}_{kind}"
        target.mkdir()
        for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
            if path != source and (path / name).exists():
                shutil.copyfile(path / name, target / name)
        kinds.append(kind)
    return kinds


def _pooler_layer(model: Any) -> Any:
    """The linear layer of a pooler that is BERT's: tanh(W h + b) of the first token's state."""
    pooler = model.pooler
    linear = getattr(pooler, "dense", pooler)
    activation = getattr(pooler, "activation", getattr(model, "pooler_activation", None))
    if isinstance(linear, torch.nn.Linear) and isinstance(activation, torch.nn.Tanh) and linear.bias is not None:
        return linear
    raise EncoderError(f"the pooler of {type(model).__name__} is no stock module: choose another --pool")


def _write_pooling(folder: Path, hidden: int, mode: str) -> None:
    """In the keys that every version of the library reads."""
    folder.mkdir()
    keys = {
        "cls": "cls_token",
        "max": "max_tokens",
        "mean": "mean_tokens",
        "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "weightedmean": "weightedmean_tokens",
        "lasttoken": "lasttoken",
    }
    _write_json(
        folder / "config.json",
        {
            "word_embedding_dimension": hidden,
            **{f"pooling_mode_{key}": name == mode for name, key in keys.items()},
            "include_prompt": True,
        },
    )


def _write_layers(folder: Path, states: Sequence[int], layers: int, hidden: int) -> None:
    """The average of some hidden states, by number, as one of all with weights that are mostly 0."""
    from safetensors.numpy import save_file

    folder.mkdir()
    weights = np.zeros(layers + 1, np.float32)
    for number in states:
        weights[number] += 1
    save_file({"layer_weights": weights}, folder / "model.safetensors")
    make_readable(folder / "model.safetensors")
    _write_json(
        folder / "config.json",
        {"word_embedding_dimension": hidden, "layer_start": 0, "num_hidden_layers": layers},
    )


def _write_dense(folder: Path, weight: NDArray[np.float32], bias: NDArray[np.float32], activation: str) -> None:
    """A linear layer: weight (m, d), bias (m,)."""
    from safetensors.numpy import save_file

    folder.mkdir()
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "model.safetensors")
    make_readable(folder / "model.safetensors")
    _write_json(
        folder / "config.json",
        {
            "in_features": weight.shape[1],
            "out_features": weight.shape[0],
            "bias": True,
            "activation_function": f"torch.nn.modules.{activation}",
        },
    )


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
