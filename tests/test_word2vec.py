"""Word vectors: worked means, the file formats against gensim, the mapped copy, and files that lie."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.encoders import word2vec
from retrieval.encoders import words as words_room
from retrieval.encoders.base import EncoderCounts, EncoderSettings
from retrieval.encoders.word2vec import Word2VecEncoder
from retrieval.encoders.words import segment
from retrieval.errors import EncoderError, UsageError

pytestmark = pytest.mark.skipif(
    None in (importlib.util.find_spec("gensim"), importlib.util.find_spec("jieba")),
    reason="the extra word2vec is not installed",
)

ROWS = {"手机": [1, 2], "充值": [3, -4], "怎么": [0.5, 0.25], "iphone": [8, 0], "NASA": [0, 16]}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("RETR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def settings(**changes: Any) -> EncoderSettings:
    fields = {"source": "x", "pooling": "average", "query_prompt": "", "document_prompt": "", "max_length": 0}
    return EncoderSettings(**{**fields, **changes})


def as_text(rows: dict[str, list[float]], header: str | None = None) -> bytes:
    lines = [header or f"{len(rows)} {len(next(iter(rows.values())))}"]
    lines += [" ".join([word, *map(repr, values)]) for word, values in rows.items()]
    return ("\n".join(lines) + "\n").encode()


def as_binary(rows: dict[str, list[float]], header: str | None = None, newline: bytes = b"\n") -> bytes:
    first = header or f"{len(rows)} {len(next(iter(rows.values())))}"
    body = [word.encode() + b" " + np.array(values, "<f4").tobytes() + newline for word, values in rows.items()]
    return first.encode() + b"\n" + b"".join(body)


def random_rows(count: int, dimension: int, seed: int = 0) -> dict[str, list[float]]:
    random = np.random.default_rng(seed)
    return {f"w{i}": random.normal(size=dimension).astype(np.float32).tolist() for i in range(count)}


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def load(path: Path, **changes: Any) -> Word2VecEncoder:
    return Word2VecEncoder(path, settings(**changes))


@pytest.fixture
def encoder(tmp_path: Path) -> Word2VecEncoder:
    return load(written(tmp_path / "vectors.txt", as_text(ROWS)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("手机", [1, 2]),
        ("手机充值", [2, -1]),  # ((1, 2) + (3, -4)) / 2
        ("手机手机充值", [5 / 3, 0]),  # each occurrence counts: (2 x (1, 2) + (3, -4)) / 3
        ("手机魑魅充值？", [2, -1]),  # unknown words are left out of the mean
        ("手机 \t\n 充值", [2, -1]),
        ("iPhone", [8, 0]),  # not there as it is, but lower-cased
        ("NASA", [0, 16]),
        ("nasa", [0, 0]),  # only the vocabulary's own capitals are kept
        ("魑魅", [0, 0]),
        ("", [0, 0]),
        ("   ", [0, 0]),
    ],
)
def test_vector_of_a_text_is_the_mean_of_its_known_words(
    encoder: Word2VecEncoder, text: str, expected: list[float]
) -> None:
    (vector,) = encoder.encode([text])
    assert vector.tolist() == np.float32(expected).tolist()


def test_encode_gives_float32_rows_for_none_one_and_many_texts(encoder: Word2VecEncoder) -> None:
    for count in (0, 1, 700):
        vectors = encoder.encode(["手机"] * count)
        assert (vectors.shape, vectors.dtype) == ((count, 2), np.float32)
    assert (encoder.dimension, encoder.family) == (2, "raw")


def test_on_batch_gets_all_texts(encoder: Word2VecEncoder) -> None:
    seen: list[int] = []
    encoder.encode(["手机"] * 600, on_batch=seen.append)
    assert sum(seen) == 600
    assert len(seen) > 1


def test_counts_tell_words_unknown_words_and_texts_without_vector(encoder: Word2VecEncoder) -> None:
    assert segment("手机，怎么 充值") == ["手机", "，", "怎么", "充值"]
    encoder.encode(["手机，怎么 充值", "，，", ""])
    assert encoder.counts == EncoderCounts(tokens=6, unknown=3, without_vector=2)
    encoder.encode(["手机"])
    assert encoder.counts == EncoderCounts(tokens=7, unknown=3, without_vector=2)


def test_max_length_cuts_words_and_counts_the_text(encoder: Word2VecEncoder, tmp_path: Path) -> None:
    short = load(tmp_path / "vectors.txt", max_length=2)
    vectors = short.encode(["手机手机充值", "手机 充值", "手机"])
    assert vectors.tolist() == [[1, 2], [2, -1], [1, 2]]
    assert short.counts == EncoderCounts(truncated=1, tokens=5)


def test_prompts_are_put_before_texts_of_their_kind(encoder: Word2VecEncoder, tmp_path: Path) -> None:
    prompted = load(tmp_path / "vectors.txt", query_prompt="充值 ")
    assert prompted.encode(["手机"], "query").tolist() == [[2, -1]]
    assert prompted.encode(["手机"], "document").tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "last-avg"}, "unknown pooling 'last-avg'.*expected average"),
        ({"max_length": -1}, "max length -1 is negative"),
    ],
)
def test_settings_that_do_not_suit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(written(tmp_path / "vectors.txt", as_text(ROWS)), **changes)


def test_vectors_agree_with_gensims_get_mean_vector(tmp_path: Path) -> None:
    from gensim.models import KeyedVectors

    path = written(tmp_path / "vectors.txt", as_text(random_rows(300, 50)))
    keyed = KeyedVectors.load_word2vec_format(str(path))
    random = np.random.default_rng(1)
    words = [[f"w{i}" for i in random.integers(0, 400, random.integers(1, 30))] for _ in range(60)]
    expected = [keyed.get_mean_vector(each, pre_normalize=False) for each in words]
    # float32 sums there, float64 sums here
    np.testing.assert_allclose(load(path).encode([" ".join(each) for each in words]), expected, atol=1e-6)


def test_words_are_those_of_jiebas_lcut(encoder: Word2VecEncoder) -> None:
    import jieba

    jieba.setLogLevel("CRITICAL")
    for text in [
        "如何看待NASA回应「嫦娥五号」发射成功？",
        "This is Jieba 分词 v0.42, 50%的-人",
        "𠮷野家  \r\n小明硕士毕业于",
        "",
    ]:
        assert segment(text) == [word for word in jieba.lcut(text) if word.strip()]


def test_words_added_to_jiebas_own_dictionary_change_no_vector(encoder: Word2VecEncoder) -> None:
    import jieba

    jieba.setLogLevel("CRITICAL")
    jieba.add_word("手机充值")
    try:
        assert jieba.lcut("手机充值") == ["手机充值"]
        assert segment("手机充值") == ["手机", "充值"]
    finally:
        jieba.del_word("手机充值")
        jieba.finalseg.Force_Split_Words.discard("手机充值")


WORDS = st.sampled_from([*ROWS, "iPhone", "，", " ", "魑魅"])


@given(st.lists(st.lists(WORDS, max_size=12).map("".join), min_size=1, max_size=6), st.integers(0, 600))
def test_vector_never_depends_on_its_batch(shared_encoder: Word2VecEncoder, texts: list[str], others: int) -> None:
    batched = shared_encoder.encode(["手机怎么充值"] * others + texts)[others:]
    alone = np.concatenate([shared_encoder.encode([text]) for text in texts])
    assert batched.tobytes() == alone.tobytes()
    assert np.isfinite(batched).all()


@pytest.fixture(scope="module")
def shared_encoder(tmp_path_factory: pytest.TempPathFactory) -> Word2VecEncoder:
    folder = tmp_path_factory.mktemp("shared")
    rows = dict(zip(ROWS, random_rows(len(ROWS), 7).values(), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETR_CACHE", str(folder / "cache"))
        return load(written(folder / "vectors.txt", as_text(rows)))


def test_mean_of_the_largest_values_is_finite(tmp_path: Path) -> None:
    largest = float(np.finfo(np.float32).max)
    encoder = load(written(tmp_path / "vectors.txt", as_text({"手机": [largest], "充值": [largest]})))
    assert encoder.encode(["手机充值手机"]).tolist() == [[largest]]


def test_mean_over_more_words_than_one_part_counts_them_all(
    encoder: Word2VecEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word2vec, "_PART_ROWS", 2)
    assert encoder.encode(["手机 手机 充值 怎么 怎么"]).tolist() == [[np.float32(6 / 5), np.float32(0.5 / 5)]]


FORMATS: dict[str, Callable[[dict[str, list[float]]], bytes]] = {
    "vectors.txt": as_text,
    "vectors.vec": lambda rows: as_text(rows).replace(b"\n", b" \n"),  # fastText's space at the end of a row
    "windows.txt": lambda rows: as_text(rows).replace(b"\n", b"\r\n"),
    "vectors.bin": as_binary,  # with a newline after each row, as word2vec.c writes it
    "gensim.bin": lambda rows: as_binary(rows, newline=b""),
    "vectors.txt.gz": lambda rows: gzip.compress(as_text(rows)),
    "vectors.bin.gz": lambda rows: gzip.compress(as_binary(rows)),
    "binary.txt": as_binary,
    "text.bin": as_text,
    "gzipped.bin": lambda rows: gzip.compress(as_text(rows)),
    "plain.gz": as_text,
    "no-suffix": as_binary,
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_give_equal_vectors_whatever_the_name(tmp_path: Path, name: str) -> None:
    rows = {**ROWS, **{word: values[:2] for word, values in random_rows(200, 2).items()}}
    path = written(tmp_path / name, FORMATS[name](rows))
    encoder = load(path)
    assert encoder.encode(list(rows)).tolist() == [np.float32(values).tolist() for values in rows.values()]
    assert encoder.counts.unknown == 0


@pytest.mark.parametrize("binary", [False, True])
def test_file_that_gensim_writes_is_read(tmp_path: Path, binary: bool) -> None:
    from gensim.models import KeyedVectors

    keyed = KeyedVectors(2)
    keyed.add_vectors(list(ROWS), np.float32(list(ROWS.values())))
    keyed.save_word2vec_format(str(tmp_path / "vectors"), binary=binary)
    assert load(tmp_path / "vectors").encode(["手机充值"]).tolist() == [[2, -1]]


def test_limit_reads_the_first_words_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word2vec, "LIMIT", 2)
    for name, content in {"a.txt": as_text(ROWS, "9 2"), "a.bin": as_binary(ROWS, "9 2")}.items():
        encoder = load(written(tmp_path / name, content))
        assert encoder.encode(["手机", "充值", "怎么"]).tolist() == [[1, 2], [3, -4], [0, 0]]


def test_limit_is_part_of_the_cache_and_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "vectors.txt", as_text(ROWS))
    whole = load(path).fingerprint
    monkeypatch.setattr(word2vec, "LIMIT", 2)
    cut = load(path)
    assert cut.encode(["怎么"]).tolist() == [[0, 0]]
    assert cut.fingerprint != whole


def test_repeated_word_keeps_its_first_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a binary file of more than one chunk gensim 4.4 itself says "unexpected end of input" here.
    rows = random_rows(1000, 300)
    content = b"1001 300\nw0 " + np.ones(300, "<f4").tobytes() + as_binary(rows).partition(b"\n")[2]
    monkeypatch.setattr(word2vec, "LIMIT", 900)
    encoder = load(written(tmp_path / "vectors.bin", content))
    assert encoder.encode(["w0", "w898", "w899"]).tolist() == [[1] * 300, rows["w898"], [0] * 300]
    assert encoder._vectors.shape == (899, 300)  # gensim leaves a row of zeros for the repeated word
    text = b"3 2\n" + as_text({"手机": [1, 2], "充值": [3, 4]}).partition(b"\n")[2] + "手机 5 6\n".encode()
    assert load(written(tmp_path / "vectors.txt", text)).encode(["手机", "充值"]).tolist() == [[1, 2], [3, 4]]


def test_word_cut_within_a_character_is_passed_over(tmp_path: Path) -> None:
    # word2vec.c keeps a fixed number of bytes of a word
    content = as_text({**ROWS, **random_rows(200, 2)}).replace("怎么".encode(), "怎么".encode()[:-1])
    encoder = load(written(tmp_path / "vectors.txt", content))
    assert encoder.encode(["手机", "怎么"]).tolist() == [[1, 2], [0, 0]]


def test_fingerprint_follows_the_vectors_and_the_settings_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "vectors.txt", as_text(ROWS))
    first = load(path).fingerprint
    elsewhere = written(tmp_path / "copy.vec", path.read_bytes())
    assert load(elsewhere, source="elsewhere").fingerprint == first
    others = {
        load(written(tmp_path / "other.txt", as_text({**ROWS, "手机": [1, 3]}))).fingerprint,
        load(path, query_prompt="充值").fingerprint,
        load(path, max_length=9).fingerprint,
    }
    assert len({first, *others}) == 4


def cached_folder(cache: Path) -> Path:
    (folder,) = (cache / "word2vec").iterdir()
    return folder


def test_vectors_are_mapped_from_plain_files_in_the_cache(tmp_path: Path, cache: Path) -> None:
    notes: list[str] = []
    path = written(tmp_path / "vectors.txt", as_text(ROWS))
    for _ in range(2):
        encoder = Word2VecEncoder(path, settings(), notes.append)
        assert isinstance(encoder._vectors.base, np.memmap)
    assert len(notes) == 1
    assert str(path) in notes[0]
    folder = cached_folder(cache)
    assert {each.name for each in folder.iterdir()} == {"vectors.npy", "vocabulary.json", "sha256.json"}
    stored = np.load(folder / "vectors.npy", allow_pickle=False)
    assert (stored.dtype, stored.tolist()) == (np.float32, list(ROWS.values()))
    assert json.loads((folder / "vocabulary.json").read_text(encoding="utf-8")) == list(ROWS)


CHILD = """
import sys
from pathlib import Path
from retrieval.encoders.base import EncoderSettings
from retrieval.encoders.word2vec import Word2VecEncoder
encoder = Word2VecEncoder(Path(sys.argv[1]), EncoderSettings("x", "average", "", "", 0))
print("gensim" in sys.modules, encoder.encode(["手机怎么充值", "iPhone"]).tobytes().hex())
"""


def in_a_process(code: str, *arguments: Path | str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        check=False,
    )


def test_second_load_equals_the_first_without_gensim_and_prints_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "vectors.txt", as_text(ROWS))
    first, second = in_a_process(CHILD, path), in_a_process(CHILD, path)
    assert first.stderr == second.stderr == ""  # jieba tells its progress there where nothing holds it back
    (loaded, vectors), (reloaded, vectors_again) = first.stdout.split(), second.stdout.split()
    assert (loaded, reloaded) == ("True", "False")
    assert vectors == vectors_again == load(path).encode(["手机怎么充值", "iPhone"]).tobytes().hex()


def test_jieba_compiled_anew_raises_no_warning(tmp_path: Path) -> None:
    # Its strings hold "\.", which Python reports where it has no compiled file, here as an error.
    code = "from retrieval.encoders.words import segment; print(segment('手机充值'))"
    (tmp_path / "pkg_resources.py").write_text(
        "import warnings\nwarnings.warn('pkg_resources is deprecated as an API.', UserWarning)\nraise ImportError\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = in_a_process(code, PYTHONPATH=path, PYTHONPYCACHEPREFIX=str(tmp_path / "compiled"))
    assert (done.stdout.strip(), done.stderr) == ("['手机', '充值']", "")


@pytest.mark.parametrize("name", ["vectors.npy", "vocabulary.json", "sha256.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_damaged_cache_is_made_again(tmp_path: Path, cache: Path, name: str, damage: str) -> None:
    path = written(tmp_path / "vectors.txt", as_text(ROWS))
    load(path)
    target = cached_folder(cache) / name
    content = bytearray(target.read_bytes())
    if damage == "missing":
        target.unlink()
    else:
        content[-2] ^= 1
        target.write_bytes(content[:-3] if damage == "cut" else content)
        os.utime(target, ns=(1, 1))  # as good as any other time than before
    assert load(path).encode(list(ROWS)).tolist() == list(ROWS.values())
    assert [each.name for each in (cache / "word2vec").iterdir()] == [cached_folder(cache).name]


def test_failed_write_leaves_nothing_in_the_cache(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    path = written(tmp_path / "vectors.txt", as_text(ROWS))
    with monkeypatch.context() as patch:
        patch.setattr(word2vec, "sync_tree", full)
        with pytest.raises(EncoderError, match=r"cannot be kept in .*No space left on device.*RETR_CACHE"):
            load(path)
    assert list((cache / "word2vec").iterdir()) == []
    assert load(path).dimension == 2


def test_second_writer_of_the_same_vectors_does_no_harm(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "vectors.txt", as_text(ROWS))
    keep = word2vec._keep

    def overtaken(folder: Path, words: list[str], vectors: Any) -> None:
        keep(folder, words, vectors)
        keep(folder, words, vectors)

    monkeypatch.setattr(word2vec, "_keep", overtaken)
    assert load(path).encode(["手机"]).tolist() == [[1, 2]]
    assert len(list((cache / "word2vec").iterdir())) == 1


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty: expected word vectors"),
    "empty-gz": (gzip.compress(b""), "is empty"),
    "pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        "pointer of git-lfs.*git lfs pull",
    ),
    "no-header": (as_text(ROWS).partition(b"\n")[2], "first line of .* is '手机 1 2': expected 'count dimension'"),
    "words-header": (as_text(ROWS, "five two"), "first line of .* is 'five two'"),
    "zero-rows": (b"0 2\n", "first line of .* is '0 2'"),
    "zero-dimension": (b"5 0\n", "first line of .* is '5 0'"),
    "vast-dimension": (b"5 99999999999999999999\n", "first line of .* is '5 99999999999999999999'"),
    "long-line": (b"x" * 10_000, "first line of .* is 'x{60}\\.\\.\\.'"),
    "only-header": (b"5 2\n", "ends after 0 rows, expected the 5 of its first line"),
    "fewer-rows": (as_text(ROWS, "6 2"), "ends after 5 rows, expected the 6"),
    "vast-count": (as_text(ROWS, "123456789012 2"), "ends after 5 rows, expected the 123,456,789,012"),
    "more-rows": (as_text(ROWS, "4 2"), "goes on after the 4 rows of 2 values"),
    "short-row": (as_text({**ROWS, "怎么": [1]}), "line 4: 1 values after the word, expected the 2 of the first line"),
    "long-row": (as_text({**ROWS, "手机": [1, 2, 3]}, "5 2"), "line 2: 3 values after the word, expected the 2"),
    "word-with-space": (as_text({**ROWS, "New York": [1, 2]}), "line 7: 3 values after the word"),
    "blank-line": (as_text(ROWS).replace("怎么".encode(), "\n怎么".encode()), "line 4: 0 values after the word"),
    "tabs": (as_text(ROWS).replace(b" ", b"\t"), "line 2: 0 values after the word.*each after one space"),
    "letters": (as_text(ROWS).replace(b"0.25", b"a.25"), "line 4: expected a number, not 'a.25'"),
    "letters-first": (as_text(ROWS).replace(b" 1 2", b" 1 two"), "line 2: expected a number, not 'two'"),
    "two-spaces": (as_text(ROWS).replace(b" 0.25", b"  "), "line 4: 1 values after the word"),
    "nan": (as_text({**ROWS, "怎么": [1, float("nan")]}), "the vector of '怎么' holds NaN or infinity"),
    "infinity": (as_text({**ROWS, "充值": [float("-inf"), 1]}), "the vector of '充值' holds NaN or infinity"),
    "beyond-float32": (as_text({**ROWS, "充值": [1e60, 1]}), "the vector of '充值' holds NaN or infinity"),
    "binary-nan": (as_binary({**ROWS, "怎么": [1, float("nan")]}), "the vector of '怎么' holds NaN or infinity"),
    "binary-fewer-rows": (as_binary(ROWS, "6 2"), "ends after 5 rows, expected the 6"),
    "binary-more-rows": (as_binary(ROWS, "4 2"), "goes on after the 4 rows of 2 values"),
    "binary-cut": (as_binary(ROWS)[:-5], "ends after 4 rows, expected the 5"),
    "binary-longer-rows": (as_binary(random_rows(50, 20), "50 19"), "goes on after the 50 rows of 19 values"),
    "binary-shorter-rows": (as_binary(random_rows(50, 20), "50 21"), r"ends after 4\d rows, expected the 50"),
    "gbk": (as_text(ROWS).decode().encode("gbk"), "3 of 5 words are not UTF-8, the first in row 1"),
    "pickle": (b"\x80\x04\x95\x10\x00\x00\x00", r"binary file of another format.*b'\\x80\\x04"),
    "fasttext": (b"\xba\x16\x4f\x2f\x0c\x00\x00\x00", "binary file of another format"),
    "zip": (b"PK\x03\x04\x14\x00\x00\x00", "binary file of another format"),
    "noise": (np.random.default_rng(0).bytes(5000), "binary file of another format"),
    "cut-gz": (gzip.compress(as_text(ROWS))[:-12], r"cannot be read \(Compressed file ended"),
    "damaged-gz": (gzip.compress(as_text(ROWS))[:12] + b"\xff" * 60, "cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_file_is_refused_in_one_line(tmp_path: Path, cache: Path, case: str) -> None:
    content, message = BAD[case]
    path = written(tmp_path / "vectors", content)
    with pytest.raises(EncoderError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert not (cache / "word2vec").exists()


def test_binary_rows_of_another_dimension_are_noticed_before_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word2vec, "LIMIT", 30)
    with pytest.raises(EncoderError, match=r"of 30 words are not UTF-8, the first in row 2.*rows of 19 values"):
        load(written(tmp_path / "vectors.bin", as_binary(random_rows(50, 20), "50 19")))


def test_file_that_is_not_there_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"no file '.*/nowhere\.bin'"):
        load(tmp_path / "nowhere.bin")
    with pytest.raises(EncoderError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(EncoderError, match=r"cannot be read \(Not a directory\)"):
        load(written(tmp_path / "vectors.txt", as_text(ROWS)) / "more")


def test_missing_gensim_is_named_with_the_extra_and_not_needed_once_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = written(tmp_path / "known.txt", as_text(ROWS))
    load(known)
    for name in ("gensim", "gensim.models"):
        monkeypatch.setitem(sys.modules, name, None)
    assert load(known).dimension == 2
    with pytest.raises(EncoderError, match=r"need gensim .*pip install 'retr\[word2vec\]'"):
        load(written(tmp_path / "new.txt", as_text({**ROWS, "新": [1, 1]})))


def test_missing_jieba_is_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jieba", None)
    words_room._segmenter.cache_clear()
    with pytest.raises(EncoderError, match=r"jieba is needed .*pip install jieba, or 'retr\[word2vec\]'"):
        load(written(tmp_path / "vectors.txt", as_text(ROWS)))


def test_module_alone_loads_neither_gensim_nor_jieba() -> None:
    code = "import sys, retrieval.encoders.word2vec; print([m for m in ('gensim', 'jieba') if m in sys.modules])"
    assert in_a_process(code).stdout.strip() == "[]"
