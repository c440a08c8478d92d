"""`retr index`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from retrieval.cli.bounds import (
    KindOption,
    LatencyOption,
    MemoryOption,
    RecallOption,
    ThreadsOption,
    parse_wanted,
)
from retrieval.cli.options import INDEXES, DebugOption, DeviceOption, JsonOption, QuietOption, TrustOption
from retrieval.cli.output import TerminalProgress, counted, print_json, print_line
from retrieval.corpus.files import FORMATS, corpus_name
from retrieval.encoders.catalog import DEFAULT_MODEL
from retrieval.encoders.pooling import POOLINGS
from retrieval.errors import UsageError


def index(
    corpus: Annotated[
        list[str],
        typer.Argument(help="Files, folders or globs: Parquet, CSV, TSV, JSON Lines, text (.gz, .zst); - reads stdin."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Index folder. Default: indexes/NAME-OF-THE-CORPUS.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="A name that retr models lists, a model folder, a hub id, a file of word vectors, or a fusion a+0.3*b."
        ),
    ] = DEFAULT_MODEL,
    pool: Annotated[
        str | None, typer.Option(help=f"Pooling: {', '.join(POOLINGS)}. Default: what the model was made for.")
    ] = None,
    whiten: Annotated[
        int | None,
        typer.Option(help="Whiten and keep this many dimensions: short for --transform whiten-M.", metavar="M"),
    ] = None,
    transform: Annotated[
        str | None,
        typer.Option(
            help="auto, none, whiten-M, rotate-M, soft-M, explicit as whiten-M:beta=1,gamma=0.8,eps=0, or flow "
            "(minutes of training). whiten-auto (and rotate-, soft-) keeps the smallest M that holds 0.8 of the "
            "neighbours; whiten-auto:overlap=0.9 says how many. Default: auto."
        ),
    ] = None,
    index: KindOption = "auto",
    recall: RecallOption = None,
    max_memory: MemoryOption = None,
    max_latency: LatencyOption = None,
    threads: ThreadsOption = None,
    text_column: Annotated[str | None, typer.Option(help="Column of the text; a.b for a nested one.")] = None,
    id_column: Annotated[str | None, typer.Option(help="Column of the id. Default: the row number, from 0.")] = None,
    keep: Annotated[str | None, typer.Option(help="Columns that hits carry, apart by commas.", metavar="A,B")] = None,
    format: Annotated[
        str | None, typer.Option(help=f"{', '.join(FORMATS)}: for files whose names do not tell.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Encoding of text files, for example gb18030.")] = "utf-8",
    sample: Annotated[
        int | None, typer.Option(help="Index only this many documents, chosen at random: to try things out.", min=1)
    ] = None,
    on_empty: Annotated[str, typer.Option(help="Blank texts: skip (counted) or error.")] = "skip",
    normalize: Annotated[
        str | None, typer.Option(help="Change texts before encoding: nfkc, t2s (traditional to simplified), lower.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of a text that count. Default: the model's own, at most 512.", min=3)
    ] = None,
    device: DeviceOption = "auto",
    trust_remote_code: TrustOption = False,
    backend: Annotated[
        str,
        typer.Option(
            help="auto, torch, openvino or onnx. With the latter two the index carries its encoder, and a query loads "
            "no torch; auto takes openvino for a transformer on a CPU."
        ),
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option(help="auto, float32, bf16 or int8. auto takes bf16 where the processor has it, else float32."),
    ] = "auto",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Encode everything anew, even what an unfinished build holds.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Draw the spectrum of the embeddings on stderr: what M dimensions keep.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Encode a corpus, whiten the vectors and index them.

    A build that is broken off goes on where it stopped when the same command is given again; until the new index is
    whole, the old one answers.

    Up to 20,000 documents are all compared; more go into an approximate index, whose search is tuned on vectors held
    out until --recall is reached, within --max-memory and --max-latency.

    Example: retr index corpus.parquet --text-column 标题 --id-column id --keep category
    """
    from retrieval.cli.spectrum import draw_spectrum, index_spectrum
    from retrieval.corpus.reader import Corpus, CorpusOptions
    from retrieval.encoders.load import resolve_settings
    from retrieval.pipeline.build import BuildOptions, build_index

    progress = TerminalProgress(quiet)
    wanted = parse_wanted(recall, max_memory, max_latency)
    if whiten is not None:
        if transform is not None:
            raise UsageError(f"--whiten {whiten} and --transform {transform} exclude each other: give one")
        transform = f"whiten-{whiten}"
    columns = tuple(name.strip() for name in (keep or "").split(",") if name.strip())
    files = Corpus(corpus, CorpusOptions(text_column, id_column, columns, format, encoding, sample, on_empty))
    settings = resolve_settings(model, pooling=pool, max_length=max_length, normalize=normalize or "")
    target = output or INDEXES / corpus_name(corpus)

    started = time.perf_counter()
    manifest = build_index(
        files,
        target,
        BuildOptions(
            settings, transform or "auto", index, device, backend, precision, fresh, trust_remote_code, wanted
        ),
        progress=progress,
    )
    seconds = time.perf_counter() - started
    if explain:
        for line in draw_spectrum(index_spectrum(target, manifest, progress), sys.stderr):
            typer.echo(line, err=True)
    if as_json:
        print_json({"path": str(target), "seconds": round(seconds, 2), **manifest.to_json()})
        return
    megabytes = sum(entry["bytes"] for entry in manifest.files.values()) / 1e6
    print_line(
        f"{target}: {counted(manifest.documents['count'], 'document')}, {manifest.index['dimension']} dimensions "
        f"({manifest.transform['name']}), index {manifest.index['spec']}, {megabytes:,.1f} MB, {seconds:,.1f} s"
    )
    if tokens := manifest.documents["tokens"]:
        progress.note(f"unknown to the model: {manifest.documents['unknown'] / tokens:.2%} of {tokens:,} tokens")
    progress.note(f'ask it: retr query "..." -i {target}')
