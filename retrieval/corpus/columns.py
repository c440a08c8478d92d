"""Which column is the text, which the id, and which are carried along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.errors import UsageError

USUAL_TEXT_COLUMNS = (
    "text",
    "sentence",
    "question",
    "query",
    "title",
    "content",
    "body",
    "document",
    "passage",
    "文本",
    "句子",
    "问题",
    "问句",
    "标题",
    "内容",
    "正文",
)


@dataclass(frozen=True)
class Column:
    """A column that a file has: its name (`a.b` for a nested one), its type in words, and whether it is text."""

    name: str
    type: str
    is_text: bool


@dataclass(frozen=True)
class Selection:
    """The columns that are read."""

    text: str
    id: str | None
    keep: tuple[str, ...]


def select_columns(
    file: str, columns: Sequence[Column], text: str | None, id: str | None, keep: Sequence[str]
) -> Selection:
    """Choose the text column and check the others.

    Without `text`, the first of USUAL_TEXT_COLUMNS that the file has, or its only text column.

    Raises
    ------
    UsageError
        A column is not there or is not text, or several could be the text; the columns are listed.
    """
    by_name = {column.name: column for column in columns}
    for name in (text, id, *keep):
        if name is not None and name not in by_name:
            raise UsageError(f"{file} has no column {name!r}; its columns are {_listed(columns)}")
    if text is None:
        text = _usual(columns, id)
    if text is None:
        raise UsageError(f"{file}: which column is the text? Give --text-column; the columns are {_listed(columns)}")
    if not by_name[text].is_text:
        raise UsageError(
            f"{file}: column {text!r} holds {by_name[text].type}, expected text; the columns are {_listed(columns)}"
        )
    if reserved := {"id", "text", "query", "rank", "score"} & set(keep) - {text, id}:
        raise UsageError(f"column {reserved.pop()!r} cannot be kept: hits have a field of that name already")
    return Selection(text, id, tuple(dict.fromkeys(name for name in keep if name not in (text, id))))


def _usual(columns: Sequence[Column], id: str | None) -> str | None:
    texts = [column.name for column in columns if column.is_text and column.name != id]
    folded = {name.strip().lower(): name for name in reversed(texts)}
    for usual in USUAL_TEXT_COLUMNS:
        if usual in folded:
            return folded[usual]
    return texts[0] if len(texts) == 1 else None


def _listed(columns: Sequence[Column]) -> str:
    shown = ", ".join(f"{column.name} ({column.type})" for column in columns[:40])
    return shown + (f" and {len(columns) - 40} more" if len(columns) > 40 else "") if columns else "none"
