"""`retr add`, `retr delete`, `retr reindex`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from retrieval.cli.bounds import LatencyOption, MemoryOption, RecallOption, ThreadsOption, parse_wanted
from retrieval.cli.options import (
    DebugOption,
    DeviceOption,
    IndexOption,
    JsonOption,
    QuietOption,
    TrustOption,
    index_path,
)
from retrieval.cli.output import TerminalProgress, counted, print_json, print_line
from retrieval.corpus.files import FORMATS
from retrieval.corpus.lines import decoded_lines
from retrieval.errors import UsageError
from retrieval.index.folder import MANIFEST, Manifest, read_manifest


def add(
    corpus: Annotated[
        list[str],
        typer.Argument(help="Files, folders or globs: Parquet, CSV, TSV, JSON Lines, text (.gz, .zst); - reads stdin."),
    ],
    index: IndexOption = None,
    text_column: Annotated[str | None, typer.Option(help="Column of the text. Default: the index's own.")] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Column of the id. Default: the index's own, or the next row numbers.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help=f"{', '.join(FORMATS)}: for files whose names do not tell.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Encoding of text files, for example gb18030.")] = "utf-8",
    on_empty: Annotated[str, typer.Option(help="Blank texts: skip (counted) or error.")] = "skip",
    device: DeviceOption = "auto",
    trust_remote_code: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Add documents to an index; a document whose id is there already replaces it.

    Files are read as retr index reads them, with the index's own columns. Only texts that the index never held are
    encoded, by its own encoder. The index answers as it was until all is done. How far the vectors added since the
    transform was fitted lie off is told by retr info, and warned of; retr reindex --refit fits it anew.

    Example: retr add new.parquet -i indexes/corpus
    """
    from retrieval.corpus.reader import CorpusOptions
    from retrieval.encoders.stored import StoredEncoder
    from retrieval.pipeline.add import add_documents
    from retrieval.pipeline.standing import compaction_hint

    progress = TerminalProgress(quiet)
    path = index_path(index, progress)
    stored = StoredEncoder(path, read_manifest(path), device, trust_remote_code, progress)
    started = time.perf_counter()
    options = CorpusOptions(text_column, id_column, (), format, encoding, None, on_empty)
    addition = add_documents(path, corpus, options, stored.load, progress=progress)
    done = {name: getattr(addition, name) for name in ("added", "replaced", "unchanged", "encoded")}
    if as_json:
        _print_json(path, started, addition.manifest, done)
        return
    print_line(
        f"{path}: {addition.added:,} added, {addition.replaced:,} replaced, {addition.unchanged:,} unchanged, "
        f"{addition.encoded:,} encoded; {_state(addition.manifest)}, {_seconds(started)}"
    )
    if hint := compaction_hint(addition.manifest):
        progress.note(hint)


def delete(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of documents.")] = None,
    index: IndexOption = None,
    ids_file: Annotated[
        str | None, typer.Option(help="A file of ids, one a line; - reads stdin.", metavar="FILE")
    ] = None,
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Pass over ids that the index never had.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Delete documents by their ids: all of them or, where an id was never there, none.

    Their rows are passed over by every search from then on; retr reindex takes them, and their texts, out of the
    folder.

    Example: retr delete shop-0171 shop-0172 -i indexes/corpus
    """
    from retrieval.pipeline.delete import delete_documents
    from retrieval.pipeline.standing import compaction_hint

    progress = TerminalProgress(quiet)
    wanted = [*(ids or []), *(_ids_of(ids_file) if ids_file is not None else [])]
    if not wanted:
        raise UsageError("no id to delete: name some, or a file of them with --ids-file")
    path = index_path(index, progress)
    started = time.perf_counter()
    deletion = delete_documents(path, wanted, ignore_unknown=ignore_unknown, progress=progress)
    done = {
        "removed": deletion.deleted,
        "removed_before": deletion.gone_before,
        "never_there": len(deletion.unknown),
    }
    if as_json:
        _print_json(path, started, deletion.manifest, done)
        return
    others = [f", {deletion.gone_before:,} deleted before"] if deletion.gone_before else []
    others += [f", {len(deletion.unknown):,} never there"] if deletion.unknown else []
    print_line(
        f"{path}: {deletion.deleted:,} deleted{''.join(others)}; {_state(deletion.manifest)}, {_seconds(started)}"
    )
    if hint := compaction_hint(deletion.manifest):
        progress.note(hint)


def reindex(
    folder: Annotated[
        Path | None,
        typer.Option("-i", help="Index folder. Without it: the index built last under ./indexes.", metavar="FOLDER"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Another index folder. Default: the index itself.")
    ] = None,
    whiten: Annotated[
        int | None,
        typer.Option(help="Whiten and keep this many dimensions: short for --transform whiten-M.", metavar="M"),
    ] = None,
    transform: Annotated[
        str | None, typer.Option(help="As for retr index. Default: the one that is fitted already.")
    ] = None,
    index: Annotated[
        str | None, typer.Option("--index", help="Kind of index, as for retr index. Default: as it is.", metavar="KIND")
    ] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Fit the index's own transform anew, on the documents it has now.")
    ] = False,
    recall: RecallOption = None,
    max_memory: MemoryOption = None,
    max_latency: LatencyOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Make an index anew from its own embeddings: another transform, dimension or kind, without what was deleted.

    Nothing is encoded, and no model is loaded. Ids stay as they are. Without options it only takes out deleted rows.

    Example: retr reindex -i indexes/corpus --whiten 128 -o indexes/corpus-128
    """
    from retrieval.pipeline.reindex import ReindexOptions
    from retrieval.pipeline.reindex import reindex as make_anew

    progress = TerminalProgress(quiet)
    if whiten is not None:
        if transform is not None:
            raise UsageError(f"--whiten {whiten} and --transform {transform} exclude each other: give one")
        transform = f"whiten-{whiten}"
    if index is not None and (Path(index) / MANIFEST).exists():
        raise UsageError(f"--index is the kind of index, and '{index}' is a folder of one: name it with -i")
    bounds = (recall, max_memory, max_latency)
    wanted = None if bounds == (None, None, None) else parse_wanted(*bounds)
    path = index_path(folder, progress)
    started = time.perf_counter()
    manifest = make_anew(path, ReindexOptions(transform, index, refit, wanted), output=output, progress=progress)
    if as_json:
        _print_json(output or path, started, manifest, {})
        return
    megabytes = sum(entry["bytes"] for entry in manifest.files.values()) / 1e6
    print_line(
        f"{output or path}: {_state(manifest)}, {manifest.index['dimension']} dimensions "
        f"({manifest.transform['name']}), index {manifest.index['spec']}, {megabytes:,.1f} MB, {_seconds(started)}"
    )


def _ids_of(name: str) -> list[str]:
    """The lines of a file of ids that are not empty."""
    try:
        if name == "-":
            lines = list(decoded_lines(sys.stdin.buffer, "standard input", option=""))
        else:
            with Path(name).open("rb") as file:
                lines = list(decoded_lines(file, name, option=""))
    except OSError as error:
        raise UsageError(f"ids '{name}' cannot be read: {error.strerror}") from None
    ids = [line.rstrip("\r\n") for line in lines]
    if not (ids := [id for id in ids if id]):
        raise UsageError(f"ids '{name}' hold none: expected one a line")
    return ids


def _state(manifest: Manifest) -> str:
    deleted = manifest.documents["deleted"]
    return counted(manifest.documents["count"], "document") + (
        f" ({counted(deleted, 'deleted row')})" if deleted else ""
    )


def _seconds(started: float) -> str:
    return f"{time.perf_counter() - started:,.1f} s"


def _print_json(path: Path, started: float, manifest: Manifest, done: dict[str, Any]) -> None:
    seconds = round(time.perf_counter() - started, 2)
    print_json({"path": str(path), "seconds": seconds, **done, **manifest.to_json()})
