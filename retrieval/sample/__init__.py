"""A help desk's questions to try retr on, written for this project.

helpdesk.tsv: id, text, category; questions of an online shop's and a phone carrier's customers.
pairs.tsv: sentence1, sentence2, label; 1 for paraphrases with little wording in common, 0 for look-alikes that mean
something else.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib.resources import as_file, files
from pathlib import Path


def corpus_file() -> AbstractContextManager[Path]:
    """The sample corpus as a file."""
    return as_file(files(__name__) / "helpdesk.tsv")


def pairs_file() -> AbstractContextManager[Path]:
    """The labelled pairs as a file."""
    return as_file(files(__name__) / "pairs.tsv")
