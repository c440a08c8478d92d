"""An index's vectors as one FAISS file that answers raw embeddings alone, and the documents of its rows beside it."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retrieval.errors import IndexFolderError
from retrieval.index.spilled import in_one_list, spills
from retrieval.transforms.whitening import Whitening


def write_faiss(vectors: Path, transform: Whitening | None, dimension: int, file: IO[bytes]) -> None:
    """Write an IndexPreTransform of LinearTransform (left out where there is no transform), normalisation and index.

    Parameters
    ----------
    vectors : what VectorIndex.save wrote: an index of any kind over unit vectors, by inner product.
    dimension : d of the raw embeddings.

    Raises
    ------
    IndexFolderError
        `vectors` is no whole FAISS file.
    OSError
        The file cannot be written whole.
    """
    try:
        index = faiss.read_index(str(vectors), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise IndexFolderError(f"{vectors} is not a whole FAISS index ({error}): build the index again") from None
    inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index
    if spills(inner):
        in_one_list(inner)
    chain = faiss.IndexPreTransform(index)
    chain.prepend_transform(faiss.NormalizationTransform(index.d, 2.0))
    if transform is not None:
        linear = faiss.LinearTransform(dimension, transform.m, True)
        # y = (x - mean) W is W^T x - W^T mean.
        kernel = transform.kernel
        faiss.copy_array_to_vector(np.ascontiguousarray(kernel.T).ravel(), linear.A)
        bias = -(transform.mean.astype(np.float64) @ kernel.astype(np.float64))
        faiss.copy_array_to_vector(bias.astype(np.float32), linear.b)
        linear.is_trained = True
        chain.prepend_transform(linear)
    writer = faiss.PyCallbackIOWriter(file.write)
    try:
        faiss.write_index(chain, writer)
    except RuntimeError as error:
        raise OSError(f"the FAISS file cannot be written (is the disk full?): {error}") from None


def write_rows(documents: Path, file: IO[bytes]) -> None:
    """The documents of an index as Parquet: `row`, as FAISS returns it, `id`, `text` and the kept columns."""
    reader = pa.ipc.open_file(pa.memory_map(str(documents)))
    schema = reader.schema.insert(0, pa.field("row", pa.int64()))
    row = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for place in range(reader.num_record_batches):
            batch = reader.get_batch(place)
            rows = pa.array(np.arange(row, row + batch.num_rows))
            writer.write_batch(pa.record_batch([rows, *batch.columns], schema=schema))
            row += batch.num_rows


def check_output(path: Path) -> None:
    """Raise IndexFolderError where something stands that is no FAISS file: it would be lost."""
    if path.is_dir():
        raise IndexFolderError(f"'{path}' is a folder, expected the name of a file: give another with -o")
    if path.exists():
        try:
            faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError:
            raise IndexFolderError(
                f"'{path}' will not be replaced: it is no FAISS file. Give another with -o, or delete this one"
            ) from None
    if not path.parent.is_dir():
        raise IndexFolderError(f"there is no folder '{path.parent}' for the file '{path.name}': make it first")
