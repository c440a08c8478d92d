"""embeddings/: raw encoder output in numbered shards, each of which says what it was made from.

A shard is a safetensors file with one tensor `embeddings`, float32, shape (rows, d), and its key in the metadata: equal
keys mean equal texts, encoder and shard size. So a shard can be trusted wherever it is found: in an unfinished
build after a power cut, or in the index that stands.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from mmap import MADV_WILLNEED, PAGESIZE
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retrieval.errors import IndexFolderError
from retrieval.storage import atomic_file, link_or_copy

SHARD_ROWS = 2048
"""A shard is what a power cut costs: some 12 seconds of a laptop's encoding."""
_SPARSE = 8
"""Where one row of more than so many of a shard is wanted, its pages are asked for; else reading ahead serves."""

_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@dataclass(frozen=True)
class EmbeddingsKey:
    """What embeddings were made from."""

    texts_sha256: str
    rows: int
    encoder_fingerprint: str
    encoder: dict[str, Any]
    """The encoder's settings, to say in words what changed."""
    shard_rows: int

    def changes(self, other: EmbeddingsKey) -> list[str]:
        """What makes `other` unusable where self is needed, in words; empty where it can be used."""
        changes = []
        if self.texts_sha256 != other.texts_sha256:
            changes.append(f"the texts changed ({other.rows:,} before, {self.rows:,} now)")
        if self.encoder_fingerprint != other.encoder_fingerprint:
            differing = [
                f"{name} {other.encoder.get(name)!r} -> {value!r}"
                for name, value in self.encoder.items()
                if other.encoder.get(name) != value
            ]
            changes.append(f"the encoder changed ({', '.join(differing) or 'its files are others'})")
        if self.shard_rows != other.shard_rows:
            changes.append("the shards have another size")
        return changes


class EmbeddingShards:
    """The shards of one folder.

    Parameters
    ----------
    folder : where they are; made when the first shard is written.
    key : what they are made from.
    """

    def __init__(self, folder: Path, key: EmbeddingsKey) -> None:
        self.folder = folder
        self.key = key
        self._open: dict[int, tuple[NDArray[np.float32], dict[str, str]]] = {}

    @property
    def count(self) -> int:
        """How many shards make the whole."""
        return -(-self.key.rows // self.key.shard_rows)

    def bounds(self, shard: int) -> tuple[int, int]:
        """The rows of a shard: first, and one past the last."""
        start = shard * self.key.shard_rows
        return start, min(start + self.key.shard_rows, self.key.rows)

    def missing(self) -> list[int]:
        """The shards that are not there whole, with this key and the content that was written."""
        return [shard for shard in range(self.count) if not self._usable(shard)]

    def damaged(self, missing: Sequence[int]) -> list[str]:
        """The names of those of the missing shards that are there, and are not what was written."""
        return [self._path(shard).name for shard in missing if self._path(shard).exists()]

    def write(self, shard: int, embeddings: NDArray[np.float32], counts: Mapping[str, int]) -> None:
        """Write a shard durably.

        Parameters
        ----------
        embeddings : float32, shape (rows of the shard, d)
        counts : what the encoder met in its distinct texts, by name
        """
        from safetensors.numpy import save

        if not self.folder.exists():
            self.folder.mkdir(parents=True)
        metadata = {"key": json.dumps(asdict(self.key), ensure_ascii=False), "counts": json.dumps(dict(counts))}
        embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
        metadata["sha256"] = hashlib.sha256(embeddings.data).hexdigest()
        with atomic_file(self._path(shard)) as file:
            file.write(save({"embeddings": embeddings}, metadata))

    def read(self, shard: int) -> NDArray[np.float32]:
        """float32, shape (rows of the shard, d), memory-mapped."""
        return self._mapped(shard)[0]

    def hold(self, mmap: bool) -> None:
        """Map all shards now, or read them: what is read later is of this state, whatever becomes of the folder.

        Raises
        ------
        IndexFolderError
            A shard is missing or not whole; it is named.
        """
        for shard in range(self.count):
            path, (start, stop) = self._path(shard), self.bounds(shard)
            try:
                self._open[shard] = _map_shard(path, mmap)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise IndexFolderError(f"{path} cannot be read ({error}): build the index again") from None
            if len(self._open[shard][0]) != stop - start:
                raise IndexFolderError(f"{path} has not the {stop - start:,} rows expected: build the index again")

    def counts(self) -> dict[str, int]:
        """What the encoder met in the distinct texts of all shards."""
        total: Counter[str] = Counter()
        for shard in range(self.count):
            total.update(json.loads(self._mapped(shard)[1]["counts"]))
        return dict(total)

    def sha256(self) -> str:
        """Of the sha256 of all shards: the same embeddings have the same, wherever they are."""
        digests = "".join(self._mapped(shard)[1]["sha256"] for shard in range(self.count))
        return hashlib.sha256(digests.encode()).hexdigest()

    def chunks(self) -> Iterator[NDArray[np.float32]]:
        """All embeddings in row order, a shard at a time."""
        for shard in range(self.count):
            yield _map_shard(self._path(shard))[0]  # not kept open: pages that were read count as memory

    def link_from(self, other: Path) -> None:
        """Take the shards of another folder, without copying where the file system allows it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(other.glob("*.safetensors")):
            link_or_copy(path, self.folder / path.name)

    def _usable(self, shard: int) -> bool:
        start, stop = self.bounds(shard)
        try:
            embeddings, metadata = self._mapped(shard)
            if self.key.changes(_key(metadata)) or len(embeddings) != stop - start:
                return False
            return hashlib.sha256(_map_shard(self._path(shard))[0].data).hexdigest() == metadata["sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _mapped(self, shard: int) -> tuple[NDArray[np.float32], dict[str, str]]:
        if shard not in self._open:
            self._open[shard] = _map_shard(self._path(shard))
        return self._open[shard]

    def _path(self, shard: int) -> Path:
        return self.folder / f"{shard:06d}.safetensors"


class Embeddings:
    """The embeddings of a whole index, that of each of its parts in turn.

    Parameters
    ----------
    folders : one of shards for each part, in row order.

    Raises
    ------
    IndexFolderError
        A folder holds no shard that can be read.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.parts: list[EmbeddingShards] = []
        for folder in folders:
            if (key := key_of_folder(folder)) is None:
                raise IndexFolderError(f"{folder} holds no embeddings that can be read: build the index again")
            self.parts.append(EmbeddingShards(folder, key))
        ends = np.cumsum([part.key.rows for part in self.parts], dtype=np.int64)
        self._rows = int(ends[-1])
        self._shards = [(number, shard) for number, part in enumerate(self.parts) for shard in range(part.count)]
        firsts = [int(ends[i]) - self.parts[i].key.rows + self.parts[i].bounds(shard)[0] for i, shard in self._shards]
        self._firsts = np.array(firsts, np.int64)

    def __len__(self) -> int:
        return self._rows

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Those of some rows: float32, shape (rows, d)."""
        owners = np.searchsorted(self._firsts, rows, side="right") - 1
        shards = {number: self._shard(number) for number in np.unique(owners).tolist()}
        places = list(zip(owners.tolist(), (rows - self._firsts[owners]).tolist(), strict=True))
        taken = np.empty((len(rows), self._dimension()), dtype=np.float32)
        if _SPARSE * len(rows) < sum(map(len, shards.values())):
            size, addresses = taken.shape[1] * 4, {number: shard.ctypes.data for number, shard in shards.items()}
            for number, row in places:
                _prefetch(addresses[number] + row * size, size)
        for place, (number, row) in enumerate(places):
            taken[place] = shards[number][row]
        return taken

    def hold(self, mmap: bool = True) -> None:
        """See EmbeddingShards."""
        for part in self.parts:
            part.hold(mmap)

    def chunks(self) -> Iterator[NDArray[np.float32]]:
        """All in row order, a shard at a time."""
        for part in self.parts:
            yield from part.chunks()

    def counts(self) -> Counter[str]:
        """What the encoder met in the distinct texts of all parts."""
        total: Counter[str] = Counter()
        for part in self.parts:
            total.update(part.counts())
        return total

    def check(self) -> None:
        """Read all. Raises IndexFolderError where a shard is not what was written; it is named."""
        for part in self.parts:
            if missing := part.missing():
                raise IndexFolderError(
                    f"{part.folder} is damaged at shard {missing[0]:06d}: build the index again from its corpus"
                )

    def _shard(self, number: int) -> NDArray[np.float32]:
        part, shard = self._shards[number]
        return self.parts[part].read(shard)

    def _dimension(self) -> int:
        return int(self.parts[0].read(0).shape[1])


def key_of_folder(folder: Path) -> EmbeddingsKey | None:
    """The key of the first readable shard; None where there is none."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            return _key(_map_shard(path)[1])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _key(metadata: dict[str, str]) -> EmbeddingsKey:
    return EmbeddingsKey(**json.loads(metadata["key"]))


def _map_shard(path: Path, mmap: bool = True) -> tuple[NDArray[np.float32], dict[str, str]]:
    """The tensor, memory-mapped, and the metadata. Raises ValueError or OSError where the file is not whole.

    The layout is the safetensors format's: u64 header length, a JSON header, then the data. The library itself reads a
    tensor whole, and single rows of many shards are wanted here.
    """
    buffer = _map_file(path) if mmap else pa.py_buffer(path.read_bytes())
    size = buffer.size
    (length,) = struct.unpack_from("<Q", buffer) if size >= 8 else (size,)
    if 8 + length > size:
        raise ValueError(f"{path} is not whole")
    header = json.loads(memoryview(buffer)[8 : 8 + length].tobytes())
    entry = header["embeddings"]
    start, stop = entry["data_offsets"]
    if entry["dtype"] != "F32" or size != 8 + length + stop:
        raise ValueError(f"{path} is not whole")
    values = np.frombuffer(buffer, np.float32, offset=8 + length + start)
    return values.reshape(entry["shape"]), header["__metadata__"]


def _map_file(path: Path) -> pa.Buffer:
    """A file's bytes, mapped but not held open, as mmap.mmap does: an index may have more shards than `ulimit -n`.

    Arrow's mapping lives as long as a buffer of it. It asks for all pages of what is taken out: so one byte is.
    """
    with pa.memory_map(str(path)) as file:
        size, first = file.size(), file.read_buffer(1)
    return pa.foreign_buffer(first.address, size, base=first)


def _prefetch(address: int, size: int) -> None:
    """Ask for mapped bytes: a disk then fetches many rows side by side, and little else with them."""
    page = address - address % PAGESIZE
    _madvise(page, address + size - page, MADV_WILLNEED)
