"""One HTML page with text, tables and charts: a single file that needs no network and reads in light and dark."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from retrieval.evaluation.drawing import DARK, LIGHT, Chart


@dataclass(frozen=True)
class Table:
    """A table of texts; a column whose cells are numbers stands to the right.

    Parameters
    ----------
    header : a name a column.
    rows : cells as they are shown; each row is as long as the header.
    caption : what stands above it, or nothing.
    strong : rows that stand out, from 0.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    strong: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Code:
    """Lines that keep their spaces: a command to paste."""

    text: str


Block: TypeAlias = str | Table | Code | Chart


@dataclass(frozen=True)
class Section:
    """A heading, empty for none, and what stands below it: paragraphs, tables, code and charts."""

    title: str
    blocks: Sequence[Block]


def html_page(title: str, sections: Sequence[Section]) -> str:
    """A whole page. All text is escaped; nothing is loaded from anywhere.

    Raises
    ------
    ValueError
        A table's row is not as long as its header.
    """
    parts, charts = [], 0
    for section in sections:
        parts.append(f"<section>\n<h2>{html.escape(section.title)}</h2>" if section.title else "<section>")
        for block in section.blocks:
            if isinstance(block, Chart):
                charts += 1
                parts.append(f"<figure>{block.svg(f'chart-{charts}')}</figure>")
            elif isinstance(block, Table):
                parts.append(_table(block))
            elif isinstance(block, Code):
                parts.append(f"<pre><code>{html.escape(block.text)}</code></pre>")
            else:
                parts.append(f"<p>{html.escape(block)}</p>")
        parts.append("</section>")
    heading = html.escape(title)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{heading}</title>\n<style>\n{_style()}</style>\n'
        f"</head>\n<body>\n<main>\n<h1>{heading}</h1>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )


def _table(table: Table) -> str:
    if any(len(row) != len(table.header) for row in table.rows):
        raise ValueError(f"a row of the table {table.caption!r} is not as long as its header")
    numeric = [
        all(_is_number(row[column]) for row in table.rows) and bool(table.rows) for column in range(len(table.header))
    ]

    def line(cells: Sequence[str], tag: str, attribute: str = "") -> str:
        shown = (
            f"<{tag}{' class=number' if right else ''}>{html.escape(cell)}</{tag}>"
            for cell, right in zip(cells, numeric, strict=True)
        )
        return f"<tr{attribute}>{''.join(shown)}</tr>"

    caption = f"<caption>{html.escape(table.caption)}</caption>\n" if table.caption else ""
    rows = (line(row, "td", " class=strong" if i in table.strong else "") for i, row in enumerate(table.rows))
    head = line(table.header, "th")
    return (
        f'<div class="scroll"><table>\n{caption}<thead>{head}</thead>\n<tbody>\n' + "\n".join(rows) + "\n</tbody>\n"
        "</table></div>"
    )


def _is_number(cell: str) -> bool:
    """A number with its unit, sign or interval; also a cell with nothing to say."""
    text = cell.strip().lstrip("+-−~<> [(.")
    return not text or text[:1].isdigit() or text in ("–", "—", "n/a", "undefined")


def _style() -> str:
    def variables(colours: dict[str, str], ground: str, band: str) -> str:
        named = {**colours, "ground": ground, "band": band}
        return " ".join(f"--{name}: {colour};" for name, colour in named.items())

    return f""":root {{ {variables(LIGHT, "#fcfcfd", "#f0f2f5")}
  --font: system-ui, "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", sans-serif; }}
@media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK, "#14171c", "#1f242b")} }} }}
body {{ margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.55 var(--font); }}
main {{ max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }}
h1 {{ font-size: 1.7rem; line-height: 1.25; }}
h2 {{ font-size: 1.2rem; margin-top: 2.5rem; }}
figure {{ margin: 1.5rem 0; }}
svg {{ display: block; width: 100%; max-width: 52rem; height: auto; }}
.scroll {{ overflow-x: auto; margin: 1rem 0; }}
table {{ border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; color: var(--muted); padding-bottom: .4rem; }}
th, td {{ text-align: left; padding: .3rem .8rem; border-bottom: 1px solid var(--line); white-space: nowrap; }}
th {{ color: var(--muted); font-weight: 600; }}
.number {{ text-align: right; }}
.strong {{ font-weight: 600; background: var(--band); }}
pre {{ background: var(--band); padding: .8rem 1rem; overflow-x: auto; font-size: .88rem; }}
"""
