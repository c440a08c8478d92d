"""All splits of a set that are there, with their sentences numbered once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.evaluation.datasets import DATASETS, load_dataset, splits_there
from retrieval.evaluation.pairs import Pairs
from retrieval.evaluation.published import Table


@dataclass(frozen=True)
class Splits:
    """The splits of a set that are there."""

    splits: dict[str, Pairs]
    measured: list[str]
    lacks: str
    """Why nothing can be measured, or empty."""

    @classmethod
    def read(cls, table: Table, folder: Path) -> Splits:
        name = table.dataset
        splits = {split: load_dataset(name, split, folder) for split in splits_there(name, folder)}
        measured = [split for split in table.splits if split in splits]
        lacks = ""
        if not measured:
            looked = ", ".join(form.file(split) for split in table.splits for form in DATASETS[name].forms)
            lacks = f"the data of {name} (one of {looked}, in '{folder}'), from {DATASETS[name].source}"
        return cls(splits, measured, lacks)

    @cached_property
    def texts(self) -> list[str]:
        """The distinct sentences of all splits."""
        return list(dict.fromkeys(text for pairs in self.splits.values() for text in pairs.texts))

    @cached_property
    def rows(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """By split: the rows of the first and of the second sentences in `texts`."""
        place = {text: row for row, text in enumerate(self.texts)}
        return {
            split: (np.array([place[text] for text in pairs.first]), np.array([place[text] for text in pairs.second]))
            for split, pairs in self.splits.items()
        }
