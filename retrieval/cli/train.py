"""`retr train sbert`, `simbert`, `simcse` and `cosent`."""

from __future__ import annotations

import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retrieval.cli.options import DebugOption, JsonOption, QuietOption
from retrieval.cli.output import TerminalProgress, print_json, print_line
from retrieval.cli.paraphrase import COUNT, texts_to_write, write_paraphrases
from retrieval.encoders.catalog import DEFAULT_MODEL
from retrieval.errors import UsageError

if TYPE_CHECKING:
    from retrieval.encoders.base import EncoderSettings
    from retrieval.training.loop import LoopSettings
    from retrieval.training.material import Gathering, Make
    from retrieval.training.run import Trained

train = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

PairsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="PAIRS...",
        help="Labelled pairs: SET:SPLIT of the sets that retr eval knows, such as lcqmc:dev, or files with columns "
        "sentence1, sentence2, label (.tsv, .csv, .jsonl, .parquet).",
    ),
]
OutputOption = Annotated[
    Path,
    typer.Option(
        "--output", "-o", help="Folder of the model; checkpoints lie in DIR.training until it is whole.", metavar="DIR"
    ),
]
ModelOption = Annotated[str, typer.Option(help="What training begins from: a transformer, as for retr index.")]
PoolOption = Annotated[str | None, typer.Option(help="Pooling. Default: the model's own.")]
LengthOption = Annotated[
    int | None,
    typer.Option(
        "--max-length", help="Tokens of a text; what is beyond is cut off. Default: the model's own.", metavar="N"
    ),
]
DevOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Labelled pairs by which the weights are chosen; they count for half, the parts held out for the other. "
        "Best unlike the sources. May be repeated."
    ),
]
HoldOutOption = Annotated[
    float,
    typer.Option(
        help="Share of each source that is not trained on, and by which the weights are chosen; no sentence of it is "
        "in the rest, and pairs are weighted so that what one sentence alone tells gains nothing. 0: none."
    ),
]
TestOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Labelled pairs on which the result is measured, once; their pairs are left out of training. May be "
        "repeated.",
    ),
]
DataOption = Annotated[Path | None, typer.Option(envvar="RETR_DATA", help="Folder of the data sets.", metavar="DIR")]
StepsOption = Annotated[int | None, typer.Option(help="Steps, of each stage. Default: what --epochs comes to.")]
EpochsOption = Annotated[float, typer.Option(help="Times that the examples are seen.")]
BatchOption = Annotated[int, typer.Option(help="Pairs, triplets or texts a batch.")]
AccumulateOption = Annotated[int, typer.Option(help="Batches a step.")]
RateOption = Annotated[float, typer.Option("--lr", help="The highest learning rate.")]
WarmupOption = Annotated[float, typer.Option(help="Share of the steps in which the rate rises.")]
ClipOption = Annotated[float, typer.Option(help="Largest norm of a gradient.")]
MixOption = Annotated[
    str,
    typer.Option(
        help="How often a source has its turn: by the root of its size (sqrt), by size, even, or by weights of the "
        "sources in their order, such as 4,1,1.",
        metavar="sqrt|size|even|WEIGHTS",
    ),
]
EveryOption = Annotated[int, typer.Option(help="Steps between two measurements on the dev sets.")]
PatienceOption = Annotated[int, typer.Option(help="Stop after so many measurements without a gain; 0: never.")]
BlendOption = Annotated[
    str,
    typer.Option(
        help="How far to go from the starting weights to the trained ones: above 0, up to 1, or auto, which takes of "
        "the eighths from .25 to 1 what the dev sets like best.",
        metavar="auto|SHARE",
    ),
]
FreezeOption = Annotated[
    str, typer.Option(help="words: the word embeddings stay as they are; none: everything is trained.")
]
PunctuationOption = Annotated[
    bool,
    typer.Option(
        "--keep-punctuation",
        help="Leave the final punctuation of texts where it is. Default: it is dealt out anew among the texts of a "
        "batch, so that no label is learnt from it.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
PrecisionOption = Annotated[str, typer.Option(help="auto (bf16 where the processor has it), float32 or bf16.")]
AdviseOption = Annotated[
    bool, typer.Option(help="Sweep poolings and transforms on the dev sets afterwards, for the model card.")
]
SeedOption = Annotated[int, typer.Option(help="Of batches, dropout and the parts held out.")]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Forget a run that was broken off, and replace the model that stands there.")
]


@train.callback()
def _about() -> None:
    """Train an encoder, on labelled pairs or on plain texts, into a sentence-transformers folder.

    A run that is broken off, even by a power cut, goes on with the same command and ends with the same weights.

    Example: retr train cosent lcqmc:dev bq:dev --data DIR -o models/cosent --test lcqmc
    """


def _shared(
    output: OutputOption,
    model: ModelOption = DEFAULT_MODEL,
    pool: PoolOption = None,
    max_length: LengthOption = None,
    dev: DevOption = None,
    hold_out: HoldOutOption = 0.1,
    test: TestOption = None,
    data: DataOption = None,
    steps: StepsOption = None,
    epochs: EpochsOption = 1.0,
    batch: BatchOption = 32,
    accumulate: AccumulateOption = 1,
    lr: RateOption = 2e-5,
    warmup: WarmupOption = 0.1,
    clip: ClipOption = 1.0,
    mix: MixOption = "sqrt",
    eval_every: EveryOption = 100,
    patience: PatienceOption = 0,
    blend: BlendOption = "auto",
    freeze: FreezeOption = "words",
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    advise: AdviseOption = True,
    seed: SeedOption = 0,
    fresh: FreshOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """The options of every objective, with their defaults."""


def _command(*without: str, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with the function's own options and the shared ones, which it takes as `**options`.

    Parameters
    ----------
    without : shared options that have no meaning for it.
    defaults : of shared options, instead of theirs.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True).parameters.values()
        shared = inspect.signature(_shared, eval_str=True).parameters.values()
        parameters = [each for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
        parameters += [
            each.replace(default=defaults.get(each.name, each.default)) for each in shared if each.name not in without
        ]

        @functools.wraps(function)
        def command(**options: Any) -> None:
            function(**options)

        of_keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        command.__signature__ = inspect.Signature(of_keywords)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return train.command()(command)

    return decorate


@_command()
def cosent(
    sources: PairsArgument,
    scale: Annotated[float, typer.Option(help="Of the cosines; 1 / temperature.")] = 20.0,
    in_batch: Annotated[
        float,
        typer.Option(
            help="Weight of a second loss on pairs of label 1: each sentence picks its partner out of the batch, by "
            "cosine. 0: none.",
            metavar="WEIGHT",
        ),
    ] = 0.0,
    keep_punctuation: PunctuationOption = False,
    **options: Any,
) -> None:
    """Rank the cosines of pairs as their labels: CoSENT. For pairs with 0 and 1, or with grades.

    A batch holds pairs of one source, so that sets whose labels mean different things can be trained on together.

    Example: retr train cosent lcqmc:dev bq:dev afqmc:train --data DIR -o models/cosent --test lcqmc
    """
    from retrieval.training import material

    def makes(found: Gathering, loop: LoopSettings) -> Sequence[tuple[Make, int]]:
        return material.cosent(found, sources, scale, loop.batch, in_batch=in_batch, deals=not keep_punctuation)

    objective = {"objective": "cosent", "scale": scale, "in_batch": in_batch, "keep_punctuation": keep_punctuation}
    _print(_train(options, objective, makes), options["as_json"])


@_command("mix")
def sbert(
    stage: Annotated[
        list[str],
        typer.Option(
            help="nli:FILE (premise, hypothesis, label), sts:FILE (pairs with 0 and 1, or with grades) or "
            "triplets:FILE (anchor, positive, negative); repeated, one after the other.",
            metavar="KIND:FILE",
        ),
    ],
    margin: Annotated[float, typer.Option(help="Of triplets: how much nearer the positive has to be.")] = 1.0,
    keep_punctuation: PunctuationOption = False,
    **options: Any,
) -> None:
    """SBERT: inference classes from (u, v, |u - v|), cosines that reproduce labels, or triplets; in stages.

    Example: retr train sbert --stage nli:nli.tsv --stage sts:sts-b:train --data DIR -o models/sbert
    """
    from retrieval.training import material

    def makes(found: Gathering, loop: LoopSettings) -> Sequence[tuple[Make, int]]:
        return material.sbert(found, stage, margin, deals=not keep_punctuation)

    objective = {"objective": "sbert", "stages": stage, "margin": margin, "keep_punctuation": keep_punctuation}
    _print(_train(options, objective, makes), options["as_json"])


@_command(batch=64)
def simbert(
    sources: PairsArgument,
    scale: Annotated[float, typer.Option(help="Of the cosines; 1 / temperature.")] = 30.0,
    encoder_only: Annotated[
        bool,
        typer.Option("--encoder-only", help="Leave out the second half, even where the model has the head for it."),
    ] = False,
    generate: Annotated[
        str | None,
        typer.Option(
            help="Afterwards write paraphrases of these texts, as retr paraphrase does, alone on stdout; what came of "
            "the training goes to stderr.",
            metavar="FILE|-",
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Of --generate: the most paraphrases of a text.")] = COUNT,
    **options: Any,
) -> None:
    """SimBERT: each text of a batch picks its partner, by cosine. For pairs that say the same; others are left out.

    Where the model is a BERT with its language-model head, it also learns to write each text of a pair from the other
    (UniLM), with the pooling cls and 64 tokens a text unless --max-length says otherwise; retr paraphrase then writes.
    Other models are trained as encoders alone, with their own pooling, and a note says why.

    Example: retr train simbert lcqmc:dev --model bert-base-chinese --data DIR -o models/simbert --generate texts.txt
    """
    from retrieval.training import material
    from retrieval.training.simbert import simbert_settings

    if encoder_only and generate is not None:
        raise UsageError("--generate and --encoder-only exclude each other: an encoder alone cannot write")
    progress = TerminalProgress(options["quiet"])
    asked = options["model"], options["pool"], options["max_length"]
    settings, why = simbert_settings(*asked, encoder_only=encoder_only, note=progress.note)
    texts = None if generate is None else texts_to_write(generate, count, why)
    if why and not encoder_only:
        progress.note(f"the encoder alone is trained: {why}")
    objective = {"objective": "simbert", "scale": scale, "writes": not why}
    trained = _train(
        options,
        objective,
        lambda found, loop: material.simbert(found, sources, scale, loop.batch),
        settings,
        notes=[f"The encoder alone was trained: {why}"] if why else [],
    )
    if texts is None:
        _print(trained, options["as_json"])
        return
    for line in _lines(trained):
        progress.note(line)
    model = str(trained.path)
    write_paraphrases(
        model,
        texts,
        count,
        seed=options["seed"],
        device=options["device"],
        as_json=options["as_json"],
        progress=progress,
    )


@_command("hold_out", batch=64, lr=1e-5)
def simcse(
    sources: Annotated[
        list[str], typer.Argument(metavar="TEXTS...", help="Texts without labels: files as for retr index.")
    ],
    scale: Annotated[float, typer.Option(help="Of the cosines; 1 / temperature.")] = 20.0,
    **options: Any,
) -> None:
    """SimCSE without labels: each text finds itself again, under another dropout, among those of the batch.

    Without --dev the last weights are kept: there is nothing to choose others by.

    Example: retr train simcse titles.txt -o models/simcse --dev lcqmc:dev --data DIR
    """
    from retrieval.training import material

    objective = {"objective": "simcse", "scale": scale}
    trained = _train(options, objective, lambda found, loop: material.simcse(found, sources, scale, loop.batch))
    _print(trained, options["as_json"])


def _train(
    given: dict[str, Any],
    objective: dict[str, Any],
    makes: Callable[[Gathering, LoopSettings], Sequence[tuple[Make, int]]],
    settings: EncoderSettings | None = None,
    notes: Sequence[str] = (),
) -> Trained:
    """Read the files, and train.

    Parameters
    ----------
    settings : of the model that training begins from; None: those that the options name.
    notes : for the model card, beside what is met in the files.
    """
    from retrieval.encoders.load import resolve_settings
    from retrieval.training.choice import check_blend
    from retrieval.training.loop import LoopSettings
    from retrieval.training.material import Gathering, Reading, stages_of
    from retrieval.training.run import Choosing, Start, run

    loop = LoopSettings(**{each.name: given[each.name] for each in fields(LoopSettings) if each.name in given})
    choosing = Choosing(check_blend(given["blend"]), given["advise"])
    settings = settings or resolve_settings(given["model"], pooling=given["pool"], max_length=given["max_length"])
    writes = objective.get("writes", False)
    start = Start(settings, given["device"], given["precision"], given["freeze"], writes)
    progress = TerminalProgress(given["quiet"])
    reading = Reading(given["dev"] or (), given["test"] or (), given.get("hold_out", 0.0), given["data"], given["seed"])
    found = Gathering(reading)
    stages = stages_of(makes(found, loop), loop, given["steps"], given["epochs"])
    material = found.material(stages)
    for note in material.notes:
        progress.note(note)
    material = replace(material, notes=[*notes, *material.notes])
    objective |= {"steps": given["steps"], "epochs": given["epochs"], "hold_out": reading.hold_out}
    return run(
        given["output"],
        f"retr {shlex.join(sys.argv[1:])}",
        start,
        material,
        loop,
        objective,
        choosing,
        fresh=given["fresh"],
        progress=progress,
    )


def _print(trained: Trained, as_json: bool) -> None:
    if as_json:
        print_json({"path": str(trained.path), **asdict(trained.record)})
        return
    for line in _lines(trained):
        print_line(line)


def _lines(trained: Trained) -> Iterator[str]:
    """What came of it."""
    from retrieval.training.card import lasted

    record, path = trained.record, shlex.quote(str(trained.path))
    yield f"{trained.path}: trained in {lasted(record.seconds)}. {record.chosen}"
    for one in record.tests:
        yield (
            f"{one.name}: Spearman {one.start:.2f} -> {one.trained:.2f}; {one.cut} {one.start_cut:.2f} -> "
            f"{one.trained_cut:.2f}"
        )
    if record.advice is not None:
        yield record.advice.sentence
    yield f"use it: retr index CORPUS --model {path}"
    if record.settings.get("writes"):
        yield f"let it write: retr paraphrase TEXT --model {path}"
