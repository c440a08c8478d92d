"""Conditions on columns: what they match, against Python's own comparisons, and what they refuse."""

from __future__ import annotations

import contextlib
import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import UsageError
from retrieval.index.documents import Documents, write_documents
from retrieval.index.filters import matching_rows

ROWS: dict[str, list[Any]] = {
    "id": ["a", "b", "c", "d"],
    "text": ["一", "二 it's", "三", "四 100%"],
    "year": [2023, 2024, None, 2026],
    "类别": ["退款", "换货", "退款", None],
    "page count": ["12", "", "7.5", "100"],
    "ok": [True, False, None, True],
    "day": [datetime.date(2024, 1, 1), datetime.date(2025, 1, 1), None, datetime.date(2023, 6, 30)],
    "seen": [datetime.datetime(2024, 1, 1, 8), None, None, datetime.datetime(2025, 1, 1)],
    "price": [decimal.Decimal("1.50"), decimal.Decimal("2.00"), None, decimal.Decimal("10.25")],
    "score": [1.5, float("nan"), 2.0, None],
    "tags": [["x"], [], None, ["y"]],
    "a.b": [1, 2, 3, 4],
    "in": [1, 2, 3, 4],
}
TYPES = {"text": pa.large_string(), "seen": pa.timestamp("us", "UTC"), "score": pa.float64()}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    path = tmp_path_factory.mktemp("filters") / "d.arrow"
    whole = pa.RecordBatch.from_pydict({name: pa.array(values, TYPES.get(name)) for name, values in ROWS.items()})
    write_documents([whole.slice(0, 1), whole.slice(1, 2), whole.slice(3)], path)
    return Documents(path)


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("year >= 2024", "bd"),
        ("类别 = '退款' and year >= 2023", "a"),
        ("类别 == '退款' OR year <> 2023", "abcd"),
        ("not 类别 = '退款'", "b"),
        ("not (year = 2024 or year = 2026)", "a"),
        ("year = 2023 or year = 2024 and ok = true", "a"),
        ("(year = 2023 or year = 2024) and ok = false", "b"),
        ("year in (2023, 2026)", "ad"),
        ("year not in (2023, 2026)", "b"),
        ("year between 2024 and 2026", "bd"),
        ("year not between 2024 and 2026", "a"),
        ("year > 2023.5 and year < 2.0255e3", "b"),
        ("year > -1", "abd"),
        ("year is null", "c"),
        ("year is not null", "abd"),
        ("`page count` > 7", "acd"),
        ('"page count" <= 12', "ac"),
        ("`page count` = ''", "b"),
        ("`page count` is null", ""),
        ("ok = true", "ad"),
        ("ok != TRUE", "b"),
        ("day >= '2024-01-01'", "ab"),
        ("seen = '2024-01-01T08:00:00'", "a"),
        ("seen < '2024-06-01 00:00:00+08:00'", "a"),
        ("price > 1.5", "bd"),
        ("price = 10.25", "d"),
        ("score > 1", "ac"),
        ("tags is null", "c"),
        ("text = '二 it''s'", "b"),
        ("text like '%it''s'", "b"),
        ("text like '_'", "ac"),
        ("text not like '%100%'", "abc"),
        ("id in ('a', 'z')", "a"),
        ("a.b = 3 and `in` < 4", "c"),
        ("  year=2024\tand\n`in`=2 ", "b"),
        ("year in (" + ", ".join(map(str, range(5000))) + ")", "abd"),
    ],
)
def test_condition_matches(condition: str, ids: str, documents: Documents) -> None:
    matching = matching_rows(condition, documents)
    assert matching.shape == (4,)
    assert "".join(id for id, matches in zip(ROWS["id"], matching, strict=True) if matches) == ids


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("", "at character 1 stands the end, expected a column"),
        (
            "colour = 'red'",
            r"at character 1: no column 'colour' is kept; there are id \(string\), text .*year \(int64\)",
        ),
        ("year = 1 and colour = 'red'", "at character 14: no column 'colour'"),
        ("year", "stands the end, expected a comparison"),
        ("year >", "at character 7 stands the end, expected a value"),
        ("year = 2024 2025", "at character 13 stands '2025', expected 'and', 'or' or the end"),
        ("(year = 2024", "stands the end, expected '\\)'"),
        ("year in 2024", r"stands '2024', expected '\('"),
        ("year = '2024'", "at character 8: column 'year' holds int64, and '2024' is a text"),
        ("year = true", "column 'year' holds int64, and 'true' is true or false"),
        ("ok = 1", "column 'ok' holds bool, and '1' is a number"),
        ("ok < true", "have no order"),
        ("day > 2024", "column 'day' holds date32.*, and '2024' is a number"),
        ("day > 'soon'", "column 'day' holds date32.*, and 'soon' is none"),
        ("tags = 'x'", "column 'tags' holds list"),
        ("year like '2%'", "'like' wants a column of texts"),
        ("类别 = 3", "Failed to parse string: '退款'"),
        ("year = 99999999999999999999", "column 'year' holds int64, and '99999999999999999999' is none"),
        ("text = 'abc", "at character 8 stands a quote that is not closed"),
        ("page-count = 3", "at character 5 stands '-'.*`backquotes`"),
        ("year = 2024; drop table x", "at character 12 stands ';'"),
        ("__import__('os').system('true')", r"'\.', which has no meaning here"),
        ("__import__('os')", "no column '__import__'"),
        ("year = __import__('os')", "stands '__import__', expected a value"),
        ("year = 2024 and lambda: 0", "stands ':'"),
        ("year = 2024 and lambda", "no column 'lambda'"),
        ("text like '\ud800'", "holds half a surrogate pair"),
        ("text = f'{x}'", "stands 'f', expected a value"),
        ("year = 1_000", "'1', which has no meaning here"),
        ("(" * 500 + "year = 1" + ")" * 500, "more than 100 parentheses"),
        ("not " * 500 + "year = 1", "more than 100 parentheses"),
    ],
)
def test_condition_is_refused(condition: str, message: str, documents: Documents) -> None:
    with pytest.raises(UsageError, match=message):
        matching_rows(condition, documents)


@given(st.text(max_size=30))
def test_no_text_does_anything_but_match_or_be_refused(documents: Documents, text: str) -> None:
    with contextlib.suppress(UsageError):
        assert matching_rows(text, documents).shape == (4,)


@given(st.text(max_size=8), st.lists(st.text(max_size=8), min_size=1, max_size=9))
def test_quoted_text_is_found_as_it_is(tmp_path_factory: pytest.TempPathFactory, text: str, others: list[str]) -> None:
    try:
        "".join([text, *others]).encode()
    except UnicodeEncodeError:
        return
    path = tmp_path_factory.mktemp("texts") / "d.arrow"
    values = [*others, text]
    ids = [str(i) for i in range(len(values))]
    write_documents(
        [pa.RecordBatch.from_pydict({"id": ids, "text": pa.array(values, pa.large_string()), "kept": values})], path
    )
    quoted = text.replace("'", "''")
    expected = [value == text for value in values]
    assert matching_rows(f"kept = '{quoted}'", Documents(path)).tolist() == expected
    assert matching_rows(f"text != '{quoted}'", Documents(path)).tolist() == [not each for each in expected]


_leaves = st.tuples(st.sampled_from(["year", "in"]), st.sampled_from(["=", "!=", "<", ">="]), st.integers(0, 2030))
_trees = st.recursive(
    _leaves,
    lambda inner: st.one_of(st.tuples(st.just("not"), inner), st.tuples(inner, st.sampled_from(["and", "or"]), inner)),
)


@given(_trees)
def test_a_tree_of_comparisons_means_what_sql_means(documents: Documents, tree: Any) -> None:
    matching = matching_rows(_written(tree), documents)
    assert matching.tolist() == [_meant(tree, row) is True for row in range(4)]


def _written(tree: Any) -> str:
    if tree[0] == "not":
        return f"not ({_written(tree[1])})"
    if tree[1] in ("and", "or"):
        return f"({_written(tree[0])}) {tree[1]} ({_written(tree[2])})"
    return f"`{tree[0]}` {tree[1]} {tree[2]}"


def _meant(tree: Any, row: int) -> bool | None:
    """Three-valued, None for unknown."""
    if tree[0] == "not":
        inner = _meant(tree[1], row)
        return None if inner is None else not inner
    if tree[1] in ("and", "or"):
        one, other = _meant(tree[0], row), _meant(tree[2], row)
        decisive = tree[1] == "or"
        if decisive in (one, other):
            return decisive
        return None if None in (one, other) else not decisive
    value = ROWS[tree[0]][row]
    if value is None:
        return None
    return {"=": value == tree[2], "!=": value != tree[2], "<": value < tree[2], ">=": value >= tree[2]}[tree[1]]
