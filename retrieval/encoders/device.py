"""Where torch runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.errors import UsageError

if TYPE_CHECKING:
    import torch

_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # NVIDIA's on Linux, and in WSL


def has_gpu() -> bool:
    """Whether torch can use a CUDA GPU here. Where no driver is in sight, torch is not loaded to tell."""
    if sys.platform == "darwin" or (sys.platform == "linux" and not any(path.exists() for path in _DRIVERS)):
        return False
    import torch

    return torch.cuda.is_available()


def pick_device(name: str) -> torch.device:
    """`auto` (a GPU where there is one), `cpu`, `cuda` or any torch device; UsageError where it is not to be had."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device {name!r}: expected auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {name!r}: this machine has no CUDA GPU that torch can use; use --device cpu")
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, NotImplementedError) as error:
        raise UsageError(f"device {name!r} cannot be used: {str(error).splitlines()[0][:120]}") from None
    return device
