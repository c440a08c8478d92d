"""Train word vectors on a corpus of one text a line, with the words that retrieval's word2vec encoder finds.

    python scripts/train_word2vec.py corpus.txt vectors.txt --dimension 200

`-` reads standard input. An output that ends in .bin is written in the binary format, any other in the text format;
with .gz after it, gzipped. Two runs give the same vectors only with --workers 1 and PYTHONHASHSEED=0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gensim.models import Word2Vec

from retrieval.encoders.words import segment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="a UTF-8 file with one text a line, or -")
    parser.add_argument("output", type=Path)
    parser.add_argument("--dimension", type=int, default=200)
    parser.add_argument("--window", type=int, default=5, help="words on either side that count as near (%(default)s)")
    parser.add_argument("--min-count", type=int, default=2, help="rarer words get no vector (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="threads (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cbow", action="store_true", help="continuous bag of words instead of skip-gram")
    options = parser.parse_args()
    if not options.output.parent.is_dir():
        parser.error(f"no folder {options.output.parent}: make it first")
    start = time.monotonic()
    sentences = list(_sentences(options.corpus, parser))
    words = sum(map(len, sentences))
    print(f"{len(sentences):,} texts, {words:,} words, segmented in {time.monotonic() - start:.0f} s", file=sys.stderr)
    start = time.monotonic()
    try:
        model = Word2Vec(
            sentences,
            vector_size=options.dimension,
            window=options.window,
            min_count=options.min_count,
            sg=int(not options.cbow),
            epochs=options.epochs,
            workers=options.workers,
            seed=options.seed,
        )
    except RuntimeError as error:  # no word is frequent enough
        sys.exit(f"{options.corpus} cannot be trained on: {error}")
    model.wv.save_word2vec_format(str(options.output), binary=str(options.output).removesuffix(".gz").endswith(".bin"))
    print(f"{len(model.wv):,} words trained in {time.monotonic() - start:.0f} s: {options.output}", file=sys.stderr)


def _sentences(corpus: str, parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    if corpus == "-":
        sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        yield from _segmented(sys.stdin)
        return
    try:
        with Path(corpus).open(encoding="utf-8") as file:
            yield from _segmented(file)
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"{corpus} cannot be read: {error}")


def _segmented(lines: Iterable[str]) -> Iterator[list[str]]:
    for line in lines:
        if words := segment(line):
            yield words


if __name__ == "__main__":
    main()
