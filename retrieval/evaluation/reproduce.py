"""Published rows measured again, on the weights and the splits that are there. What is finished is kept, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retrieval.corpus.files import find_files
from retrieval.encoders import catalog
from retrieval.encoders.find import check_path, find_model, hub_reason, model_here
from retrieval.encoders.fusion import parse_fusion
from retrieval.encoders.load import check_backend
from retrieval.errors import CorpusError, EncoderError, UsageError
from retrieval.evaluation.datasets import SPLITS
from retrieval.evaluation.published import NLI, TABLES, TARGET, WEIGHTS, Row, Table
from retrieval.evaluation.reproduce_rows import FIT_SPLITS, Job, ReproduceOptions, Splits
from retrieval.evaluation.results import Record, Results, finished
from retrieval.types import NoProgress, Progress


@dataclass(frozen=True)
class Reproduction:
    """What a run left.

    Parameters
    ----------
    rows : those that were asked for.
    records : of all rows that are in the folder, by id.
    failed : those that failed in this run, with the reason.
    """

    rows: list[tuple[Table, Row]]
    records: dict[str, Record]
    failed: dict[str, str]


def reproduce(options: ReproduceOptions, progress: Progress | None = None) -> Reproduction:
    """Measure every row that can be measured here, and say of the others what they wait for.

    A row that cannot be loaded or fitted is recorded as failed, and the others go on.

    Raises
    ------
    UsageError
        No such table, row, key or split; a model that is no encoder of one row.
    CorpusError
        The data folder is missing, or a file in it is malformed.
    EncoderError
        A folder or file that `models` names is not there.
    BuildError
        The output folder holds something else, or another run writes to it.
    """
    progress = progress or NoProgress()
    rows = chosen_rows(options.tables, options.only)
    sources = {row.id: _source(row, options.models) for _, row in rows}
    _check(options)
    sets = {table.name: Splits.read(table, options.data) for table in dict.fromkeys(table for table, _ in rows)}
    with Results.opened(options.output) as results:
        without: list[str] = []
        absences: dict[tuple[str, str | None], str] = {}
        jobs: dict[tuple[str, ...], Job] = {}
        for table, row in rows:
            source, given = sources[row.id]
            if (asked := (row.weights, source)) not in absences:  # once a model: the hub may take its time to refuse
                absences[asked] = _absence(row, source, options, progress)
            if reason := _waits_for(table, row, absences[asked], sets[table.name], options):
                if finished(results.rows.get(row.id)):
                    without.append(row.id)
                else:
                    waiting = {"status": "waiting", "waits_for": reason}
                    results.put(row.id, {**table.described(row), **waiting})
                continue
            assert source is not None
            place = (table.name, row.weights, source, row.pooling)
            job = jobs.setdefault(place, Job(table, source, given, sets[table.name], options, results, progress))
            job.rows.append(row)
        for job in jobs.values():
            job.run()
        if kept := [row.id for job in jobs.values() for row in job.kept]:
            progress.note(f"finished before, and kept (--fresh measures them again): {', '.join(kept)}")
        if without:
            progress.note(f"finished before, and kept, though what they need is not here now: {', '.join(without)}")
    failed = {row: error for job in jobs.values() for row, error in job.failed.items()}
    return Reproduction(rows, results.rows, failed)


def chosen_rows(tables: Sequence[str], only: Sequence[str]) -> list[tuple[Table, Row]]:
    """The rows that are asked for, in the order of the tables. UsageError for a name that is none."""
    for name in tables:
        if name not in TABLES:
            raise UsageError(f"no table {name!r}: expected one of {', '.join(TABLES)}")
    rows = [(table, row) for table in TABLES.values() if table.name in tables for row in table.rows]
    names = list(dict.fromkeys([row.id for _, row in rows] + [row.weights for _, row in rows]))
    for name in only:
        if name not in names:
            raise UsageError(f"no row {name!r} in {', '.join(tables)}: expected one of {', '.join(names)}")
    return [(table, row) for table, row in rows if not only or row.id in only or row.weights in only]


def _check(options: ReproduceOptions) -> None:
    """What can be told before anything is read."""
    names = [*WEIGHTS, *(row.id for table in TABLES.values() for row in table.rows if row.id not in WEIGHTS)]
    for name, source in options.models.items():
        if name not in names:
            raise UsageError(f"--model {name}={source}: no row {name!r}, expected one of {', '.join(names)}")
        entry = catalog.lookup(source)
        if parse_fusion(source) or (entry is not None and entry.source == catalog.USE):
            raise UsageError(f"--model {name}={source}: expected one model, whose pooling the row says")
        check_path(source)
    check_backend(options.backend, options.precision, options.device)
    if not options.data.is_dir():
        raise CorpusError(f"no folder '{options.data}': --data or RETR_DATA names the folder of the data sets")
    if options.fit not in (TARGET, *FIT_SPLITS):
        if options.fit in SPLITS:
            raise UsageError(
                f"--fit {options.fit}: expected {TARGET} (all sentences of the set, as published), "
                f"{', '.join(FIT_SPLITS)}, or a file of texts or pairs"
            )
        find_files([options.fit])
    if options.nli is not None:
        find_files([options.nli])


def _source(row: Row, models: Mapping[str, str]) -> tuple[str | None, bool]:
    """The model of a row, None where there is none to be had by name, and whether it was given."""
    given = models.get(row.id, models.get(row.weights))
    return (given, True) if given is not None else (WEIGHTS[row.weights].hub_id, False)


def _waits_for(table: Table, row: Row, absence: str, data: Splits, options: ReproduceOptions) -> str:
    """What the row lacks, in words; empty where it can be measured."""
    reasons = [absence, data.lacks]
    if not data.lacks and row.fit == TARGET and options.fit in FIT_SPLITS and options.fit not in data.splits:
        reasons.append(f"the {options.fit} split of {table.dataset}, which --fit names")
    if row.fit == NLI and options.nli is None:
        reasons.append(
            "the sentences of MNLI train and of SNLI train, dev and test: give them with --nli FILE "
            "(a sentence a line, or pairs with columns sentence1 and sentence2)"
        )
    return "; and ".join(reason for reason in reasons if reason)


def _absence(row: Row, source: str | None, options: ReproduceOptions, progress: Progress) -> str:
    """Why the weights of a row are not here, downloaded first where that is allowed; empty where they are."""
    weights = WEIGHTS[row.weights]
    if source is None:
        what = "FILE" if weights.kind == "word vectors" else "FOLDER"
        return f"{weights.wanted}: give it with --model {weights.key}={what}"
    if model_here(source, progress.note) is not None:
        return ""
    if not options.download:
        return (
            f"the weights {source}, which are not in the local cache of the hub: "
            f"--download gets them, or give a folder with --model {weights.key}=FOLDER"
        )
    try:
        find_model(source, progress.note)
    except EncoderError as error:
        why = hub_reason(error.__cause__ or error)
        return (
            f"the weights {source}, which the hub did not give ({why}): try again, "
            f"or give a folder with --model {weights.key}=FOLDER"
        )
    return ""
