"""Documents out of an index: their rows are withheld from searches, and taken out by the next reindex."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from retrieval import __version__
from retrieval.errors import UsageError
from retrieval.index import folder as layout
from retrieval.pipeline.staging import DELETE, Stages, commit, how_made, link_files, resolved, staged
from retrieval.pipeline.standing import Standing, count_distinct
from retrieval.types import NoProgress, Progress

_NAMED = 5


@dataclass(frozen=True)
class Deletion:
    """What a deletion did."""

    manifest: layout.Manifest
    deleted: int
    gone_before: int
    """Ids whose documents were deleted before."""
    unknown: list[str]
    """Ids that the index never had; only with `ignore_unknown`."""


def delete_documents(
    index: Path, ids: Sequence[str], *, ignore_unknown: bool = False, progress: Progress | None = None
) -> Deletion:
    """Delete the documents of some ids; all of them or, on an error, none.

    Parameters
    ----------
    index : the folder; it answers as it was until the deletion takes its name.
    ids : one or more. One whose document was deleted before is no error.
    ignore_unknown : pass over ids that the index never had.

    Raises
    ------
    UsageError
        There is no id, or the index never had one; it is named.
    """
    if isinstance(ids, str):
        raise UsageError(f"ids is the text {ids!r}, expected a sequence of ids")
    if not ids:
        raise UsageError("no id to delete: give one or more")
    for id in ids:
        if not isinstance(id, str):
            raise UsageError(f"id {id!r} is {type(id).__name__}, expected a text")
    layout.read_manifest(index)
    index, progress, stages = resolved(index), progress or NoProgress(), Stages()
    with staged(index, DELETE, progress) as folder:
        standing = Standing.open(index)
        wanted = list(dict.fromkeys(ids))
        with stages.timed("find"):
            rows, places = standing.documents.find("id", pa.array(wanted, pa.string()))
        found = np.zeros(len(wanted), dtype=bool)
        found[places] = True
        unknown = [id for id, was_found in zip(wanted, found, strict=True) if not was_found]
        if unknown and not ignore_unknown:
            shown = ", ".join(repr(id) for id in unknown[:_NAMED]) + (", ..." if len(unknown) > _NAMED else "")
            raise UsageError(
                f"{index.name} never had a document of id {shown} ({len(unknown):,} of {len(wanted):,} ids); nothing "
                f"was deleted: correct the ids, or pass over such with --ignore-unknown"
            )
        withheld = standing.withheld
        live = rows[~withheld.deleted[rows]]
        gone_before = len(wanted) - len(unknown) - len(live)
        if not len(live):
            return Deletion(standing.manifest, 0, gone_before, unknown)
        withheld.deleted[live] = True
        withheld.save(folder / layout.WITHHELD)
        manifest = _manifest(standing, folder, stages)
        commit(folder, index, manifest)
    return Deletion(manifest, len(live), gone_before, unknown)


def _manifest(standing: Standing, folder: Path, stages: Stages) -> layout.Manifest:
    old, withheld = standing.manifest, standing.withheld
    linked = [name for name in old.files if name != layout.WITHHELD]
    link_files(standing.folder, folder, linked)
    deleted = int(withheld.deleted.sum())
    return layout.Manifest(
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        retr_version=__version__,
        documents={
            **old.documents,
            "count": len(standing.documents) - deleted,
            "deleted": deleted,
            "distinct_texts": count_distinct(standing.documents, withheld.deleted),
        },
        encoder=old.encoder,
        transform=old.transform,
        index=old.index,
        build=how_made(DELETE, stages),
        files=layout.list_files(folder, {name: old.files[name] for name in linked}),
    )
