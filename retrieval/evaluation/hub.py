"""The public sets as the hub has them, in the form and at the revision that the package mteb 2.26 measures.

Nothing is downloaded unasked: `download_set` fetches the files of a set into the cache, and from then on they are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import CorpusError
from retrieval.storage import cache_directory

Note = Callable[[str], None]
_SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".json.gz")
_WORDS = {"train": ("train",), "dev": ("dev", "validation", "valid"), "test": ("test",)}


@dataclass(frozen=True)
class HubSet:
    """A set's place on the hub, and its task in mteb."""

    repository: str
    revision: str
    task: str
    language: str
    same: tuple[str, ...] = ()
    """md5 of official files whose pairs are those of the task's split: equal in number, characters, distinct sentences
    and mean label to what mteb says of its own."""


HUB_SETS = {
    "lcqmc": HubSet(
        "C-MTEB/LCQMC",
        "17f9b096f80380fce5ed12a9be8be7784b337daf",
        "LCQMC",
        "cmn-Hans",
        ("8cfdb80f1f6d4f632527f6223795a7c2",),
    ),
    "atec": HubSet(
        "C-MTEB/ATEC",
        "0f319b1142f28d00e055a6770f3f726ae9b7d865",
        "ATEC",
        "cmn-Hans",
        ("4851ce07ad546c5cf83c095154381e35",),
    ),
    "bq": HubSet(
        "C-MTEB/BQ",
        "e3dda5e115e487b39ec7e618c0c6a29137052a55",
        "BQ",
        "cmn-Hans",
        ("92273a1afb213110ac3586313861e115",),
    ),
    "pawsx": HubSet(
        "mteb/PAWSX",
        "bd129d4230ee0551b5469c566bced8da75abae0a",
        "PAWSX",
        "cmn-Hans",
        ("46624c3d0dd9295e312dfb756b073df7",),
    ),
    "sts-b": HubSet(
        "mteb/STSB",
        "e036defee8f190911de6fc825a944b928c8cda53",
        "STSB",
        "cmn-Hans",
        ("a16b4abe743122383cbe6d140974d711",),
    ),
    "afqmc": HubSet(
        "C-MTEB/AFQMC",
        "b44c3b011063adb25877c13823db83bb193913c4",
        "AFQMC",
        "cmn-Hans",
        ("4aca8c1853fbd52eace3036e231bd576",),
    ),
    "stsb-en": HubSet(
        "mteb/stsbenchmark-sts",
        "b0fddb56ed78048fa8b90373c8a3cfc37b684831",
        "STSBenchmark",
        "eng-Latn",
        ("f8c608a4dcfeff4ea11912ea72aacd6e",),
    ),
    # mteb's test split holds all three of the official splits but for some pairs.
    "sick": HubSet("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d", "SICK-R", "eng-Latn"),
}


def cached_files(name: str, split: str) -> list[Path]:
    """The files of a split that were downloaded, in their order; none where it was not."""
    folder = _folder(HUB_SETS[name])
    if not folder.is_dir():
        return []
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return [folder / found for found in _of_split(names, split)]


def download_set(name: str, splits: Collection[str], note: Note = lambda message: None) -> dict[str, list[Path]]:
    """Fetch the files of some splits into the cache, those that are not there yet.

    Returns
    -------
    Of each split its files; none where the hub has no such split.

    Raises
    ------
    CorpusError
        The hub cannot be reached or does not give the set; what was tried is said.
    """
    place = HUB_SETS[name]
    found = {split: cached_files(name, split) for split in splits}
    missing = [split for split in splits if not found[split]]
    if not missing:
        return found
    import huggingface_hub

    note(f"downloading {name} ({', '.join(missing)}) from {_address(place)}")
    try:
        names = huggingface_hub.list_repo_files(place.repository, repo_type="dataset", revision=place.revision)
        for split in missing:
            for file in _of_split(names, split):
                huggingface_hub.hf_hub_download(
                    place.repository,
                    file,
                    repo_type="dataset",
                    revision=place.revision,
                    local_dir=_folder(place),
                )
    except Exception as error:  # offline, gated, gone: each with an exception of its own
        detail = next((line for line in str(error).splitlines() if line.strip()), "")[:150]
        raise CorpusError(
            f"{name} was not downloaded from {_address(place)}: {type(error).__name__}: {detail}"
        ) from error
    return {split: cached_files(name, split) for split in splits}


def _address(place: HubSet) -> str:
    return f"https://huggingface.co/datasets/{place.repository} (revision {place.revision[:8]})"


def _folder(place: HubSet) -> Path:
    return cache_directory() / "datasets" / f"{place.repository.replace('/', '--')}-{place.revision[:8]}"


def _of_split(names: Collection[str], split: str) -> list[str]:
    """The data files of a split, by the words of their names: test.jsonl.gz, data/test-00000-of-00001-1f2e.parquet."""
    data = [name for name in names if name.endswith(_SUFFIXES) and not name.startswith(".")]
    words = re.compile(rf"(^|[/._-])({'|'.join(_WORDS[split])})([/._-])")
    return sorted(name for name in data if words.search(name))
