"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retrieval.cli.output import TerminalProgress
from retrieval.errors import IndexFolderError
from retrieval.index.folder import find_indexes

if TYPE_CHECKING:
    from retrieval.search import Index

INDEXES = Path("indexes")
_OPENED: list[Index] = []
"""Until the process ends: an index that is let go joins its threads first, which takes longer than its search."""

IndexOption = Annotated[
    Path | None,
    typer.Option(
        "--index", "-i", help="Index folder. Without it: the index built last under ./indexes.", metavar="FOLDER"
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="Where the encoder runs: auto, cpu or cuda.")]
TrustOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the Python code that the model's own folder brings along.")
]
BackendOption = Annotated[str, typer.Option("--backend", help="What runs the encoder: auto, torch, openvino or onnx.")]
PrecisionOption = Annotated[str, typer.Option("--precision", help="auto, float32, bf16 or int8.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No notes and no progress on stderr.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="On an error, print the traceback too.")]


def index_path(index: Path | None, progress: TerminalProgress) -> Path:
    """The folder named, or the one of the index built last, which is then told."""
    if index is not None:
        return index.expanduser()
    for path, manifest in find_indexes(INDEXES):
        progress.note(f"index: {path} (built {manifest.created[:19].replace('T', ' ')} UTC)")
        return path
    raise IndexFolderError("no index under ./indexes: build one with: retr index CORPUS, or name one with -i FOLDER")


def open_index(
    index: Path | None, device: str, progress: TerminalProgress, trust_remote_code: bool, mmap: bool = True
) -> Index:
    """Open the index named, or the one built last, for a search at once."""
    from retrieval.search import Index

    path = index_path(index, progress)
    opened = Index.open(
        path, device=device, preload=True, mmap=mmap, trust_remote_code=trust_remote_code, progress=progress
    )
    _OPENED.append(opened)
    return opened
