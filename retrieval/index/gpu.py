"""FAISS on a GPU (faiss-gpu): k-means while an index is built, copies for batches of searches; never saved there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import faiss

from retrieval.errors import UsageError


def check_device(device: str) -> None:
    """Refuse a GPU that FAISS cannot use.

    Raises
    ------
    UsageError
        It is the CPU's FAISS, or sees no GPU.
    """
    if not device.startswith("cuda"):
        return
    if not hasattr(faiss, "StandardGpuResources"):
        raise UsageError(
            f"the device is {device}, and the FAISS that is installed has no GPU code: "
            f"pip uninstall -y faiss-cpu && pip install 'faiss-gpu>=1.15,<1.16'"
        )
    if faiss.get_num_gpus() == 0:
        raise UsageError(f"the device is {device}, and FAISS sees no GPU")


def gpu_copy(index: Any, device: str) -> tuple[Any, Any]:
    """A copy of a FAISS index on a GPU, and the memory that has to live as long.

    Raises
    ------
    UsageError
        FAISS has no such kind for a GPU: FastScan, graphs and refinement stay on the CPU.
    """
    check_device(device)
    resources = faiss.StandardGpuResources()
    try:
        return faiss.index_cpu_to_gpu(resources, _number(device), index), resources
    except RuntimeError as error:
        raise UsageError(f"FAISS searches this kind of index on a CPU only: {str(error).splitlines()[0]}") from None


@contextmanager
def on_gpu(index: Any, device: str) -> Iterator[None]:
    """Let the k-means of inverted lists run on a GPU for a while; nothing for the CPU, or for other kinds."""
    if not device.startswith("cuda") or not isinstance(index, faiss.IndexIVF):
        yield
        return
    check_device(device)
    resources = faiss.StandardGpuResources()
    clustering = faiss.index_cpu_to_gpu(resources, _number(device), faiss.IndexFlatIP(index.d))
    index.clustering_index = clustering
    try:
        yield
    finally:
        index.clustering_index = None


def _number(device: str) -> int:
    return int(device.partition(":")[2] or 0)
