"""Kill a build at random moments: the old index must answer, the resumed build must equal an unbroken one.

    python scripts/check_kill.py titles.txt --rows 20000 --kills 10 [--model FOLDER]

One build is killed again and again, each time somewhere in the work that is left, and goes on with the same command.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RETR = [sys.executable, "-m", "retrieval.cli.main"]


def retr(*arguments: str | Path) -> str:
    done = subprocess.run([*RETR, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"failed: retr {' '.join(map(str, arguments))}\n{done.stderr}")
    return done.stdout


def hits(index: Path, queries: Path) -> list[dict[str, object]]:
    command = [*RETR, "query", "-", "-i", str(index), "--json", "--quiet"]
    done = subprocess.run(command, stdin=queries.open("rb"), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{index} does not answer: {done.stderr}")
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def shards(output: Path) -> int:
    return len(list((output.parent / f".{output.name}.building" / "index" / "embeddings").glob("*.safetensors")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="a text file, a document a line")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--model", default="multilingual-e5-small")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = options.corpus.read_text(encoding="utf-8").splitlines()
        corpus, old_corpus, queries = folder / "corpus.txt", folder / "old.txt", folder / "queries.txt"
        corpus.write_text("\n".join(lines[: options.rows]) + "\n", encoding="utf-8")
        old_corpus.write_text("\n".join(lines[-1500:]) + "\n", encoding="utf-8")
        queries.write_text("\n".join(lines[options.rows : options.rows + 100]) + "\n", encoding="utf-8")
        model = ["--model", options.model, "--quiet"]

        start = time.monotonic()
        retr("index", corpus, "-o", folder / "unbroken", *model)
        whole = time.monotonic() - start
        expected = hits(folder / "unbroken", queries)
        shutil.rmtree(folder / "unbroken")
        print(f"unbroken build: {whole:.0f} s, {len(expected):,} hits")

        output = folder / "index"
        retr("index", old_corpus, "-o", output, *model)
        old = hits(output, queries)
        command = [*RETR, "index", str(corpus), "-o", str(output), *model]
        # A share of the whole each time, so that the kills spread over the build; restarts cost some seconds each.
        moments = [chance.uniform(0, 2 * whole / (options.kills + 1)) for _ in range(options.kills)]
        for number, moment in enumerate(moments, 1):
            build = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                build.wait(timeout=moment)
                print(f"kill {number}: after {moment:.1f} s the build was done already")
            except subprocess.TimeoutExpired:
                build.send_signal(signal.SIGKILL)
                build.wait()
                answered = hits(output, queries)
                if answered not in (old, expected):
                    sys.exit(f"kill {number}: the index answers neither as the old one nor as the new one")
                which = "the old index" if answered == old else "the new index"
                print(f"kill {number}: after {moment:.1f} s, {shards(output)} shards kept, {which} answers")
            if build.returncode == 0 or answered == expected:
                if hits(output, queries) != expected:
                    sys.exit("the resumed build's hits differ from the unbroken one's")
                retr("index", old_corpus, "-o", output, *model)
        retr("index", corpus, "-o", output, *model)
        if hits(output, queries) != expected:
            sys.exit("the resumed build's hits differ from the unbroken one's")
        left = [path.name for path in folder.iterdir() if path.name.endswith(".building")]
        print(
            f"resumed build: {len(expected):,} hits identical to the unbroken build's; left behind: {left or 'nothing'}"
        )


if __name__ == "__main__":
    main()
