"""CSV, TSV, JSON Lines and plain text -> record batches of the chosen columns."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from retrieval.corpus.columns import Column, Selection
from retrieval.corpus.files import CorpusFile
from retrieval.corpus.lines import decoded_lines
from retrieval.corpus.tables import BATCH_ROWS, Select
from retrieval.errors import CorpusError

_BATCH_CHARACTERS = 1 << 23
_PEEKED_RECORDS = 1000
"""JSON objects read before their columns and types are settled."""

_Row = tuple[int, Sequence[Any]]  # the line it begins on, and its values in the order of the selection


def read_text(file: CorpusFile, select: Select, encoding: str) -> Iterator[pa.RecordBatch]:
    """A document a line."""
    select([Column("text", "string", True)])
    with file.open() as stream:
        lines = decoded_lines(stream, file.name, encoding)
        rows = ((number, (line.rstrip("\r\n"),)) for number, line in enumerate(lines, 1))
        yield from _batches(rows, pa.schema([("text", pa.large_string())]), file)


def read_csv(file: CorpusFile, select: Select, encoding: str) -> Iterator[pa.RecordBatch]:
    """Comma-separated with a header, quoted as RFC 4180 has it."""
    with file.open() as stream:
        yield from _headed(csv_rows(decoded_lines(stream, file.name, encoding), file), select, file)


def read_tsv(file: CorpusFile, select: Select, encoding: str) -> Iterator[pa.RecordBatch]:
    """Tab-separated with a header, never quoted: a quotation mark is a character like any other."""
    with file.open() as stream:
        lines = decoded_lines(stream, file.name, encoding)
        rows = ((number, line.rstrip("\r\n").split("\t")) for number, line in enumerate(lines, 1))
        yield from _headed(rows, select, file)


def read_jsonl(file: CorpusFile, select: Select, encoding: str) -> Iterator[pa.RecordBatch]:
    """A JSON object a line. `a.b` is the field b of the object a; a missing field is null."""
    with file.open() as stream:
        records = json_records(decoded_lines(stream, file.name, encoding), file)
        peeked = list(itertools.islice(records, _PEEKED_RECORDS))
        if not peeked:
            return
        found = _json_columns([record for _, record in peeked])
        selection = select(list(found.values()))
        kept = {name: _JSON_TYPES.get(found[name].type, pa.string()) for name in selection.keep}
        schema = _schema(selection, kept)

        def row(number: int, record: dict[str, Any]) -> _Row:
            where = f"{file.name} line {number}"
            values = [_json_text(_field(record, selection.text), selection.text, where)]
            if selection.id is not None:
                values.append(_json_id(_field(record, selection.id), selection.id, where))
            values += [_json_kept(_field(record, name), type, name, where) for name, type in kept.items()]
            return number, values

        rows = (row(number, record) for number, record in itertools.chain(peeked, records))
        yield from _batches(rows, schema, file)


def csv_rows(lines: Iterator[str], file: CorpusFile) -> Iterator[_Row]:
    """Rows with the line each begins on, quoted as RFC 4180 has it; CorpusError names the line of a broken one."""
    csv.field_size_limit(2**31 - 1)  # the module's own limit, 131,072 characters, is less than a long document
    reader = csv.reader(lines, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise CorpusError(
                f"{file.name} line {start}: the CSV row that begins here is broken ({error}): "
                'a quotation mark inside a quoted value is written twice (""), and every quote is closed'
            ) from None
        yield start, row


def _headed(rows: Iterator[_Row], select: Select, file: CorpusFile) -> Iterator[pa.RecordBatch]:
    first = next(rows, None)
    if first is None:
        return
    header = [str(name) for name in first[1]]
    if repeated := {name for name in header if header.count(name) > 1}:
        raise CorpusError(f"{file.name}: the header names column {sorted(repeated)[0]!r} more than once")
    selection = select([Column(name, "string", True) for name in header])
    kept = dict.fromkeys(selection.keep, pa.string())
    places = [header.index(name) for name in _names(selection)]

    def chosen() -> Iterator[_Row]:
        for number, row in rows:
            if len(row) == 0 or (len(row) == 1 and row[0] == "" and len(header) > 1):
                if len(header) > 1:
                    continue  # an empty line is no record
                row = [""]
            if len(row) != len(header):
                raise CorpusError(
                    f"{file.name} line {number}: {len(row)} columns, expected {len(header)} as in the header"
                )
            yield number, [row[place] for place in places]

    yield from _batches(chosen(), _schema(selection, kept), file)


def _names(selection: Selection) -> list[str]:
    return [selection.text, *([selection.id] if selection.id is not None else []), *selection.keep]


def _schema(selection: Selection, kept: dict[str, pa.DataType]) -> pa.Schema:
    fields = [("text", pa.large_string())]
    if selection.id is not None:
        fields.append(("id", pa.string()))
    return pa.schema(fields + list(kept.items()))


def _batches(rows: Iterable[_Row], schema: pa.Schema, file: CorpusFile) -> Iterator[pa.RecordBatch]:
    for block in _blocks(rows):
        columns = zip(*(values for _, values in block), strict=True)
        try:
            arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        except OverflowError:
            raise CorpusError(
                f"{file.name} lines {block[0][0]} to {block[-1][0]}: a kept whole number is beyond 64 bits: "
                f"write it as a string, or leave its column out of --keep"
            ) from None
        except UnicodeEncodeError:
            number = next(number for number, values in block if any(map(_holds_surrogate, values)))
            raise CorpusError(
                f"{file.name} line {number}: a value holds half a surrogate pair (\\ud800 to \\udfff), "
                f"which is not a character"
            ) from None
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _blocks(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Rows in blocks that fit in memory, however long the texts are."""
    block: list[_Row] = []
    characters = 0
    for row in rows:
        block.append(row)
        characters += len(row[1][0] or "")
        if len(block) == BATCH_ROWS or characters > _BATCH_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block


def _holds_surrogate(value: Any) -> bool:
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)


def json_records(lines: Iterator[str], file: CorpusFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """The object of each line that is not blank, with the line's number; CorpusError names a line that is none."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            shown = line.strip()
            detail = getattr(error, "msg", "nested too deeply")
            raise CorpusError(
                f"{file.name} line {number} is not JSON ({detail}): {shown[:60]!r}; expected one object a line, "
                'such as {"text": "..."}'
            ) from None
        if not isinstance(record, dict):
            raise CorpusError(
                f"{file.name} line {number}: expected a JSON object, got {_json_type(record)}: "
                'JSON Lines has one object a line, such as {"text": "..."}'
            )
        yield number, record


def _json_columns(records: list[dict[str, Any]]) -> dict[str, Column]:
    """The columns of the records, nested ones as `a.b`, each with the one type that its values have."""
    types: dict[str, set[str]] = {}

    def note(record: dict[str, Any], prefix: str) -> None:
        for key, value in record.items():
            types.setdefault(prefix + key, set())
            if not _is_null(value):
                types[prefix + key].add(_json_type(value))
            if isinstance(value, dict):
                note(value, f"{prefix}{key}.")

    for record in records:
        note(record, "")
    return {name: Column(name, _joined(kinds), "string" in kinds or not kinds) for name, kinds in types.items()}


def _joined(kinds: set[str]) -> str:
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else "mixed values" if kinds else "null"


_JSON_TYPES = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


def _json_type(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _field(record: dict[str, Any], name: str) -> Any:
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _json_text(value: Any, name: str, where: str) -> str | None:
    if _is_null(value):
        return None
    if not isinstance(value, str):
        raise CorpusError(
            f"{where}: {name!r} is the {_json_type(value)} {json.dumps(value, ensure_ascii=False)[:60]}, "
            f"expected a string: put it in quotes, or name another column with --text-column"
        )
    return value


def _json_id(value: Any, name: str, where: str) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise CorpusError(f"{where}: the id {name!r} is {json.dumps(value)[:60]}, expected a string or a whole number")
    return None if value is None else str(value)


def _json_kept(value: Any, type: pa.DataType, name: str, where: str) -> Any:
    if _is_null(value):
        return None
    if type == pa.string():
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    kind = _json_type(value)
    if _JSON_TYPES.get(kind) == type or (kind == "integer" and type == pa.float64()):
        return value
    raise CorpusError(
        f"{where}: {name!r} is {json.dumps(value, ensure_ascii=False)[:60]}, "
        f"expected {type} as in the first {_PEEKED_RECORDS:,} records: write all of them as strings or as numbers "
        f"with a point, or leave the column out of --keep"
    )
