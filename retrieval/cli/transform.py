"""`retr transform fit` and `retr transform apply`: a transform without an index."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retrieval.cli.options import DebugOption, JsonOption, QuietOption
from retrieval.cli.output import TerminalProgress, counted, print_json, print_line
from retrieval.errors import DimensionError, TransformError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from retrieval.transforms.files import VectorFile

transform = typer.Typer(
    help="Fit a transform on vectors in files, and apply one to them.\n\n"
    "Example: retr transform fit vectors.npy -o whiten.safetensors --transform whiten-256",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ColumnOption = Annotated[
    str | None,
    typer.Option("--vector-column", help="Column of the vectors in a Parquet file. Default: the only one of lists."),
]


@transform.command()
def fit(
    vectors: Annotated[
        list[Path],
        typer.Argument(
            metavar="VECTORS...", help="Files of vectors: .npy, shape (n, d), or Parquet; float16, float32, float64."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The transform: a .safetensors file.")],
    spec: Annotated[
        str,
        typer.Option(
            "--transform",
            help="whiten-M, rotate-M, soft-M, whiten-auto and its kin, explicit as whiten-M:beta=1,gamma=0.8,eps=0, or "
            "flow.",
        ),
    ],
    vector_column: ColumnOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Draw the spectrum of the vectors on stderr: what M dimensions keep.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Fit a transform on vectors in files, in one pass and with no more memory than for d x d numbers.

    Rows of zeros are left out: they stand for texts of which an encoder knows nothing. A tenth of the rows is held out
    of a trial fit, which warns where M is too large for so few rows.

    Example: retr transform fit vectors.npy more.parquet -o whiten.safetensors --transform whiten-256
    """
    from retrieval.cli.spectrum import draw_spectrum, moments_spectrum
    from retrieval.transforms.base import Transform
    from retrieval.transforms.files import NPY, PARQUET, check_output, open_vectors
    from retrieval.transforms.fitting import fit_flow, fit_whitening, gather_moments
    from retrieval.transforms.spec import AUTO, FlowSpec, parse_transform

    progress, started = TerminalProgress(quiet), time.perf_counter()
    if spec == AUTO:
        raise UsageError("--transform auto asks which encoder made the vectors: name one, whiten-M, rotate-M or soft-M")
    if (wanted := parse_transform(spec)) is None:
        raise UsageError("--transform none fits nothing: name whiten-M, rotate-M, soft-M or flow")
    if explain and isinstance(wanted, FlowSpec):
        raise UsageError("--explain draws what M dimensions keep, and a flow keeps all: leave it out")
    check_output(output, vectors, ".safetensors")
    mixed = any(path.suffix.lower() == PARQUET for path in vectors)
    files = [open_vectors(path, None if mixed and path.suffix.lower() == NPY else vector_column) for path in vectors]
    dimension = _dimension(files)
    rows = sum(file.rows for file in files)

    def chunks() -> Iterator[NDArray[np.float32]]:
        for file in files:
            yield from file.chunks()

    fitted: Transform
    if isinstance(wanted, FlowSpec):
        fitted, info = fit_flow(chunks, progress)
    else:
        split = gather_moments(wanted, dimension, rows, chunks, progress)
        if split.fitted.rows == 0:
            raise TransformError(f"all {rows:,} vectors are zero: there is nothing to fit on")
        fitted, info = fit_whitening(wanted, split, chunks, progress)
        if zeros := rows - info["rows"]:
            progress.note(f"rows of zeros, left out: {zeros:,}")
        if explain:
            for line in draw_spectrum(moments_spectrum(split.whole(), info["beta"], info["eps"], fitted.m), sys.stderr):
                typer.echo(line, err=True)
    fitted.save(output)
    seconds = time.perf_counter() - started
    if as_json:
        print_json({"path": str(output), "dimension": dimension, "seconds": round(seconds, 2), **info})
        return
    print_line(
        f"{output}: {info['name']}, {dimension} -> {fitted.m} dimensions, fitted on {counted(info['rows'], 'vector')}, "
        f"{seconds:,.1f} s"
    )
    progress.note(f"apply it: retr transform apply {output} VECTORS -o OUT")


@transform.command()
def apply(
    path: Annotated[
        Path, typer.Argument(metavar="TRANSFORM", help="What fit wrote, or an index's transform.safetensors.")
    ],
    vectors: Annotated[Path, typer.Argument(metavar="VECTORS", help="A .npy or Parquet file of vectors.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A file of the same kind, written whole or not at all.")
    ],
    vector_column: ColumnOption = None,
    unit: Annotated[
        bool, typer.Option("--unit", help="Scale each vector to length 1, as an index holds them; zeros stay zeros.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Apply a transform to vectors in a file; the output has the same form, type and other columns.

    Reckoned in float32, in chunks of some 16 MiB: the file may be larger than memory.

    Example: retr transform apply indexes/faq/transform.safetensors vectors.npy -o whitened.npy --unit
    """
    from functools import partial

    from retrieval.transforms.apply import load_transform, unit_vectors
    from retrieval.transforms.files import check_output, open_vectors

    progress, started = TerminalProgress(quiet), time.perf_counter()
    if not path.is_file():
        hint = " is a folder: name the transform.safetensors in it" if path.is_dir() else ": no such file"
        raise UsageError(f"transform '{path}'{hint}")
    fitted = load_transform(path)
    file = open_vectors(vectors, vector_column)
    check_output(output, [vectors, path], vectors.suffix.lower())
    if file.dimension not in (None, fitted.dimension):
        raise DimensionError(
            f"{vectors} holds vectors of {file.dimension} dimensions, and {path} was fitted on {fitted.dimension}"
        )
    with progress.stage("transforming", "vectors", file.rows) as advance:
        mapped = partial(unit_vectors, transform=fitted) if unit else fitted.transform
        file.write_mapped(output, mapped, fitted.m, advance)
    seconds = time.perf_counter() - started
    figures: dict[str, Any] = {"rows": file.rows, "dimension": fitted.dimension, "m": fitted.m, "unit": unit}
    if as_json:
        print_json({"path": str(output), **figures, "seconds": round(seconds, 2)})
        return
    print_line(
        f"{output}: {counted(file.rows, 'vector')}, {fitted.dimension} -> {fitted.m} dimensions"
        f"{', of unit length' if unit else ''}, {seconds:,.1f} s"
    )


def _dimension(files: list[VectorFile]) -> int:
    """Of all files. Raises DimensionError where they differ, TransformError where none holds a row."""
    known = [(file.path, file.dimension) for file in files if file.dimension is not None and file.rows]
    if not known:
        raise TransformError(f"{files[0].path} holds no vector: a transform is fitted on rows, 0 were given")
    first_path, first = known[0]
    for path, dimension in known:
        if dimension != first:
            raise DimensionError(f"{path} holds vectors of {dimension} dimensions, {first_path} of {first}")
    return first
