"""Options that say what a search has to find, and within what memory, time and threads."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from retrieval.errors import UsageError
from retrieval.index.spec import INDEX_SPECS, Wanted

KindOption = Annotated[
    str,
    typer.Option(
        help=f"Kind of index: {', '.join(INDEX_SPECS)}, or a FAISS factory string. auto chooses by rows, recall and "
        "memory, and says what and why."
    ),
]
RecallOption = Annotated[
    str | None,
    typer.Option(
        "--recall",
        help="Share of the 10 true neighbours that a search has to find: the cheapest that does is looked for. "
        "Default: 0.99.",
        metavar="R",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option("--max-memory", help="Most bytes of the vectors, for example 2GiB: bounds the kind.", metavar="SIZE"),
]
LatencyOption = Annotated[
    str | None,
    typer.Option("--max-latency", help="Most time of one query's search, for example 5ms.", metavar="TIME"),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", help="Threads of the encoder and of FAISS. Default: one a core.", min=1, metavar="N"),
]

_BYTES = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
}
_MILLISECONDS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1000.0}


def parse_wanted(recall: str | None, memory: str | None, latency: str | None) -> Wanted:
    """What is written on the command line.

    Raises
    ------
    UsageError
        A value cannot be read or is out of range; it is named.
    """
    return Wanted(
        Wanted.recall if recall is None else parse_recall(recall),
        None if memory is None else int(_quantity(memory, "--max-memory", _BYTES, "a size such as 2GiB or 500MB")),
        None if latency is None else _quantity(latency, "--max-latency", _MILLISECONDS, "a time such as 5ms or 1s"),
    )


def parse_recall(recall: str) -> float:
    """A number within (0, 1]; `exact` is 1."""
    try:
        value = 1.0 if recall == "exact" else float(recall)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise UsageError(f"--recall is {recall!r}, expected more than 0 and at most 1, or exact")
    return value


def _quantity(text: str, option: str, units: dict[str, float] | dict[str, int], expected: str) -> float:
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(\w*)\s*", text)
    unit = match[2].lower() if match else ""
    if match is None or unit not in units or not float(match[1]):
        raise UsageError(f"{option} is {text!r}, expected {expected}")
    return float(match[1]) * units[unit]
