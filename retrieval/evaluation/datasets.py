"""The public sets of labelled pairs: which files they are, and where they can be had. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import CorpusError, UsageError
from retrieval.evaluation.pairs import Pairs, md5_of, read_columns, read_json_pairs

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
    form, path = find_split(DATASETS[name], split, folder)
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
    if folder is None:
        raise UsageError(
            f"{name} is looked for in a folder of data sets: give --data DIR, or set RETR_DATA. "
            f"It can be had from {dataset.source}; nothing is downloaded"
        )
    if not folder.is_dir():
        raise CorpusError(f"no folder '{folder}': --data or RETR_DATA names the folder of the data sets")
    if (found := _find(dataset, split, folder)) is not None:
        return found
    looked = ", ".join(form.file(split) for form in dataset.forms)
    raise CorpusError(
        f"the {split} split of {name} is not in '{folder}': looked for {looked}. "
        f"It can be had from {dataset.source}; nothing is downloaded"
    )


def is_test_file(name: str, md5: str, folder: Path | None) -> bool:
    """Whether a file of this md5 is the set's test split, as far as that lies in the data folder."""
    found = _find(DATASETS[name], "test", folder) if folder is not None else None
    return found is not None and md5_of(found[1]) == md5


def _find(dataset: Dataset, split: str, folder: Path) -> tuple[Form, Path] | None:
    files = ((form, folder / form.file(split)) for form in dataset.forms)
    return next(((form, path) for form, path in files if path.is_file()), None)
