"""corpus -> index folder: what is built, what survives, what starts anew."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_tiny_model, random_texts
from numpy.typing import NDArray

from retrieval import CorpusOptions, Index
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.encoders.transformer import TransformerEncoder
from retrieval.errors import BuildError, IndexFolderError, TransformError, UsageError
from retrieval.index import folder as layout


class Notes:
    """A progress that remembers what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def stage(self, name: str, unit: str, total: int | None, done: int = 0) -> Any:
        from retrieval.types import NoProgress

        return NoProgress().stage(name, unit, total, done)

    def __contains__(self, part: str) -> bool:
        return any(part in note for note in self.notes)


class CountingEncoder:
    """The tiny encoder, counting the texts it is given and failing when it is told to."""

    def __init__(self, inner: TransformerEncoder, fail_after: int | None = None) -> None:
        self._inner, self.fail_after = inner, fail_after
        self.texts: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(
        self, texts: Sequence[str], kind: Any = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        if self.fail_after is not None and len(self.texts) >= self.fail_after:
            raise KeyboardInterrupt
        self.texts += texts
        return self._inner.encode(texts, kind, on_batch)


@pytest.fixture(scope="module")
def inner(tiny_model: Path) -> TransformerEncoder:
    encoder = load_encoder(resolve_settings(tiny_model), "cpu")
    assert isinstance(encoder, TransformerEncoder)
    return encoder


@pytest.fixture
def encoder(inner: TransformerEncoder) -> CountingEncoder:
    return CountingEncoder(inner)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred rows a shard, so that small corpora have several."""
    monkeypatch.setattr("retrieval.pipeline.build.SHARD_ROWS", 100)


SMALL_SHARDS = "import retrieval.pipeline.build as p, retrieval.cli.main as m; p.SHARD_ROWS = 100; m.main()"


def hits_of(index: Index, texts: Sequence[str], k: int = 5) -> list[list[tuple[str, float]]]:
    return [[(hit.doc_id, hit.score) for hit in hits] for hits in index.search(texts, k)]


def test_every_document_finds_itself_first(corpus: Path, tmp_path: Path, encoder: CountingEncoder) -> None:
    index = Index.build(corpus, tmp_path / "i", encoder=encoder, transform="rotate-16")
    texts = corpus.read_text(encoding="utf-8").splitlines()
    for row, hits in enumerate(index.search(texts, k=1)):
        assert hits[0].doc_id == str(row)
        assert hits[0].score > 0.999


def test_transform_of_the_index_is_the_one_fitted_on_its_embeddings(
    corpus: Path, tmp_path: Path, encoder: CountingEncoder, inner: TransformerEncoder
) -> None:
    from retrieval.transforms.apply import unit_vectors
    from retrieval.transforms.moments import Moments
    from retrieval.transforms.whitening import Whitening

    index = Index.build(corpus, tmp_path / "i", encoder=encoder, transform="whiten-8")
    texts = corpus.read_text(encoding="utf-8").splitlines()
    embeddings = inner.encode(texts)
    moments = Moments(inner.dimension)
    moments.update(embeddings)
    transform, _ = Whitening.fit(moments, 8)
    vectors = unit_vectors(embeddings, transform)
    expected = np.argsort(-(vectors[:20] @ vectors.T), axis=1)[:, :3]
    assert [[int(hit.doc_id) for hit in hits] for hits in index.search(texts[:20], k=3)] == expected.tolist()


def test_each_distinct_text_is_encoded_once_even_across_shards(tmp_path: Path, encoder: CountingEncoder) -> None:
    distinct = random_texts(150)
    texts = distinct + distinct[::-1] + distinct[:7]
    (tmp_path / "c.txt").write_text("\n".join(texts), encoding="utf-8")
    index = Index.build(tmp_path / "c.txt", tmp_path / "i", encoder=encoder, transform="none")
    assert sorted(encoder.texts) == sorted(distinct)
    assert index.manifest.documents["distinct_texts"] == 150
    # The same text three times: equal scores, the smaller row first.
    assert [hit.doc_id for hit in index.search(distinct[3], k=3)[0]] == ["3", "296", "303"]


def test_the_index_is_the_same_whether_texts_are_encoded_in_one_piece_or_many(
    tmp_path: Path, encoder: CountingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = random_texts(250) + random_texts(50)
    (tmp_path / "c.txt").write_text("\n".join(texts), encoding="utf-8")
    whole = Index.build(tmp_path / "c.txt", tmp_path / "whole", encoder=encoder, transform="none")
    monkeypatch.setattr("retrieval.index.documents._PIECE_CHARACTERS", 100)
    monkeypatch.setattr("retrieval.encoders.batches._PART_CHARACTERS", 10)
    monkeypatch.setattr("retrieval.corpus.records._BATCH_CHARACTERS", 30)
    pieces = Index.build(tmp_path / "c.txt", tmp_path / "pieces", encoder=encoder, transform="none")
    for row, (one, other) in enumerate(zip(whole.search(texts, k=1), pieces.search(texts, k=1), strict=True)):
        assert one[0].doc_id == other[0].doc_id == str(row % 250)
        assert one[0].score == pytest.approx(other[0].score, abs=1e-5)


def test_of_spellings_that_the_encoder_takes_for_one_the_text_itself_comes_first(
    tmp_path: Path, encoder: CountingEncoder
) -> None:
    spellings = [f"{'A' if i & 1 else 'a'}{'B' if i & 2 else 'b'}{'C' if i & 4 else 'c'}" for i in range(8)]
    (tmp_path / "c.txt").write_text("\n".join([*random_texts(30), *spellings]), encoding="utf-8")
    index = Index.build(tmp_path / "c.txt", tmp_path / "i", encoder=encoder, transform="none")
    for k in (1, 3, 8):
        assert [hits[0].text for hits in index.search(spellings, k)] == spellings
    found = index.search("ABC", 8)[0]
    # The others follow by scores that differ in the last bits, as their batches did.
    assert sorted(hit.text for hit in found) == sorted(spellings)


def test_an_interrupted_build_goes_on_and_gives_the_same_index(
    corpus: Path, tmp_path: Path, inner: TransformerEncoder
) -> None:
    unbroken = Index.build(corpus, tmp_path / "unbroken", encoder=CountingEncoder(inner), transform="whiten-8")
    notes = Notes()
    with pytest.raises(KeyboardInterrupt):
        Index.build(
            corpus,
            tmp_path / "i",
            encoder=CountingEncoder(inner, fail_after=300),
            transform="whiten-8",
            progress=notes,
        )
    assert "the same command goes on from there" in notes
    assert not (tmp_path / "i").exists()
    resuming, notes = CountingEncoder(inner), Notes()
    resumed = Index.build(corpus, tmp_path / "i", encoder=resuming, transform="whiten-8", progress=notes)
    assert len(resuming.texts) == 200
    assert "going on: 300 of 500 distinct texts are encoded already" in notes
    for name in (layout.VECTORS, layout.TRANSFORM, layout.DOCUMENTS):
        assert (tmp_path / "i" / name).read_bytes() == (tmp_path / "unbroken" / name).read_bytes()
    queries = random_texts(50, seed=3)
    assert hits_of(resumed, queries) == hits_of(unbroken, queries)
    assert not (tmp_path / ".i.building").exists()


def test_the_standing_index_answers_while_and_after_a_build_fails(
    corpus: Path, tmp_path: Path, inner: TransformerEncoder
) -> None:
    standing = Index.build(corpus, tmp_path / "i", encoder=CountingEncoder(inner), transform="none")
    before = hits_of(standing, ["一二"])
    other = tmp_path / "other.txt"
    other.write_text("\n".join(random_texts(400, seed=8)), encoding="utf-8")
    with pytest.raises(KeyboardInterrupt):
        Index.build(other, tmp_path / "i", encoder=CountingEncoder(inner, fail_after=200), transform="none")
    assert hits_of(Index.open(tmp_path / "i", encoder=CountingEncoder(inner)), ["一二"]) == before
    rebuilt = Index.build(other, tmp_path / "i", encoder=CountingEncoder(inner), transform="none")
    assert len(rebuilt) == 400
    assert len(Index.open(tmp_path / "i")) == 400


@pytest.mark.parametrize(
    ("change", "reason"),
    [("texts", "the texts changed (500 before, 501 now)"), ("pooling", "pooling 'last-avg' -> 'cls'")],
)
def test_an_unfinished_build_of_something_else_starts_anew_and_says_why(
    corpus: Path, tmp_path: Path, inner: TransformerEncoder, tiny_model: Path, change: str, reason: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        Index.build(corpus, tmp_path / "i", encoder=CountingEncoder(inner, fail_after=300))
    changed = inner
    if change == "texts":
        corpus.write_text(corpus.read_text(encoding="utf-8") + "又一个\n", encoding="utf-8")
    else:
        loaded = load_encoder(resolve_settings(tiny_model, pooling="cls"), "cpu")
        assert isinstance(loaded, TransformerEncoder)
        changed = loaded
    notes, encoder = Notes(), CountingEncoder(changed)
    Index.build(corpus, tmp_path / "i", encoder=encoder, progress=notes)
    assert "starting anew, not from the unfinished build: " in notes
    assert reason in notes
    assert len(encoder.texts) == (501 if change == "texts" else 500)


def test_another_transform_takes_the_embeddings_of_the_standing_index(
    corpus: Path, tmp_path: Path, inner: TransformerEncoder
) -> None:
    Index.build(corpus, tmp_path / "i", encoder=CountingEncoder(inner), transform="none")
    encoder, notes = CountingEncoder(inner), Notes()
    index = Index.build(corpus, tmp_path / "i", encoder=encoder, transform="whiten-8", progress=notes)
    assert encoder.texts == []
    assert index.manifest.transform["name"] == "whiten-8"
    assert "all 500 distinct texts are encoded already" in notes
    fresh = CountingEncoder(inner)
    Index.build(corpus, tmp_path / "i", encoder=fresh, transform="whiten-8", fresh=True)
    assert len(fresh.texts) == 500


def test_a_damaged_shard_is_made_again_and_told(corpus: Path, tmp_path: Path, inner: TransformerEncoder) -> None:
    Index.build(corpus, tmp_path / "i", encoder=CountingEncoder(inner), transform="none")
    shard = tmp_path / "i" / "embeddings" / "000003.safetensors"
    content = bytearray(shard.read_bytes())
    content[-8:] = b"\xff" * 8  # two NaN
    shard.write_bytes(content)
    encoder, notes = CountingEncoder(inner), Notes()
    Index.build(corpus, tmp_path / "i", encoder=encoder, transform="whiten-8", progress=notes)
    assert len(encoder.texts) == 100
    assert "damaged embeddings are made again: 000003.safetensors" in notes


def test_the_current_folder_and_its_parents_are_refused_and_links_are_followed(
    corpus: Path, tmp_path: Path, encoder: CountingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Index.build(corpus, tmp_path / "real", encoder=encoder, transform="none")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "few.txt").write_text("\n".join(random_texts(7)), encoding="utf-8")
    notes = Notes()
    Index.build(tmp_path / "few.txt", tmp_path / "link", encoder=encoder, transform="none", progress=notes)
    assert (tmp_path / "link").is_symlink()
    assert len(Index.open(tmp_path / "real")) == 7
    assert "replacing the index 'real', built " in notes
    monkeypatch.chdir(tmp_path / "real" / "embeddings")
    for output in ("..", "."):
        with pytest.raises((UsageError, IndexFolderError)):
            Index.build(corpus, output, encoder=encoder)


def test_readers_never_fail_while_an_index_is_rebuilt(corpus: Path, tmp_path: Path, inner: TransformerEncoder) -> None:
    import threading

    Index.build(corpus, tmp_path / "i", encoder=inner, transform="none")
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                assert len(Index.open(tmp_path / "i")) == 500
            except BaseException as error:
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(12):
        Index.build(corpus, tmp_path / "i", encoder=inner, transform=("whiten-8", "none")[turn % 2])
    done.set()
    reader.join()
    assert failures == []


def test_m_that_cannot_be_is_refused_before_anything_is_encoded(
    corpus: Path, tmp_path: Path, encoder: CountingEncoder
) -> None:
    with pytest.raises(TransformError, match=r"m = 33 .* rank 32 at most"):
        Index.build(corpus, tmp_path / "i", encoder=encoder, transform="whiten-33")
    (tmp_path / "few.txt").write_text("\n".join(random_texts(5)), encoding="utf-8")
    with pytest.raises(TransformError, match=r"m = 5 .* rank 4 at most"):
        Index.build(tmp_path / "few.txt", tmp_path / "i", encoder=encoder, transform="whiten-5")
    assert encoder.texts == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "few.txt"]


def test_texts_that_the_model_does_not_know_raise_a_warning(tmp_path: Path, encoder: CountingEncoder) -> None:
    # Two special tokens a text, and one that is known or not: 1 of 3 unknown is more than a fifth, 1 of 6 is not.
    (tmp_path / "c.txt").write_text("\u9fa5\n\u9fa4\n", encoding="utf-8")
    notes = Notes()
    documents = Index.build(tmp_path / "c.txt", tmp_path / "i", encoder=encoder, progress=notes).manifest.documents
    assert (documents["tokens"], documents["unknown"]) == (6, 2)
    assert "33.3% of the tokens are unknown to the model" in notes
    (tmp_path / "c.txt").write_text("\u9fa5\na\n", encoding="utf-8")
    notes = Notes()
    Index.build(tmp_path / "c.txt", tmp_path / "i", encoder=encoder, progress=notes)
    assert "unknown to the model" not in notes


def test_auto_falls_back_to_no_transform_where_vectors_have_no_rank(tmp_path: Path, encoder: CountingEncoder) -> None:
    # Characters that the model does not know: two thousand texts, two vectors.
    texts = [chr(0x9000 + i) * (1 + i % 2) for i in range(2000)]
    (tmp_path / "c.txt").write_text("\n".join(texts), encoding="utf-8")
    notes = Notes()
    index = Index.build(tmp_path / "c.txt", tmp_path / "i", encoder=encoder, progress=notes)
    assert index.manifest.transform["name"] == "none"
    assert "transform none instead of whiten-10" in notes


def test_two_builds_of_one_index_are_kept_apart(
    corpus: Path, tmp_path: Path, encoder: CountingEncoder, inner: TransformerEncoder
) -> None:
    class Meddling(CountingEncoder):
        def encode(self, texts: Sequence[str], *args: Any, **options: Any) -> NDArray[np.float32]:
            with pytest.raises(BuildError, match=r"another command is writing"):
                Index.build(corpus, tmp_path / "i", encoder=encoder)
            return super().encode(texts, *args, **options)

    assert len(Index.build(corpus, tmp_path / "i", encoder=Meddling(inner))) == 500


@pytest.mark.parametrize("kind", ["file", "folder of other things", "index of another format"])
def test_an_output_that_is_not_an_index_is_left_alone(
    corpus: Path, tmp_path: Path, encoder: CountingEncoder, kind: str
) -> None:
    output = tmp_path / "out"
    content = output if kind == "file" else output / ("notes.txt" if "other things" in kind else layout.MANIFEST)
    content.parent.mkdir(exist_ok=True)
    content.write_text('{"format": "another", "format_version": 1}')
    with pytest.raises(IndexFolderError, match="is a file" if kind == "file" else "will not be replaced"):
        Index.build(corpus, output, encoder=encoder)
    assert content.read_text() == '{"format": "another", "format_version": 1}'


def test_a_reader_that_opens_while_the_index_is_replaced_sees_one_build_whole(
    corpus: Path, tmp_path: Path, inner: TransformerEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Index.build(corpus, tmp_path / "i", encoder=CountingEncoder(inner), transform="none")
    original, replaced = layout.check_files, []

    def replacing(folder: Path, manifest: layout.Manifest, **options: Any) -> None:
        original(folder, manifest, **options)
        if not replaced:
            replaced.append(True)
            (tmp_path / "few.txt").write_text("\n".join(random_texts(7)), encoding="utf-8")
            Index.build(tmp_path / "few.txt", tmp_path / "i", encoder=CountingEncoder(inner), transform="none")

    monkeypatch.setattr(layout, "check_files", replacing)
    opened = Index.open(tmp_path / "i")
    assert len(opened) == opened.manifest.documents["count"] == 7


def test_kept_columns_and_ids_come_back_in_hits(tmp_path: Path, encoder: CountingEncoder) -> None:
    (tmp_path / "c.csv").write_text("key,title,year\nx1,甲乙丙,2023\nx2,丁戊己,2024\n", encoding="utf-8")
    options = CorpusOptions(id_column="key", text_column="title", keep=("year",))
    index = Index.build(tmp_path / "c.csv", tmp_path / "i", encoder=encoder, corpus=options)
    hit = index.search("丁戊己", k=1)[0][0]
    assert (hit.doc_id, hit.text, dict(hit.fields)) == ("x2", "丁戊己", {"year": "2024"})


def test_manifest_records_what_was_skipped_and_truncated(tmp_path: Path, encoder: CountingEncoder) -> None:
    (tmp_path / "c.txt").write_text("甲\n\n" + "乙 " * 100 + "\n \n", encoding="utf-8")
    documents = Index.build(tmp_path / "c.txt", tmp_path / "i", encoder=encoder).manifest.documents
    assert (documents["count"], documents["rows_read"], documents["truncated"]) == (2, 4, 1)
    assert (documents["skipped"], documents["first_skipped_rows"]) == (2, [1, 3])


def test_kill_at_random_moments_leaves_the_old_index_and_a_build_that_goes_on(
    tmp_path: Path, corpus: Path, inner: TransformerEncoder, tiny_model: Path
) -> None:
    """Ten builds, each killed once; scripts/check_kill.py does the same with the default model."""
    many = tmp_path / "many.txt"
    many.write_text("\n".join(random_texts(4000, seed=5)), encoding="utf-8")
    unbroken = Index.build(many, tmp_path / "unbroken", encoder=inner, transform="whiten-8")
    queries = random_texts(40, seed=6)
    expected = hits_of(unbroken, queries)
    old = hits_of(Index.build(corpus, tmp_path / "i", encoder=inner, transform="none"), queries)
    command = [sys.executable, "-c", SMALL_SHARDS, "index", str(many), "-o", str(tmp_path / "i")]
    command += ["--model", str(tiny_model), "--transform", "whiten-8", "--quiet"]
    chance = random.Random(0)
    killed = 0
    for _ in range(10):
        build = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wanted = chance.randrange(1, 40)
        staged = tmp_path / ".i.building" / "index" / "embeddings"
        while build.poll() is None and (len(list(staged.glob("*.safetensors"))) if staged.exists() else 0) < wanted:
            time.sleep(0.005)
        time.sleep(chance.random() * 0.05)
        build.send_signal(signal.SIGKILL)
        if build.wait() == -signal.SIGKILL:
            killed += 1
            assert hits_of(Index.open(tmp_path / "i", encoder=inner), queries) in (old, expected)
        resumed = Index.build(many, tmp_path / "i", encoder=inner, transform="whiten-8")
        assert hits_of(resumed, queries) == expected
        Index.build(corpus, tmp_path / "i", encoder=inner, transform="none")
    assert killed >= 5


def test_control_c_exits_with_130_and_the_same_command_goes_on(tmp_path: Path, tiny_model: Path) -> None:
    many = tmp_path / "many.txt"
    many.write_text("\n".join(random_texts(30_000, seed=5)), encoding="utf-8")
    command = [
        sys.executable,
        "-c",
        SMALL_SHARDS,
        "index",
        str(many),
        "-o",
        str(tmp_path / "i"),
        "--model",
        str(tiny_model),
    ]
    build = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has made its children deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    staged = tmp_path / ".i.building" / "index" / "embeddings"
    while build.poll() is None and (len(list(staged.glob("*.safetensors"))) if staged.exists() else 0) < 3:
        time.sleep(0.005)
    os.kill(build.pid, signal.SIGINT)
    _, stderr = build.communicate(timeout=60)
    assert build.returncode == 130, stderr
    assert "retr: interrupted" in stderr
    assert "the same command goes on from there" in stderr
    assert "Traceback" not in stderr
    assert not (tmp_path / "i").exists()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "going on: " in done.stderr


def test_index_refuses_an_encoder_that_did_not_build_it(corpus: Path, tmp_path: Path, encoder: CountingEncoder) -> None:
    from retrieval.errors import EncoderError

    Index.build(corpus, tmp_path / "i", encoder=encoder)
    other = load_encoder(resolve_settings(make_tiny_model(tmp_path / "other", seed=1)), "cpu")
    with pytest.raises(EncoderError, match="was built by another encoder"):
        Index.open(tmp_path / "i", encoder=other)


def test_an_index_opened_by_a_relative_path_answers_from_another_folder(
    tiny_model: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = Index.build(corpus, "here", model=tiny_model, transform="rotate-4").search("文本")
    index = Index.open("here")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert index.search("文本") == expected
