"""What an index searches with, in forms that other programs read: a sentence-transformers folder, a FAISS file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.encoders.base import Encoder, EncoderSettings
from retrieval.encoders.load import load_encoder, source_kind
from retrieval.encoders.onnx import encoder_fingerprint, graph_fingerprint
from retrieval.encoders.runtime import RUNTIMES
from retrieval.errors import EncoderError, IndexFolderError, TransformError, UsageError
from retrieval.index import folder as layout
from retrieval.index.documents import Documents
from retrieval.search import Index
from retrieval.storage import atomic_file, replaced_folder
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform
from retrieval.transforms.spec import NONE
from retrieval.transforms.whitening import Whitening
from retrieval.types import NoProgress, Progress

_EXPORTABLE = ("transformer", "static")
_CHECKED_TEXTS = (
    "手机丢了怎么把号码保住",
    "退款多久到账？",
    "How do I change my address?",
    "ＡＢＣ　１２３",
    "好",
    "这是一段比较长的文字，" * 12,
)
_CHECKED_DOCUMENTS = 32


@dataclass(frozen=True)
class StExport:
    """A sentence-transformers folder that was written."""

    path: Path
    modules: list[str]
    dimension: int
    query_prompt: str
    document_prompt: str
    largest_difference: float | None
    """Of any value of a unit vector, sentence-transformers' against ours in float32; None where it was not compared."""
    lowest_cosine: float | None
    """Between float32 and the index's own encoder, which may compute in bf16 or int8; None for a model."""


def export_st(
    output: Path,
    *,
    index: Path | None = None,
    settings: EncoderSettings | None = None,
    transform: Transform | None = None,
    transform_name: str = NONE,
    raw: bool = False,
    check: bool = True,
    progress: Progress | None = None,
) -> StExport:
    """Write a stock sentence-transformers folder.

    Parameters
    ----------
    output : a new name, or a folder that an earlier export wrote, which is then replaced.
    index : the index whose encoder and transform are exported; else `settings` and `transform` are.
    transform_name : what the folder's card calls the transform.
    raw : leave out the transform and the normalisation.
    check : compare the folder's vectors with ours, where sentence-transformers is installed.

    Raises
    ------
    EncoderError
        The encoder has no stock module, is not the one that built the index, or the folder's vectors differ.
    TransformError
        The transform is a flow, or of another dimension.
    IndexFolderError
        Something stands at `output` that is no export; nothing is written.
    """
    progress = progress or NoProgress()
    _check_output(output)
    opened, texts = None, list(_CHECKED_TEXTS)
    if index is not None:
        manifest = layout.read_manifest(index)
        stored = manifest.encoder.items()
        settings = EncoderSettings(**{name: v for name, v in stored if name in EncoderSettings.__dataclass_fields__})
    if settings is None:
        raise UsageError("nothing to export: give an index, or the settings of a model")
    if (kind := source_kind(settings, progress.note)) not in _EXPORTABLE:
        raise EncoderError(
            f"{settings.source!r} is {_WORDS[kind]}, and stock sentence-transformers has no module for it: what can be "
            f"exported is one transformer or static embedding, with whiten, rotate, soft or no transform"
        )
    if index is not None:
        opened = Index.open(index, device="cpu", progress=progress)
        transform, transform_name = opened.transform, str(opened.manifest.transform["name"])
        documents = Documents(index / layout.DOCUMENTS)
        for _, piece in documents.texts(0, min(_CHECKED_DOCUMENTS, len(documents))):
            texts += piece
    linear = None if raw else _linear(transform, "stock sentence-transformers has linear layers only")

    from retrieval.encoders.st_export import TOLERANCE, export_folder, largest_difference, write_card

    progress.note(f"loading {settings.source} in float32")
    encoder = load_encoder(settings, "cpu", progress.note)
    if opened is not None:
        _check_same(opened, encoder)
    if linear is not None and linear.dimension != encoder.dimension:
        raise TransformError(
            f"the transform takes vectors of {linear.dimension} dimensions, and {settings.source} with "
            f"{encoder.settings.pooling} gives {encoder.dimension}: give the model and pooling that it was fitted on"
        )
    with replaced_folder(output) as building:
        modules = export_folder(encoder, linear, building, raw=raw)
        found = StExport(
            output,
            modules,
            encoder.dimension if linear is None else linear.m,
            encoder.settings.query_prompt,
            encoder.settings.document_prompt,
            largest_difference(building, encoder, linear, texts) if check else None,
            _lowest_cosine(opened, encoder, linear, texts) if opened is not None else None,
        )
        if found.largest_difference is not None and not found.largest_difference <= TOLERANCE:
            why = _why(encoder, linear, texts, TOLERANCE)
            raise EncoderError(
                f"sentence-transformers makes other vectors of {settings.source} than retr (a value differs by "
                f"{found.largest_difference:.2g}, expected at most {TOLERANCE:g}{why}): "
                f"nothing was written; --no-check writes it all the same"
            )
        write_card(building, _about(found, encoder, transform_name, raw))
    return found


def export_faiss(index: Path, output: Path, *, progress: Progress | None = None) -> tuple[Path, Path]:
    """Write one FAISS file that answers raw embeddings alone: linear transform, normalisation, index.

    `faiss.read_index(output).search(embeddings, k)` gives the rows and scores of a search of `index`; the raw
    embeddings are those of the index's encoder as it gives them, float32, shape (q, d); a row of zeros, of a text of
    which the encoder knows nothing, should not be asked. Beside the file goes a Parquet file of the rows' ids, texts
    and kept columns, in row order.

    Returns
    -------
    The FAISS file and the Parquet file.

    Raises
    ------
    TransformError
        The transform is a flow.
    IndexFolderError
        Something stands at `output` that is no FAISS file, the index is damaged, or its vectors.faiss holds too
        little to answer alone; nothing is written.
    """
    from retrieval.index.export import check_output, write_faiss, write_rows
    from retrieval.index.spec import is_rescored

    progress, rows = progress or NoProgress(), output.with_name(f"{output.name}.rows.parquet")
    check_output(output)
    opened = Index.open(index, device="cpu", progress=progress)
    if is_rescored(kind := opened.manifest.index["spec"]):
        raise IndexFolderError(
            f"'{index}' is of the kind {kind}, whose candidates its embeddings score, and a FAISS file would hold the "
            f"codes alone: make one of another kind first: retr reindex -i {index} --index ivf-pqfs -o FOLDER"
        )
    linear = _linear(opened.transform, "FAISS has linear transforms only")
    with atomic_file(output) as faiss_file, atomic_file(rows) as rows_file:
        write_rows(index / layout.DOCUMENTS, rows_file)
        write_faiss(index / layout.VECTORS, linear, int(opened.manifest.encoder["dimension"]), faiss_file)
    return output, rows


def _linear(transform: Transform | None, why: str) -> Whitening | None:
    if transform is None or isinstance(transform, Whitening):
        return transform
    raise TransformError(
        f"the transform is a flow, and {why}: what can be exported is whiten-M, rotate-M, soft-M or none"
    )


def _check_output(output: Path) -> None:
    from retrieval.encoders.st_export import MARK

    if output.is_dir():
        if any(output.iterdir()) and not (output / MARK).is_file():
            raise IndexFolderError(
                f"'{output}' will not be replaced: it is no folder that retr export wrote (it has no {MARK}). "
                f"Give another with -o, or delete this one"
            )
    elif output.exists() or output.is_symlink():
        raise IndexFolderError(f"'{output}' is a file, expected a folder or a new name: give another with -o")


def _check_same(opened: Index, encoder: Encoder) -> None:
    """The model as it lies there now must be the one that the index's vectors were made by."""
    stored = opened.manifest.encoder
    fingerprint, precision, backend = encoder.fingerprint, stored["precision"], stored["backend"]
    if backend in RUNTIMES:
        fingerprint = encoder_fingerprint(graph_fingerprint(fingerprint, precision), precision, backend)
    elif precision != encoder.precision and hasattr(encoder, "fingerprint_in"):
        fingerprint = encoder.fingerprint_in(precision)
    if fingerprint != stored["fingerprint"]:
        raise EncoderError(
            f"index '{opened.path}' was built by another encoder than {stored['source']!r} is now (fingerprint "
            f"{stored['fingerprint'][:12]}, now {fingerprint[:12]}): restore the model, or build the index again"
        )


def _lowest_cosine(opened: Index, encoder: Encoder, linear: Whitening | None, texts: list[str]) -> float:
    """Of the texts' vectors in float32 with those of the index's own encoder."""
    own = unit_vectors(opened.encoder.encode(texts), linear)
    return float((own * unit_vectors(encoder.encode(texts), linear)).sum(axis=1).min().clip(-1, 1))


def _why(encoder: Encoder, linear: Whitening | None, texts: list[str], tolerance: float) -> str:
    """Where our own vectors change as much with the batch that a text is in, the transform is the reason."""
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    own = float(np.abs(unit_vectors(alone, linear) - unit_vectors(encoder.encode(texts), linear)).max())
    return f"; ours by {own:.2g} from batch to batch: the transform keeps directions of mere rounding" * (
        own > tolerance
    )


def _about(found: StExport, encoder: Encoder, transform: str, raw: bool) -> dict[str, Any]:
    settings = encoder.settings
    return {
        "name": found.path.name,
        "source": settings.source if not Path(settings.source).is_absolute() else Path(settings.source).name,
        "fingerprint": encoder.fingerprint,
        "pooling": settings.pooling,
        "transform": "raw" if raw else transform,
        "dimension": found.dimension,
        "max_length": settings.max_length,
        "query_prompt": settings.query_prompt,
        "document_prompt": settings.document_prompt,
        "modules": found.modules,
        "raw": raw,
    }


_WORDS = {
    "word vectors": "a file of word vectors",
    "elmo": "an ELMo",
    "fusion": "a fusion of encoders",
    "USE": "the Universal Sentence Encoder",
}
