"""`retr export st` and `retr export faiss`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from retrieval.cli.options import DebugOption, IndexOption, JsonOption, QuietOption, index_path
from retrieval.cli.output import TerminalProgress, print_json, print_line
from retrieval.errors import UsageError

export = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@export.callback()
def _about() -> None:
    """Write what an index searches with in a form that other programs read.

    Example: retr export st -i indexes/corpus -o models/corpus
    """


@export.command()
def st(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Folder to write; an earlier export is replaced.",
            metavar="DIR",
        ),
    ],
    index: IndexOption = None,
    model: Annotated[
        str | None, typer.Option(help="Export a model, not an index's: a name, a folder or a hub id.")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Pooling of the model.")] = None,
    transform_file: Annotated[
        Path | None,
        typer.Option(help="Transform after the model: the transform.safetensors of an index.", metavar="FILE"),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Without transform and normalisation: the vectors that retr export faiss takes."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(help="Load the folder with sentence-transformers, where it is installed, and compare."),
    ] = True,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a stock sentence-transformers folder: Transformer, Pooling, Dense (the transform), Normalize, no code.

    SentenceTransformer(DIR).encode(texts) then gives the index's document vectors in float32, and with
    prompt_name="query" those of queries. What can be exported is one transformer or static embedding, with whiten,
    rotate, soft or no transform.

    Example: retr export st -i indexes/corpus -o models/corpus
    """
    from retrieval.encoders.load import resolve_settings
    from retrieval.export import export_st
    from retrieval.transforms.apply import load_transform
    from retrieval.transforms.spec import NONE

    progress = TerminalProgress(quiet)
    if model is None and (pool is not None or transform_file is not None):
        option = f"--pool {pool}" if pool is not None else f"--transform-file {transform_file}"
        raise UsageError(f"{option} is for --model; an index has its own")
    if model is not None and index is not None:
        raise UsageError(f"--model {model} and -i {index} exclude each other: give one")
    if transform_file is not None and not transform_file.is_file():
        raise UsageError(f"no file '{transform_file}': --transform-file is the transform.safetensors of an index")
    found = export_st(
        output.expanduser(),
        index=None if model is not None else index_path(index, progress),
        settings=resolve_settings(model, pooling=pool) if model is not None else None,
        transform=load_transform(transform_file) if transform_file is not None else None,
        transform_name=transform_file.name if transform_file is not None else NONE,
        raw=raw,
        check=check,
        progress=progress,
    )
    if as_json:
        print_json(asdict(found))
        return
    print_line(f"{output}: {' -> '.join(found.modules)}, {found.dimension} dimensions")
    if found.largest_difference is not None:
        progress.note(f"checked with sentence-transformers: values differ by at most {found.largest_difference:.1e}")
    else:
        why = "sentence-transformers is not installed" if check else "--no-check"
        progress.note(f"not compared with sentence-transformers ({why})")
    if found.lowest_cosine is not None:
        progress.note(f"cosine to the index's own vectors: at least {found.lowest_cosine:.6f}")
    progress.note(f'use it: SentenceTransformer("{output}").encode(texts), prompt_name="query" for queries')


@export.command()
def faiss(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write; FILE.rows.parquet goes beside it.", metavar="FILE")
    ],
    index: IndexOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write one FAISS file (linear transform, normalisation, index) that answers raw embeddings alone.

    faiss.read_index(FILE).search(embeddings, k) gives the rows and scores of retr query, or of an ivf-pqfs index nearly
    all of them; FILE.rows.parquet has the id, text and kept columns of each row. The raw embeddings are those of the
    folder that retr export st --raw writes.

    Example: retr export faiss -i indexes/corpus -o corpus.faiss
    """
    from retrieval.export import export_faiss

    progress = TerminalProgress(quiet)
    file, rows = export_faiss(index_path(index, progress), output.expanduser(), progress=progress)
    if as_json:
        print_json({"path": str(file), "rows": str(rows), "bytes": file.stat().st_size})
        return
    print_line(f"{file}: {file.stat().st_size / 1e6:,.1f} MB; the documents of its rows: {rows}")
    progress.note(f'use it: faiss.read_index("{file}").search(raw_embeddings, k)')
