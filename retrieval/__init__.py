"""retr: a semantic retrieval engine. Texts are encoded, whitened, and searched with FAISS.

import retrieval

index = retrieval.Index.build("corpus.parquet", "indexes/corpus")
for hit in retrieval.Index.open("indexes/corpus").search("怎么退货", k=3)[0]:
    print(hit.score, hit.text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Index": "retrieval.search",
    "CorpusOptions": "retrieval.corpus.reader",
    "Hit": "retrieval.types",
    "Progress": "retrieval.types",
    "RetrError": "retrieval.errors",
    "UsageError": "retrieval.errors",
    "CorpusError": "retrieval.errors",
    "EncoderError": "retrieval.errors",
    "TransformError": "retrieval.errors",
    "DimensionError": "retrieval.errors",
    "IndexFolderError": "retrieval.errors",
    "BuildError": "retrieval.errors",
}
__all__ = [
    "BuildError",
    "CorpusError",
    "CorpusOptions",
    "DimensionError",
    "EncoderError",
    "Hit",
    "Index",
    "IndexFolderError",
    "Progress",
    "RetrError",
    "TransformError",
    "UsageError",
    "__version__",
]

if TYPE_CHECKING:
    from retrieval.corpus.reader import CorpusOptions
    from retrieval.errors import (
        BuildError,
        CorpusError,
        DimensionError,
        EncoderError,
        IndexFolderError,
        RetrError,
        TransformError,
        UsageError,
    )
    from retrieval.search import Index
    from retrieval.types import Hit, Progress


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that `import retrieval` costs nothing (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'retrieval' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
