"""The public sets of labelled pairs: which files they are, and where they can be had.

Nothing is downloaded here; what `hub.download_set` fetched is read where the data folder has no official file.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import CorpusError, UsageError
from retrieval.evaluation.hub import Note, cached_files, download_set
from retrieval.evaluation.pairs import Pairs, md5_of, read_columns, read_hub_pairs, read_json_pairs

_DOWNLOAD = "nothing is downloaded unless retr eval --download asks the hub for it"
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Form:
    """One form in which a set is published."""

    path: str
    """Under the data folder, with {} for the split's own word."""
    words: tuple[str, str, str] = SPLITS
    """What the files call train, dev and test."""
    places: tuple[int, int, int] = (0, 1, 2)
    """Columns of the sentences and the label, from 0."""
    widths: tuple[int, ...] = (3,)
    header: bool = False

    def file(self, split: str) -> str:
        """The split's file, under the data folder."""
        return self.path.format(self.words[SPLITS.index(split)])


@dataclass(frozen=True)
class Dataset:
    """A set of labelled pairs, by the name that `retr eval` knows."""

    name: str
    forms: tuple[Form, ...]
    source: str
    """Where it can be had."""
    unlabelled: tuple[str, ...] = ()
    """Splits that are published without labels."""

    @property
    def measured(self) -> str:
        """The split that is measured unless another is named: test, where it has labels."""
        return "dev" if "test" in self.unlabelled else "test"


def _senteval(name: str) -> tuple[Form, ...]:
    words = ("train", "valid", "test")
    return Form(f"senteval_cn/{name}.{{}}.data", words), Form(f"senteval_cn/{name}/{name}.{{}}.data", words)


_SENTEVAL = "the archive senteval_cn, which https://github.com/bojone/BERT-whitening links to"

DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "lcqmc",
            (Form("lcqmc/{}.txt"), *_senteval("LCQMC")),
            f"the authors (Liu et al. 2018, Harbin Institute of Technology, Shenzhen), on request; or {_SENTEVAL}",
        ),
        Dataset("atec", _senteval("ATEC"), _SENTEVAL),
        Dataset("bq", _senteval("BQ"), f"the authors (Chen et al. 2018), on request; or {_SENTEVAL}"),
        Dataset("pawsx", _senteval("PAWSX"), f"https://github.com/google-research-datasets/paws; or {_SENTEVAL}"),
        Dataset("sts-b", _senteval("STS-B"), _SENTEVAL),
        Dataset(
            "afqmc",
            (Form("afqmc/{}.txt"), Form("afqmc_public/{}.json"), Form("afqmc/{}.json")),
            "https://github.com/CLUEbenchmark/CLUE (afqmc_public.zip)",
            unlabelled=("test",),
        ),
        Dataset(
            "stsb-en",
            (
                Form("stsbenchmark_en/sts-{}.csv", places=(5, 6, 4), widths=(7, 9)),
                Form("stsbenchmark/sts-{}.csv", places=(5, 6, 4), widths=(7, 9)),
            ),
            "http://ixa2.si.ehu.eus/stswiki (Stsbenchmark.tar.gz)",
        ),
        Dataset(
            "sick",
            tuple(
                Form(f"{folder}/SICK_{{}}.txt", ("train", "trial", "test_annotated"), (1, 2, 3), (5,), header=True)
                for folder in ("sick_en", "SICK")
            ),
            "https://alt.qcri.org/semeval2014/task1 (SICK_train, SICK_trial, SICK_test_annotated)",
        ),
    )
}


def load_dataset(name: str, split: str, folder: Path | None) -> Pairs:
    """Read a split of a set out of the data folder.

    Parameters
    ----------
    name : one of DATASETS.
    split : train, dev or test.
    folder : where the sets lie; None where the user named none.

    Raises
    ------
    UsageError
        No such split, one without labels, or no folder was named.
    CorpusError
        The file is not there (what was looked for, and where the set can be had, is said), or is malformed.
    """
    dataset = DATASETS[name]
    lacking = split in SPLITS and (folder is None or _find(dataset, split, folder) is None)
    if lacking and (files := cached_files(name, split)):
        return read_hub_pairs(files, name, split)
    form, path = find_split(dataset, split, folder)
    if path.suffix == ".json":
        return read_json_pairs(path, name, split)
    return read_columns(path, name, split, form.places, form.widths, form.header)


def find_split(dataset: Dataset, split: str, folder: Path | None) -> tuple[Form, Path]:
    """The file of a split, and its form. Raises UsageError and CorpusError as `load_dataset` does."""
    name = dataset.name
    if split not in SPLITS:
        raise UsageError(f"{name} has no split {split!r}: expected one of {', '.join(SPLITS)}")
    if split in dataset.unlabelled:
        labelled = " or ".join(known for known in SPLITS if known not in dataset.unlabelled)
        raise UsageError(f"the {split} split of {name} is published without labels: use --split {labelled}")
    if folder is not None and not folder.is_dir():
        raise CorpusError(f"no folder '{folder}': --data or RETR_DATA names the folder of the data sets")
    if folder is not None and (found := _find(dataset, split, folder)) is not None:
        return found
    if folder is None:
        raise UsageError(
            f"{name} is looked for in a folder of data sets: give --data DIR, or set RETR_DATA. "
            f"It can be had from {dataset.source}; {_DOWNLOAD}"
        )
    looked = ", ".join(form.file(split) for form in dataset.forms)
    raise CorpusError(
        f"the {split} split of {name} is not in '{folder}': looked for {looked}. "
        f"It can be had from {dataset.source}; {_DOWNLOAD}"
    )


def splits_there(name: str, folder: Path) -> list[str]:
    """The labelled splits of a set that lie in the data folder."""
    dataset = DATASETS[name]
    return [split for split in SPLITS if split not in dataset.unlabelled and _find(dataset, split, folder)]


def fetch_dataset(name: str, splits: Collection[str], folder: Path | None, note: Note) -> None:
    """Download the splits that the data folder has not; see `hub.download_set`.

    Raises
    ------
    CorpusError
        The hub does not give the set: what was tried, and where else it can be had.
    """
    dataset = DATASETS[name]
    wanted = [split for split in splits if split not in dataset.unlabelled]
    if folder is not None:
        wanted = [split for split in wanted if _find(dataset, split, folder) is None]
    try:
        download_set(name, wanted, note)
    except CorpusError as error:
        raise CorpusError(f"{error}. It can be had from {dataset.source}: put its files into --data DIR") from error


def is_test_file(name: str, md5: str, folder: Path | None) -> bool:
    """Whether a file of this md5 is the set's test split, as far as that lies in the data folder."""
    found = _find(DATASETS[name], "test", folder) if folder is not None else None
    cached = cached_files(name, "test")
    return (found is not None and md5_of(found[1]) == md5) or (bool(cached) and md5_of(*cached) == md5)


def _find(dataset: Dataset, split: str, folder: Path) -> tuple[Form, Path] | None:
    files = ((form, folder / form.file(split)) for form in dataset.forms)
    return next(((form, path) for form, path in files if path.is_file()), None)
