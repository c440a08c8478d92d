"""The spectrum of an index's embeddings as a picture in the terminal: what each further dimension would keep."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from retrieval.cli.output import TerminalProgress
from retrieval.errors import IndexFolderError
from retrieval.index.folder import EMBEDDINGS, MOMENTS, Manifest

if TYPE_CHECKING:
    from retrieval.transforms.moments import Moments

MARKS = (64, 128, 256)
_WIDEST, _NARROWEST, _GUTTER, _ROWS = 80, 40, 9, 6
_BLOCKS, _PLAIN_BLOCKS = " ▁▂▃▄▅▆▇█", "    #####"


def index_spectrum(path: Path, manifest: Manifest, progress: TerminalProgress) -> dict[str, Any]:
    """Of the moments that an index keeps; where its transform has none, in a pass over the embeddings it keeps.

    Returns
    -------
    beta, eps, m (None where nothing is cut), rows, rank and eigenvalues: all d, float64, falling.
    """
    from retrieval.index.embeddings import EmbeddingShards, key_of_folder
    from retrieval.transforms.held_out import SplitMoments
    from retrieval.transforms.whitening import DEFAULT_EPS

    transform = manifest.transform
    if (path / MOMENTS).exists():
        split = SplitMoments.load(path / MOMENTS)
    else:
        if (key := key_of_folder(path / EMBEDDINGS)) is None:
            raise IndexFolderError(f"'{path}' keeps neither moments nor embeddings: build it again to see its spectrum")
        split = SplitMoments(manifest.encoder["dimension"])
        with progress.stage("reading embeddings", "vectors", key.rows) as advance:
            for chunk in EmbeddingShards(path / EMBEDDINGS, key).chunks():
                split.update(chunk)
                advance(len(chunk))
    kept = transform["m"] if "kept_share" in transform else None
    return moments_spectrum(split.whole(), transform.get("beta", 1.0), transform.get("eps", DEFAULT_EPS), kept)


def moments_spectrum(moments: Moments, beta: float, eps: float, kept: int | None) -> dict[str, Any]:
    """As `index_spectrum`, of moments at hand."""
    from retrieval.transforms.whitening import spectrum_of

    eigenvalues, rank = spectrum_of(moments, beta=beta, eps=eps)
    return {"beta": beta, "eps": eps, "m": kept, "rows": moments.rows, "rank": rank, "eigenvalues": eigenvalues}


def draw_spectrum(spectrum: dict[str, Any], stream: TextIO) -> list[str]:
    """Lines for a stream: of 40 to 80 columns, as the terminal has, in blocks that its encoding has. No colours."""
    width = min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size((_WIDEST, 24)).columns - 1))
    try:
        _BLOCKS.encode(stream.encoding or "ascii")
        blocks = _BLOCKS
    except (UnicodeEncodeError, LookupError):
        blocks = _PLAIN_BLOCKS
    return spectrum_lines(spectrum, width, blocks)


def spectrum_lines(spectrum: dict[str, Any], width: int, blocks: str = _BLOCKS) -> list[str]:
    """The eigenvalues over the directions on a logarithmic scale, and the share of their sum that each cut keeps."""
    eigenvalues: NDArray[np.float64] = spectrum["eigenvalues"]
    rank, kept = int(spectrum["rank"]), spectrum["m"]
    about = {0: "the origin", 1: "the mean"}.get(spectrum["beta"], f"{spectrum['beta']:g} times the mean")
    lines = textwrap.wrap(f"spectrum: {len(eigenvalues)} directions, rank {rank}, eigenvalues about {about}", width)
    if rank == 0:
        return [*lines, "all vectors are equal, or there is one: nothing to draw"]
    digits = len(str(len(eigenvalues)))  # the last mark begins below the last column
    columns = min(width - _GUTTER - digits + 1, len(eigenvalues))
    first = np.arange(columns) * len(eigenvalues) // columns  # the largest eigenvalue of each column's
    heights = _heights(eigenvalues[first], eigenvalues[0], eigenvalues[rank - 1])
    heights[first >= rank] = 0
    for row in reversed(range(_ROWS)):
        value = {_ROWS - 1: f"{eigenvalues[0]:.1e}", 0: f"{eigenvalues[rank - 1]:.1e}"}.get(row, "")
        cells = "".join(blocks[level] for level in (heights - 8 * row).clip(0, 8))
        lines.append(f"{value:>{_GUTTER - 1}} {cells}".rstrip())
    marks = sorted({*(mark for mark in MARKS if mark < rank), rank, *([kept] if kept else [])})
    lines.append(_axis(marks, kept, len(eigenvalues), columns))
    shares = np.cumsum(eigenvalues) / eigenvalues.sum()
    bar = width - _GUTTER - len("100.00%   kept")
    lines.append(f"{'m':>{_GUTTER - 1}}   share of the sum")
    for mark in marks:
        filled = round(float(shares[mark - 1]) * bar * 8)
        drawn = (blocks[8] * (filled // 8) + blocks[filled % 8]).strip().ljust(bar)
        note = "  kept" if mark == kept else "  rank" if mark == rank else ""
        lines.append(f"{mark:>{_GUTTER - 1}} {shares[mark - 1]:>7.2%} {drawn}{note}".rstrip())
    return lines


def _heights(values: NDArray[np.float64], highest: float, lowest: float) -> NDArray[np.int64]:
    """In eighths of a row: 1 for the lowest, all rows for the highest."""
    extent = np.log(highest / lowest)
    shares = np.log(values.clip(min=lowest) / lowest) / extent if extent > 0 else np.ones(len(values))
    return np.asarray(1 + np.round(shares * (8 * _ROWS - 1)), dtype=np.int64)


def _axis(marks: list[int], kept: int | None, directions: int, columns: int) -> str:
    """The marks below their columns; one that has no place left is left out, the kept one last."""
    line = [" "] * (columns + len(str(directions)) - 1)
    for mark in sorted(marks, key=lambda mark: mark != kept):
        text = str(mark)
        start = (mark - 1) * columns // directions
        if all(cell == " " for cell in line[max(start - 1, 0) : start + len(text) + 1]):
            line[start : start + len(text)] = text
    return (" " * _GUTTER + "".join(line)).rstrip()
