"""`retr paraphrase`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from retrieval.cli.options import DebugOption, DeviceOption, JsonOption, QuietOption
from retrieval.cli.output import TerminalProgress, print_json, print_line
from retrieval.cli.query import check_texts, given_texts
from retrieval.errors import CorpusError, EncoderError, UsageError

COUNT = 20
_BATCH = 256


def paraphrase(
    texts: Annotated[list[str], typer.Argument(help="Texts to say again; - reads stdin, a text a line.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="A folder of retr train simbert, or another SimBERT with its head.")
    ],
    count: Annotated[int, typer.Option(help="The most paraphrases of a text.")] = COUNT,
    top_p: Annotated[
        float, typer.Option(help="Tokens are drawn among the likeliest that reach this sum; 0 takes the likeliest.")
    ] = 0.95,
    temperature: Annotated[float, typer.Option(help="Below 1 likely tokens become likelier.")] = 1.0,
    seed: Annotated[int, typer.Option(help="What is drawn, with each text.")] = 0,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write texts that say the same, the nearest first, with a model of retr train simbert.

    Lines of text, paraphrase and cosine, apart by tabs. With --json: lines of {"text", "rank", "paraphrase", "score"}.
    Five times --count are drawn; those that repeat one another or the text, or do not end, are left out.

    Example: retr paraphrase "怎么退货" "快递到哪了" --model models/simbert --count 5
    """
    from retrieval.training.generate import check_drawing

    check_texts(texts, "text")
    check_drawing(count, 1, top_p, temperature, seed)
    progress = TerminalProgress(quiet)
    write_paraphrases(
        model,
        given_texts(texts, progress),
        count,
        top_p=top_p,
        temperature=temperature,
        seed=seed,
        device=device,
        as_json=as_json,
        progress=progress,
    )


def texts_to_write(source: str, count: int, why_not: str) -> list[str]:
    """The distinct texts of a corpus; UsageError or EncoderError where none can be written of them.

    Parameters
    ----------
    why_not : why the model cannot write; empty where it can.
    """
    from retrieval.evaluation.evaluate import read_texts
    from retrieval.training.generate import check_drawing

    if why_not:
        raise EncoderError(
            f"--generate needs a model that can write, and {why_not}: leave --generate out to train the encoder alone"
        )
    check_drawing(count)
    texts = read_texts(source)
    if not texts:
        raise CorpusError(f"{source} holds no text to write paraphrases of")
    return texts


def write_paraphrases(
    model: str,
    texts: Iterable[str],
    count: int,
    *,
    top_p: float = 0.95,
    temperature: float = 1.0,
    seed: int,
    device: str,
    as_json: bool,
    progress: TerminalProgress,
) -> None:
    """Print what the model writes, text by text."""
    from retrieval.training.generate import generate
    from retrieval.training.simbert import load_writer
    from retrieval.training.unilm import NoWriterError

    try:
        writer = load_writer(model, device, progress.note)
    except NoWriterError as error:
        raise EncoderError(
            f"{error}: it cannot write; retr train simbert makes a model that can, of a BERT with one"
        ) from None
    asked, without, waiting = 0, 0, iter(texts)
    with progress.stage("writing", "texts", len(texts) if isinstance(texts, list) else None) as advance:
        while batch := list(itertools.islice(waiting, _BATCH)):
            written = generate(writer, batch, count, top_p=top_p, temperature=temperature, seed=seed, on_batch=advance)
            for text, paraphrases in zip(batch, written, strict=True):
                asked, without = asked + 1, without + (not paraphrases)
                for rank, (other, score) in enumerate(paraphrases, 1):
                    if as_json:
                        print_json({"text": text, "rank": rank, "paraphrase": other, "score": round(score, 6)})
                    else:
                        print_line(text, other, f"{score:.4f}")
            sys.stdout.flush()
    if not asked:
        raise UsageError("no text: standard input holds none")
    if without:
        progress.note(f"{without:,} of {asked:,} texts have no paraphrase: nothing else was drawn that ends in time")
