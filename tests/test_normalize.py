"""Text normalisation: names of steps, worked values, laws, what is missing."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.encoders.normalize import STEPS, Normalizer, parse_normalization
from retrieval.errors import EncoderError, UsageError


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("", ()),
        (" ", ()),
        ("nfkc", ("nfkc",)),
        ("nfkc,t2s,lower", ("nfkc", "t2s", "lower")),
        ("lower, nfkc", ("lower", "nfkc")),
    ],
)
def test_parse_normalization_keeps_the_order(text: str, steps: tuple[str, ...]) -> None:
    assert parse_normalization(text) == steps


@given(st.lists(st.sampled_from(STEPS)))
def test_names_joined_are_parsed_back(steps: list[str]) -> None:
    assert list(parse_normalization(",".join(steps))) == steps


@pytest.mark.parametrize(
    ("text", "wrong"), [("nfkc,NFD", "NFD"), ("s2t", "s2t"), ("nfkc,,lower", ""), ("lower,", ""), (",", "")]
)
def test_unknown_step_is_named_with_the_choices(text: str, wrong: str) -> None:
    with pytest.raises(UsageError, match=f"unknown normalisation '{wrong}': expected one or more of nfkc, t2s, lower"):
        parse_normalization(text)


def test_normalizer_refuses_an_unknown_step() -> None:
    with pytest.raises(UsageError, match="unknown normalisation 'upper'"):
        Normalizer(["upper"])


@pytest.mark.parametrize(
    ("steps", "text", "expected"),
    [
        ("nfkc", "ＡＢＣ", "ABC"),
        ("lower", "ＡＢＣ", "ａｂｃ"),
        ("nfkc,lower", "ＡＢＣ", "abc"),
        ("nfkc", "１２３㎏①", "123kg1"),
        ("t2s", "後臺", "后台"),
        ("t2s", "手機", "手机"),
        ("t2s", "乾隆的衣服乾了", "乾隆的衣服干了"),  # by the phrase: an emperor's name keeps its character
        ("t2s", "软件 abc", "软件 abc"),
        ("nfkc,t2s,lower", "ＩＰＨＯＮＥ手機後臺", "iphone手机后台"),
        # U+2103 is nothing that lower knows before nfkc makes two characters of it: the order counts
        ("nfkc,lower", "\u2103", "°c"),
        ("lower,nfkc", "\u2103", "°C"),
    ],
)
def test_normalizer_of_worked_values(steps: str, text: str, expected: str) -> None:
    if "t2s" in steps:
        pytest.importorskip("opencc")
    assert Normalizer(parse_normalization(steps))(text) == expected


@given(st.text())
def test_no_steps_change_nothing(text: str) -> None:
    assert Normalizer(())(text) == text


@pytest.mark.parametrize("step", ["nfkc", "lower"])
@given(text=st.text(st.characters(codec="utf-8")))
def test_step_twice_is_the_step_once(step: str, text: str) -> None:
    normalizer = Normalizer([step])
    assert normalizer(normalizer(text)) == normalizer(text)


@given(text=st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF, exclude_characters="薴乾")))
def test_t2s_twice_is_t2s_once_but_for_rare_characters(text: str) -> None:
    pytest.importorskip("opencc")
    normalizer = Normalizer(["t2s"])
    assert normalizer(normalizer(text)) == normalizer(text)


@given(st.lists(st.sampled_from(("nfkc", "lower")), max_size=4), st.text())
def test_steps_are_applied_one_after_the_other(steps: list[str], text: str) -> None:
    expected = text
    for step in steps:
        expected = Normalizer([step])(expected)
    assert Normalizer(steps)(text) == expected


def test_t2s_without_opencc_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opencc", None)
    with pytest.raises(EncoderError, match=r"needs the package opencc.*pip install 'retr\[t2s\]'"):
        Normalizer(["t2s"])
    assert Normalizer(["nfkc"])("Ａ") == "A"  # the other steps need nothing


def test_t2s_of_half_a_surrogate_pair_is_one_clear_error() -> None:
    pytest.importorskip("opencc")
    with pytest.raises(UsageError, match="half a surrogate pair"):
        Normalizer(["t2s"])("a\ud800")
