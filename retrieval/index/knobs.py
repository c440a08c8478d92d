"""The knobs of a FAISS index, through whatever it is wrapped in: read, turned, and handed to one search."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.index.spec import Setting

# FastScan without inverted lists, and graphs but HNSW, refuse to leave rows out while they search.
_SELECTIVE = (
    *(faiss.IndexFlat, faiss.IndexScalarQuantizer, faiss.IndexPQ, faiss.IndexRaBitQ),
    *(faiss.IndexIVF, faiss.IndexHNSW),
)


def layers(index: Any) -> list[Any]:
    """The index and what it wraps, outermost first: refinement, a transform before it, lists or codes."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        return [index, *layers(index.base_index)]
    if isinstance(index, faiss.IndexPreTransform):
        return [index, *layers(index.index)]
    return [index]


def stored(index: Any) -> Any:
    """The part that holds the vectors most faithfully, and can compare them all."""
    if isinstance(index, faiss.IndexRefine):
        return faiss.downcast_index(index.refine_index)
    if isinstance(index, faiss.IndexHNSW | faiss.IndexNSG):
        return faiss.downcast_index(index.storage)
    return index


def selective(index: Any) -> bool:
    """Whether it can leave rows out while it searches."""
    return isinstance(layers(index)[-1], _SELECTIVE)


def read_setting(index: Any) -> Setting:
    """How hard a search of it looks."""
    knobs: dict[str, Any] = {}
    for layer in layers(index):
        if isinstance(layer, faiss.IndexRefine):
            knobs["k_factor"] = float(layer.k_factor)
        elif isinstance(layer, faiss.IndexIVF):
            knobs["nprobe"] = int(layer.nprobe)
        elif isinstance(layer, faiss.IndexHNSW):
            knobs["ef_search"] = int(layer.hnsw.efSearch)
    return Setting(**knobs)


def write_setting(index: Any, setting: Setting) -> None:
    """Turn the knobs that are set; they are saved with the index."""
    for layer in layers(index):
        if isinstance(layer, faiss.IndexRefine) and setting.k_factor:
            layer.k_factor = setting.k_factor
        elif isinstance(layer, faiss.IndexIVF) and setting.nprobe:
            layer.nprobe = min(setting.nprobe, layer.nlist)
        elif isinstance(layer, faiss.IndexHNSW) and setting.ef_search:
            layer.hnsw.efSearch = setting.ef_search


def parameters(index: Any, setting: Setting, mask: NDArray[np.bool_] | None) -> Any:
    """FAISS's search parameters for one search; None where there is nothing to say.

    Parameters
    ----------
    setting : what it leaves open stays as the index has it; an exact one looks into every list.
    mask : bool, shape (vectors,): which may be hits; only for what is `selective`.
    """
    selector = None if mask is None else faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
    found: Any = None
    for layer in reversed(layers(index)):
        if isinstance(layer, faiss.IndexRefine):
            found = faiss.IndexRefineSearchParameters(
                k_factor=setting.k_factor or layer.k_factor, base_index_params=found
            )
        elif isinstance(layer, faiss.IndexPreTransform):
            found = None if found is None else faiss.SearchParametersPreTransform(index_params=found)
        elif isinstance(layer, faiss.IndexIVF):
            lists = layer.nlist if setting.exact else min(setting.nprobe or layer.nprobe, layer.nlist)
            found = faiss.SearchParametersIVF(nprobe=lists, sel=selector)
        elif isinstance(layer, faiss.IndexHNSW):
            found = faiss.SearchParametersHNSW(efSearch=setting.ef_search or layer.hnsw.efSearch, sel=selector)
        elif selector is not None:
            found = faiss.SearchParameters(sel=selector)
    return found
