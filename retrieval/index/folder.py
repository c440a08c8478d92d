"""One index = one folder: the manifest, and what is checked before anything in the folder is believed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from retrieval.errors import IndexFolderError
from retrieval.storage import atomic_file, cached_sha256, sha256_file

FORMAT = "retr-index"
FORMAT_VERSION = 2
READABLE_VERSIONS = (1, 2)
"""Version 1 had no rows added and none withheld; a folder of it is one of version 2."""

MANIFEST = "manifest.json"
DOCUMENTS = "documents.arrow"
VECTORS = "vectors.faiss"
TRANSFORM = "transform.safetensors"
MOMENTS = "moments.safetensors"
DRIFT = "drift.safetensors"
WITHHELD = "withheld.arrow"
ADDED = "added"
EMBEDDINGS = "embeddings"
ENCODER = "encoder"

# What the package reads out of a manifest.
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "documents": {
        **dict.fromkeys(("count", "distinct_texts", "rows_read", "skipped", "truncated", "tokens", "unknown"), int),
        **dict.fromkeys(("deleted", "next_id"), int),
        "fields": dict,
        "first_skipped_rows": list,
        "sources": list,
        "added": list,
        "text_column": (str, type(None)),
        "id_column": (str, type(None)),
    },
    "encoder": {
        **dict.fromkeys(("source", "pooling", "query_prompt", "document_prompt", "normalize"), str),
        **dict.fromkeys(("backend", "precision", "fingerprint"), str),
        "max_length": int,
        "dimension": int,
    },
    "transform": {"name": str, "m": int},
    "index": {"spec": str, "dimension": int, "vectors": int},
    "build": {"by": str, "seconds": dict, "machine": str, "python": str},
}

_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Manifest:
    """What an index is and how it was built; indexes/README.md says what each part holds."""

    created: str
    retr_version: str
    documents: dict[str, Any]
    encoder: dict[str, Any]
    transform: dict[str, Any]
    index: dict[str, Any]
    build: dict[str, Any]
    files: dict[str, dict[str, Any]]

    @property
    def parts(self) -> list[str]:
        """Where documents and embeddings lie, in row order: the folder itself (""), then `added/000001` and so on."""
        return ["", *(f"{ADDED}/{name}" for name in self.documents["added"])]

    @property
    def rows(self) -> int:
        """How many documents are stored, those deleted since included."""
        return int(self.documents["count"]) + int(self.documents["deleted"])

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json, whole or not at all."""
    with atomic_file(folder / MANIFEST) as file:
        file.write((json.dumps(manifest.to_json(), indent=2, ensure_ascii=False) + "\n").encode("utf-8"))


def list_files(folder: Path, known: Mapping[str, dict[str, Any]] | None = None) -> dict[str, dict[str, Any]]:
    """Every file of the folder but the manifest, with its bytes and sha256.

    Parameters
    ----------
    known : those that need not be read, with what is to be said of them.
    """
    paths = {str(path.relative_to(folder).as_posix()): path for path in sorted(folder.rglob("*")) if path.is_file()}
    paths.pop(MANIFEST, None)
    return {
        name: known[name] if known and name in known else {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for name, path in paths.items()
    }


def read_manifest(folder: Path) -> Manifest:
    """Read manifest.json.

    Raises
    ------
    IndexFolderError
        There is none, it is damaged, or it is of another format or version.
    """
    path = folder / MANIFEST
    if not folder.exists():
        raise IndexFolderError(f"no index at '{folder}': build one with: retr index CORPUS -o {folder}")
    if not path.exists():
        raise IndexFolderError(f"'{folder}' is not an index: it has no {MANIFEST}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        format, version = content["format"], content["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise IndexFolderError(f"{path} is damaged ({error}): build the index again, into another folder") from None
    if format != FORMAT:
        raise IndexFolderError(f"{path} is of format {format!r}, expected {FORMAT!r}")
    if version not in READABLE_VERSIONS:
        raise IndexFolderError(
            f"{path} is of format version {version}, and this retr reads versions {READABLE_VERSIONS[0]} to "
            f"{FORMAT_VERSION}: "
            + ("install a newer retr" if isinstance(version, int) and version > FORMAT_VERSION else "build it again")
        )
    try:
        sections = {field.name: content[field.name] for field in fields(Manifest)}
        if version == 1:
            _complete_version_1(sections)
        wrong = [
            field.name for field in fields(Manifest) if type(sections[field.name]) is not _section_type(field.name)
        ]
    except KeyError as error:
        raise IndexFolderError(f"{path} is damaged: it lacks {error}; build the index again") from None
    wrong += [
        f"{section}.{name}"
        for section, names in _FIELDS.items()
        if section not in wrong
        for name, type_ in names.items()
        if not isinstance(sections[section].get(name), type_)
    ]
    if wrong:
        raise IndexFolderError(f"{path} is damaged: {wrong[0]!r} is not what it should be; build the index again")
    return Manifest(**sections)


def _complete_version_1(sections: dict[str, Any]) -> None:
    """What version 2 added, as it is where nothing was changed since the build."""
    if isinstance(documents := sections["documents"], dict):
        sections["documents"] = {"deleted": 0, "added": [], "next_id": documents.get("rows_read"), **documents}
    if isinstance(build := sections["build"], dict):
        sections["build"] = {"by": "index", **build}


def check_files(folder: Path, manifest: Manifest, *, every_hash: bool = False) -> None:
    """Compare the files with the manifest: the sizes of all, and the sha256 of those that a search reads.

    Hashes are remembered with a file's size, inode and modification time: only files that are new to this machine, or
    were touched, are read. With `every_hash` all files are read.

    Raises
    ------
    IndexFolderError
        A file is missing or is not the one that was written; the first one is named.
    """
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise IndexFolderError(f"{path} is missing: build the index again, or copy the folder whole")
        size = path.stat().st_size
        if size != entry["bytes"]:
            with path.open("rb") as file:
                if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                    raise IndexFolderError(f"{path} is a git-lfs pointer, not the file itself: run git lfs pull")
            raise IndexFolderError(
                f"{path} has {size:,} bytes, expected {entry['bytes']:,}: it was cut short or replaced; "
                f"build the index again, or copy the folder whole"
            )
        searched = name not in (MOMENTS, DRIFT) and EMBEDDINGS not in PurePosixPath(name).parts
        actual = sha256_file(path) if every_hash else cached_sha256(path) if searched else entry["sha256"]
        if actual != entry["sha256"]:
            raise IndexFolderError(
                f"{path} is not the file that was written (its sha256 differs): build the index again"
            )


def find_indexes(root: Path) -> Iterator[tuple[Path, Manifest]]:
    """The indexes right below `root`, the one built last first; damaged ones are left out."""
    found = []
    for path in root.glob(f"*/{MANIFEST}"):
        try:
            found.append((path.parent, read_manifest(path.parent)))
        except IndexFolderError:
            continue
    yield from sorted(found, key=lambda pair: pair[1].created, reverse=True)


def check_output(path: Path) -> None:
    """Refuse an output path under which something stands that is not an index.

    Raises
    ------
    IndexFolderError
        A file, or a folder with other things in it.
    """
    if path.is_dir():
        if any(path.iterdir()):
            try:
                read_manifest(path)
            except IndexFolderError as error:
                raise IndexFolderError(
                    f"'{path}' will not be replaced: {error}. Give another folder with -o, or delete this one"
                ) from None
    elif path.exists() or path.is_symlink():
        raise IndexFolderError(f"'{path}' is a file, expected a folder or a new name: give another with -o")


def _section_type(name: str) -> type:
    return str if name in ("created", "retr_version") else dict
