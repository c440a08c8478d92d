"""Where torch runs."""

from __future__ import annotations

import torch

from retrieval.errors import UsageError


def pick_device(name: str) -> torch.device:
    """`auto` (a GPU where there is one), `cpu`, `cuda` or any torch device; UsageError where it is not to be had."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device {name!r}: expected auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {name!r}: this machine has no CUDA GPU that torch can use; use --device cpu")
    return device
