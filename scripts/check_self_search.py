"""Index texts and look each of them up: every one must find itself first, with a score above .999.

    python scripts/check_self_search.py lcqmc/test.txt

Lines of tab-separated columns count as sentence pairs with a label; each distinct sentence is a document.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import retrieval

THRESHOLD = 0.999


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--transform", default="auto")
    parser.add_argument("--index", default="auto", help="kind of index (%(default)s)")
    options = parser.parse_args()
    sentences: dict[str, None] = {}
    for line in options.file.read_text(encoding="utf-8").split("\n"):
        cells = line.split("\t")
        sentences.update(dict.fromkeys(cells[:2] if len(cells) > 1 else cells))
    sentences.pop("", None)
    texts = list(sentences)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.tsv"
        corpus.write_text("text\n" + "\n".join(texts) + "\n", encoding="utf-8")
        start = time.monotonic()
        index = retrieval.Index.build(corpus, Path(folder) / "index", transform=options.transform, index=options.index)
        print(f"{len(index):,} distinct sentences indexed in {time.monotonic() - start:.0f} s")
        print(f"transform {index.manifest.transform['name']}, {index.manifest.index['dimension']} dimensions")
        print(f"index {index.manifest.index['spec']}")
        first = [hits[0] for hits in index.search(texts, k=1)]
    lost = [text for text, hit in zip(texts, first, strict=True) if hit.text != text]
    lowest = min(hit.score for hit in first)
    print(f"found themselves first: {len(texts) - len(lost):,} of {len(texts):,}; lowest score {lowest:.6f}")
    if lost or lowest <= THRESHOLD:
        sys.exit(f"not all found themselves above {THRESHOLD}: {lost[:5]}")


if __name__ == "__main__":
    main()
