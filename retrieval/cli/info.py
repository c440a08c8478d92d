"""`retr info`."""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer

from retrieval.cli.options import (
    DebugOption,
    DeviceOption,
    IndexOption,
    JsonOption,
    QuietOption,
    TrustOption,
    index_path,
    open_index,
)
from retrieval.cli.output import TerminalProgress, counted, print_json, print_line, visible
from retrieval.corpus.lines import decoded_lines, is_blank
from retrieval.errors import UsageError
from retrieval.index.folder import MANIFEST, check_files, read_manifest
from retrieval.index.spec import is_rescored
from retrieval.transforms.spec import FLOW

_SOURCES = 5


def info(
    index: IndexOption = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every file with its sha256.")] = False,
    queries: Annotated[
        Path | None,
        typer.Option(
            help="Encode the queries of a text file, one a line, and show how they fit the transform.", metavar="FILE"
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Draw the spectrum of the embeddings: what m dimensions keep.")
    ] = False,
    device: DeviceOption = "auto",
    trust_remote_code: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Show what an index is: documents, encoder, transform, files, and how it was built.

    How a transform fits vectors that it was not fitted on is told by their length, transformed, against that of the
    fitted ones (1 is perfect, outside of .67 to 1.5 warns), and by how far their mean lies off (in standard
    deviations; beyond 0.5 warns): for a tenth of the documents, held out of a trial fit, and for --queries.

    Example: retr info -i indexes/corpus --verify --explain
    """
    from retrieval.cli.spectrum import draw_spectrum, index_spectrum

    progress = TerminalProgress(quiet)
    path = index_path(index, progress)
    manifest = read_manifest(path)
    check_files(path, manifest, every_hash=verify)
    fit: dict[str, Any] = {}
    if queries is not None:
        texts = _lines(queries)
        fitness = open_index(path, device, progress, trust_remote_code).fitness(texts)
        fit = {"count": len(texts), **asdict(fitness)}
        for alarm in fitness.alarms("the queries"):
            progress.note(f"warning: {alarm}")
    more: dict[str, Any] = {"queries": fit} if fit else {}
    if explain:
        spectrum = index_spectrum(path, manifest, progress)
        more["spectrum"] = {**spectrum, "eigenvalues": spectrum["eigenvalues"].tolist()}
    if as_json:
        print_json({"path": str(path), **manifest.to_json(), **more})
        return
    manifest_bytes = (path / MANIFEST).stat().st_size
    for name, value in _rows(str(path), manifest.to_json(), manifest_bytes):
        print_line(f"{name:<12} {visible(value)}")
    if fit:
        print_line(f"{'queries':<12} {counted(fit['count'], 'text')}: {_fit(fit['norm_ratio'], fit['mean_shift'])}")
    if explain:
        for line in draw_spectrum(spectrum, sys.stdout):
            print_line(line)
    if verify:
        print_line(f"{'verified':<12} every file has the sha256 of the manifest")


def _rows(path: str, content: dict[str, Any], manifest_bytes: int) -> list[tuple[str, str]]:
    documents, encoder, transform = content["documents"], content["encoder"], content["transform"]
    rows = [
        ("index", f"{path}, format version {content['format_version']}"),
        (
            "built" if content["build"]["by"] == "index" else "changed",
            f"{content['created'][:19].replace('T', ' ')} UTC by retr {content['retr_version']}, "
            f"retr {content['build']['by']}",
        ),
        ("documents", f"{documents['count']:,} ({documents['distinct_texts']:,} distinct texts)"),
        ("sources", _sources(documents["sources"])),
        ("text", f"column {documents['text_column']!r}"),
        ("id", f"column {documents['id_column']!r}" if documents["id_column"] else "row number, from 0"),
    ]
    if documents["deleted"] or documents["added"]:
        stored, parts = documents["count"] + documents["deleted"], 1 + len(documents["added"])
        held = f"{stored:,} stored, {documents['deleted']:,} of them deleted, in {counted(parts, 'part')}"
        rows.insert(3, ("rows", f"{held}; retr reindex leaves one part, and none deleted"))
    if documents["fields"]:
        rows.append(("kept", ", ".join(f"{name} ({type})" for name, type in documents["fields"].items())))
    if documents["skipped"]:
        shown = ", ".join(map(str, documents["first_skipped_rows"]))
        rows.append(("skipped", f"{documents['skipped']:,} blank texts, first at rows {shown} (from 0)"))
    if documents["truncated"]:
        rows.append(("truncated", f"{documents['truncated']:,} distinct texts at {encoder['max_length']} tokens"))
    if documents["tokens"]:
        share = documents["unknown"] / documents["tokens"]
        rows.append(("tokens", f"{documents['tokens']:,} of distinct texts, {share:.2%} unknown to the model"))
    length = f"at most {encoder['max_length']} tokens" if encoder["max_length"] else "any length"
    normalize = f", texts normalised: {encoder['normalize']}" if encoder.get("normalize") else ""
    prompts = f"prompts {encoder['query_prompt']!r} (query), {encoder['document_prompt']!r} (document)"
    rows += [
        (
            "encoder",
            f"{encoder['source']}, {encoder['dimension']} dimensions, fingerprint {encoder['fingerprint'][:12]}",
        ),
        ("backend", f"{encoder['backend']}, {encoder['precision']}"),
        ("pooling", f"{encoder['pooling']}, {prompts}, {length}{normalize}"),
        ("transform", _transform(transform)),
        *_chosen(transform),
        *_held_out(transform),
        *added_since_fit(transform),
        (
            "vectors",
            f"{content['index']['vectors']:,} x {content['index']['dimension']}, index {content['index']['spec']}"
            + _tuned(content["index"]),
        ),
    ]
    bytes_of: dict[str, int] = defaultdict(int)
    for name, entry in content["files"].items():
        bytes_of[PurePosixPath(name).parts[0]] += entry["bytes"]
    rows += [("file", f"{size / 1e6:>10,.3f} MB  {name}") for name, size in bytes_of.items()]
    rows.append(("file", f"{manifest_bytes / 1e6:>10,.3f} MB  {MANIFEST}"))
    seconds = content["build"]["seconds"]
    rows.append(("seconds", ", ".join(f"{stage} {value:,.1f}" for stage, value in seconds.items())))
    reused = content["build"].get("shards_reused")
    rows.append(("machine", f"{content['build']['machine']}, Python {content['build']['python']}"))
    if reused:
        rows.append(("resumed", f"{reused} of {content['build']['shards']} shards of embeddings were there already"))
    return rows


def _transform(transform: dict[str, Any]) -> str:
    if transform["name"] == FLOW:
        return (
            f"{transform['name']}, fitted on {transform['rows']:,} vectors in {transform['epochs']} epochs; held out "
            f"{transform['held_out_nats']:.3f} nats a dimension, {transform['start_nats']:.3f} before"
        )
    if "kept_share" not in transform:
        return f"{transform['name']}: all {transform['m']} dimensions as encoded"
    return (
        f"{transform['name']} (beta {transform['beta']:g}, gamma {transform['gamma']:g}, eps {transform['eps']:g}), "
        f"fitted on {transform['rows']:,} vectors; {transform['m']} dimensions keep {transform['kept_share']:.2%} "
        f"of the spectrum"
    )


def _chosen(transform: dict[str, Any]) -> list[tuple[str, str]]:
    """By which curve m was chosen."""
    if (chosen := transform.get("chosen")) is None:
        return []
    curve = ", ".join(f"{m}: {overlap:.3f}" for m, overlap, _ in chosen["curve"])
    return [
        (
            "m chosen",
            f"{chosen['spec']}: {chosen['m']} is the smallest that keeps {chosen['threshold']:g} of the 10 neighbours "
            f"in all {chosen['rank']} dimensions (of {chosen['queries']:,} held-out vectors, among "
            f"{chosen['documents']:,})",
        ),
        ("curve", curve),
    ]


def _held_out(transform: dict[str, Any]) -> list[tuple[str, str]]:
    ratio, shift = transform.get("held_out_norm_ratio"), transform.get("mean_shift")
    return [] if ratio is None or shift is None else [("held out", f"a tenth of the vectors: {_fit(ratio, shift)}")]


def added_since_fit(transform: dict[str, Any]) -> list[tuple[str, str]]:
    """How the vectors added since the transform was fitted look beside those that it was fitted on."""
    if (added := transform.get("added")) is None:
        return []
    count = f"{counted(added['rows'], 'vector')} since the fit: "
    if "nats" in added:
        lost = transform["held_out_nats"] - added["nats"]
        return [("added", f"{count}{added['nats']:.3f} nats a dimension, {lost:.3g} less than those held out")]
    return [("added", f"{count}{_fit(added['norm_ratio'], added['mean_shift'])}")]


def _sources(sources: list[dict[str, Any]]) -> str:
    names = [source["name"] for source in sources]
    more = f" and {len(names) - _SOURCES} more" if len(names) > _SOURCES else ""
    return ", ".join(names[:_SOURCES]) + more


def _fit(norm_ratio: float, mean_shift: float) -> str:
    return f"{norm_ratio:.3g} times as long as those fitted on, mean {mean_shift:.3g} standard deviations off"


def _lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    try:
        with path.open("rb") as file:
            lines = [line.rstrip("\r\n") for line in decoded_lines(file, str(path), option="")]
    except OSError as error:
        raise UsageError(f"queries '{path}' cannot be read: {error.strerror}") from None
    texts = [line for line in lines if not is_blank(line)]
    if not texts:
        raise UsageError(f"queries '{path}' hold no text: expected one query a line")
    return texts


def _tuned(index: dict[str, Any]) -> str:
    """How hard a search looks, and what it finds, where that was measured."""
    if "recall" not in index:
        return ""
    read = "; candidates are scored out of embeddings" if is_rescored(index["spec"]) else ""
    setting = ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in index["setting"].items())
    return f" ({setting or 'exact'}; recall@10 {index['recall']:.3f}, wanted {index['wanted_recall']:g}){read}"
