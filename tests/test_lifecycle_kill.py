"""SIGKILL in the middle of add, delete and reindex: the old state or the new one answers, and the command succeeds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import random_texts, write_jsonl
from made_up_encoder import MadeUpEncoder

from retrieval import CorpusOptions, Index

TEXTS = random_texts(260, seed=21)
CHANGES = {
    "add": "index.add(folder / 'more.jsonl')",
    "delete": "index.delete([f'd{i}' for i in range(0, 100, 7)])",
    "reindex": "index.reindex(transform='whiten-6')",
}
SHARES = (0.0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)

# Every call that reaches the disk counts twice, before and after; at the number given the process kills itself.
CHILD = """
import os, shutil, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import retrieval.pipeline.build
retrieval.pipeline.build.SHARD_ROWS = 20
import retrieval.pipeline.add, retrieval.pipeline.delete, retrieval.pipeline.reindex
from made_up_encoder import MadeUpEncoder
from retrieval import Index
from retrieval import storage
folder, last = Path(sys.argv[2]), int(sys.argv[3])
moments = 0

def counted(function):
    def call(*arguments, **options):
        moment()
        result = function(*arguments, **options)
        moment()
        return result
    return call

def moment():
    global moments
    moments += 1
    if moments == last:
        os.kill(os.getpid(), signal.SIGKILL)

index = Index.open(folder / "i", encoder=MadeUpEncoder())
for owner, name in ((os, "link"), (os, "fsync"), (os, "rename"), (os, "replace"), (os, "unlink"), (os, "mkdir"),
                    (os, "rmdir"), (storage, "_exchange")):
    setattr(owner, name, counted(getattr(owner, name)))
CHANGE
print(moments)
"""


def hits(index: Index) -> list[list[tuple[str, float]]]:
    return [[(hit.doc_id, round(hit.score, 5)) for hit in found] for found in index.search(TEXTS[:40:4], 12)]


@pytest.mark.slow
@pytest.mark.parametrize("verb", CHANGES)
def test_kill_at_any_moment_leaves_the_old_state_or_the_new(verb: str, tmp_path: Path) -> None:
    folder, pristine = tmp_path / "work", tmp_path / "pristine"
    pristine.mkdir()
    documents = [{"id": f"d{i}", "text": TEXTS[i], "year": i} for i in range(100)]
    corpus = write_jsonl(pristine / "c.jsonl", documents)
    options = CorpusOptions(id_column="id", keep=("year",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retrieval.pipeline.build.SHARD_ROWS", 20)
        index = Index.build(corpus, pristine / "i", encoder=MadeUpEncoder(), corpus=options, transform="whiten-8")
    index.add(write_jsonl(pristine / "first.jsonl", [{"id": "f", "text": TEXTS[200], "year": 1}]))
    index.delete(["d5"])
    write_jsonl(
        pristine / "more.jsonl",
        [{"id": f"d{i}" if i < 120 else f"n{i}", "text": TEXTS[i], "year": 0} for i in range(90, 190)],
    )
    old = hits(index)

    def change(last: int) -> subprocess.CompletedProcess[str]:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(pristine, folder)
        code = CHILD.replace("CHANGE", CHANGES[verb])
        return subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parent), str(folder), str(last)],
            capture_output=True,
            text=True,
            check=False,
        )

    unbroken = change(-1)
    assert unbroken.returncode == 0, unbroken.stderr
    count, new = int(unbroken.stdout), hits(Index.open(folder / "i", encoder=MadeUpEncoder()))
    assert count > 20
    assert new != old
    answered = []
    for share in SHARES:
        killed = change(max(1, round(share * count)))
        assert killed.returncode == -9, killed.stderr
        after = Index.open(folder / "i", encoder=MadeUpEncoder())
        after.verify()
        answered.append(hits(after))
        assert answered[-1] in (old, new)
        scope = {"index": after, "folder": folder}
        exec(CHANGES[verb], scope)
        assert hits(after) == hits(Index.open(folder / "i", encoder=MadeUpEncoder())) == new
        after.verify()
        assert not (folder / ".i.building").exists()
    assert answered[0] == old
    assert answered[-1] == new
