"""A condition on columns, as people write it -> which rows meet it.

    category = '退款' and year >= 2024 and not (url is null or `page count` in (1, 2))

A parser of its own, because the language is small and nothing in it may be code: every token is matched by one regular
expression, names are looked up among the columns, values become Arrow scalars of the column's type, and Arrow compares
them. sqlglot and duckdb read all of SQL, of which a condition must then be told apart from the rest, by as many lines
as are here, and neither knows the columns' types before it runs.

    condition  = all { "or" all }              all = term { "and" term }
    term       = "not" term | "(" condition ")" | column test
    test       = operator value | ["not"] "in" "(" value { "," value } ")" | ["not"] "between" value "and" value
               | ["not"] "like" 'pattern' | "is" ["not"] "null"
    operator   = "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">="
    column     = name | `any name` | "any name"        value = 'text' | number | true | false

Text stands in single quotes, doubled inside ('it''s'); dates and times too ('2024-05-01'). In a pattern % stands for
any characters and _ for one. A column of texts that is compared with a number is read as numbers, as CSV files have
them; an empty text is null there. What is null meets no condition but `is null`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retrieval.errors import UsageError
from retrieval.index.documents import Documents

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<number>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
    | '(?P<text>(?:[^']|'')*)'
    | `(?P<ticked>[^`]+)` | "(?P<quoted>(?:[^"]|"")+)"
    | (?P<name>[^\W\d][\w.]*)
    | (?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,)""",
    re.VERBOSE,
)
_COMPARISONS: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "=": lambda column, value: column == value,
    "==": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
    "<>": lambda column, value: column != value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
}
_WORDS = {"and", "or", "not", "in", "between", "like", "is", "null", "true", "false"}
_DEEPEST = 100  # parentheses and nots inside each other


class _Token(NamedTuple):
    kind: str
    value: Any
    place: int


def matching_rows(condition: str, documents: Documents) -> NDArray[np.bool_]:
    """The rows that meet a condition, shape (n,).

    Raises
    ------
    UsageError
        It cannot be read (the place is named), names a column that is not there (the columns are), or compares a
        column with what it cannot hold (both types are).
    """
    if any("\ud800" <= character <= "\udfff" for character in condition):
        raise UsageError(f"the condition {condition!r} holds half a surrogate pair, which is not a character")
    parser = _Parser(condition, documents.schema)
    expression = parser.parse()
    from pyarrow import dataset  # Arrow's way to compute an expression for every row, in their order

    table = documents.table(sorted(parser.used))
    try:
        scanner = dataset.dataset(table).scanner(columns={"matches": expression})
        return np.asarray(scanner.to_table()["matches"].fill_null(False).to_numpy(), dtype=np.bool_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"the condition {condition!r} does not suit the columns: {_first_line(error)}") from None


class _Parser:
    """A condition and the columns -> an Arrow expression; `used` then holds the columns that it names."""

    def __init__(self, condition: str, schema: pa.Schema) -> None:
        self.condition, self.schema = condition, schema
        self.used: set[str] = set()
        self.tokens = self._tokens()
        self.next = self.depth = 0

    def parse(self) -> pc.Expression:
        expression = self._any()
        if (token := self._peek()).kind != "end":
            raise self._wrong(token, "'and', 'or' or the end")
        return expression

    def _tokens(self) -> list[_Token]:
        tokens, place = [], 0
        while place < len(self.condition):
            match = _TOKEN.match(self.condition, place)
            if match is None:
                what = self.condition[place]
                told = (
                    "a quote that is not closed"
                    if what in "'\"`"
                    else f"{what!r}, which has no meaning here (a name with such characters stands in `backquotes`)"
                )
                raise UsageError(f"{self._at(place)} stands {told}")
            kind, value = str(match.lastgroup), match[str(match.lastgroup)]
            if kind == "text":
                value = value.replace("''", "'")
            elif kind in ("ticked", "quoted"):
                kind, value = "column", value.replace('""', '"') if kind == "quoted" else value
            elif kind == "name" and value.lower() in _WORDS:
                kind, value = "word", value.lower()
            elif kind == "name":
                kind = "column"
            if kind != "space":
                tokens.append(_Token(kind, value, place))
            place = match.end()
        return [*tokens, _Token("end", "", len(self.condition))]

    def _any(self) -> pc.Expression:
        expression = self._all()
        while self._take("word", "or"):
            expression = expression | self._all()
        return expression

    def _all(self) -> pc.Expression:
        expression = self._term()
        while self._take("word", "and"):
            expression = expression & self._term()
        return expression

    def _term(self) -> pc.Expression:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UsageError(f"{self._at(self._peek().place)}: more than {_DEEPEST} parentheses and nots in each other")
        if self._take("word", "not"):
            expression = ~self._term()
        elif self._take("sign", "("):
            expression = self._any()
            self._expect("sign", ")")
        else:
            expression = self._test()
        self.depth -= 1
        return expression

    def _test(self) -> pc.Expression:
        column = self._column()
        token = self._peek()
        if token.kind == "sign" and token.value in _COMPARISONS:
            self.next += 1
            return self._compared(column, token.value)
        if self._take("word", "is"):
            negated = self._take("word", "not")
            self._expect("word", "null")
            null = self._is_null(column)
            return ~null if negated else null
        negated = self._take("word", "not")
        if self._take("word", "in"):
            expression = self._in(column)
        elif self._take("word", "between"):
            low = self._compared(column, ">=")
            self._expect("word", "and")
            expression = low & self._compared(column, "<=")
        elif self._take("word", "like"):
            expression = self._like(column)
        else:
            raise self._wrong(self._peek(), "a comparison such as = 'text', >= 2024, in (...), like '%..%' or is null")
        return ~expression if negated else expression

    def _compared(self, column: str, sign: str) -> pc.Expression:
        field, value = self._pair(column, self._value())
        if pa.types.is_boolean(value.type) and sign not in ("=", "==", "!=", "<>"):
            raise UsageError(f"column {column!r} holds true and false, which have no order: compare it with = or !=")
        return _COMPARISONS[sign](field, pc.scalar(value))

    def _in(self, column: str) -> pc.Expression:
        self._expect("sign", "(")
        either = [self._compared(column, "=")]
        while self._take("sign", ","):
            either.append(self._compared(column, "="))
        self._expect("sign", ")")
        while len(either) > 1:  # a tree that is not deep, however many there are
            either = [one | other for one, other in zip(either[::2], either[1::2], strict=False)] + (
                either[-1:] if len(either) % 2 else []
            )
        return either[0]

    def _like(self, column: str) -> pc.Expression:
        token = self._value()
        if token.kind != "text" or not _is_text(self.schema.field(column).type):
            raise UsageError(
                f"{self._at(token.place)}: 'like' wants a column of texts and a 'pattern' in single quotes"
            )
        return pc.match_like(pc.field(column), token.value)

    def _is_null(self, column: str) -> pc.Expression:
        return pc.field(column).is_null()

    def _column(self) -> str:
        token = self._peek()
        if token.kind != "column":
            raise self._wrong(token, "a column")
        if token.value not in self.schema.names:
            names = ", ".join(f"{field.name} ({field.type})" for field in self.schema)
            raise UsageError(f"{self._at(token.place)}: no column {token.value!r} is kept; there are {names}")
        self.next += 1
        self.used.add(token.value)
        return str(token.value)

    def _value(self) -> _Token:
        token = self._peek()
        if token.kind not in ("text", "number") and not (token.kind == "word" and token.value in ("true", "false")):
            raise self._wrong(token, "a value: 'text' in single quotes, a number, true or false")
        self.next += 1
        return token

    def _pair(self, column: str, token: _Token) -> tuple[pc.Expression, pa.Scalar]:
        """What is compared with what: the column, or the numbers in it, and a value of its type."""
        type, field = self.schema.field(column).type, pc.field(column)
        try:
            if token.kind == "word" and pa.types.is_boolean(type):
                return field, pa.scalar(token.value == "true")
            if token.kind == "number" and _is_number(type):
                return field, _number(token.value)
            if token.kind == "number" and _is_text(type):
                null = pa.scalar(None, type)
                return pc.if_else(field == "", null, field).cast(pa.float64()), pa.scalar(float(token.value))
            if token.kind == "text" and _is_text(type):
                return field, pa.scalar(token.value, type)
            if token.kind == "text" and pa.types.is_temporal(type):
                return field, _moment(token.value, type)
        except (ValueError, OverflowError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(
                f"{self._at(token.place)}: column {column!r} holds {type}, and {token.value!r} is none: "
                f"{_first_line(error)}"
            ) from None
        kind = {"text": "a text", "number": "a number", "word": "true or false"}[token.kind]
        raise UsageError(f"{self._at(token.place)}: column {column!r} holds {type}, and {token.value!r} is {kind}")

    def _peek(self) -> _Token:
        return self.tokens[self.next]

    def _take(self, kind: str, value: str) -> bool:
        token = self._peek()
        taken = (token.kind, token.value) == (kind, value)
        self.next += taken
        return taken

    def _expect(self, kind: str, value: str) -> None:
        if not self._take(kind, value):
            raise self._wrong(self._peek(), f"{value!r}")

    def _wrong(self, token: _Token, expected: str) -> UsageError:
        found = "the end" if token.kind == "end" else repr(str(token.value))
        return UsageError(f"{self._at(token.place)} stands {found}, expected {expected}")

    def _at(self, place: int) -> str:
        return f"condition {self.condition!r}: at character {place + 1}"


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type))


def _number(digits: str) -> pa.Scalar:
    try:
        return pa.scalar(int(digits))
    except ValueError:
        return pa.scalar(float(digits))


def _moment(text: str, type: pa.DataType) -> pa.Scalar:
    """A date, time or timestamp in ISO 8601; without a zone it is in UTC, where the column has zones."""
    if pa.types.is_date(type):
        return pa.scalar(datetime.date.fromisoformat(text), type)
    if pa.types.is_time(type):
        return pa.scalar(datetime.time.fromisoformat(text), type)
    if not pa.types.is_timestamp(type):
        raise ValueError("expected a date, a time or a timestamp")
    moment = datetime.datetime.fromisoformat(text)
    if type.tz is not None and moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    if type.tz is None and moment.tzinfo is not None:
        raise ValueError("the column has no time zones")
    return pa.scalar(moment, type)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
