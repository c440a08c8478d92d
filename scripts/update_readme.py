"""Put the figures of benchmarks/results/*.json into the READMEs, between their markers.

python scripts/update_readme.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

WORDS: dict[str, dict[str, Any]] = {
    "README.md": {
        "build": (
            "Building an index of {rows:,} titles, a whole process each, imports and model loading included "
            "(median of {repeats}, in turn in one run; {where}; `{command}`):"
        ),
        "head": (
            "",
            "texts/s",
            "x sentence-transformers + faiss",
            "encoding alone, texts/s",
            "peak MiB",
            "same 10 neighbours as the peer",
        ),
        "titles": (
            "All {rows:,} titles, while other jobs shared the cores: {minutes:.1f} minutes, {rate:,.0f} texts/s, peak "
            "{peak:,.0f} MiB, index of {dimension} dimensions ({where}; `{command}`)."
        ),
        "query": (
            "One query as a whole cold process over {rows:,} titles (median of {repeats}, in turn in one run; {where}; "
            "`{command}`):"
        ),
        "query_head": ("", "cold, s", "times faster than the peer", "same 10 neighbours as the peer", "warm, ms"),
    },
    "README.zh.md": {
        "build": (
            "给 {rows:,} 条标题建索引，各用一个完整进程，含导入与加载模型"
            "（同一次运行里轮流做，取 {repeats} 次的中位数；{where}；`{command}`）："
        ),
        "head": (
            "",
            "条/秒",
            "与 sentence-transformers + faiss 之比",
            "只算编码，条/秒",
            "内存峰值 MiB",
            "前 10 个近邻与对照的重合",
        ),
        "titles": (
            "全部 {rows:,} 条标题（当时还有别的任务占用这两个核）：{minutes:.1f} 分钟，{rate:,.0f} 条/秒，"
            "内存峰值 {peak:,.0f} MiB，索引 {dimension} 维（{where}；`{command}`）。"
        ),
        "query": (
            "在 {rows:,} 条标题上查询一句，从冷启动到结束的完整进程（同一次运行里轮流做，取 {repeats} 次的中位数；"
            "{where}；`{command}`）："
        ),
        "query_head": ("", "冷启动，秒", "比对照快几倍", "前 10 个近邻与对照的重合", "热查询，毫秒"),
    },
}


def figures(readme: str) -> str:
    """The block of figures of one README, as Markdown."""
    words = WORDS[readme]
    build, titles = (json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in ("build", "titles"))
    command = "python benchmarks/bench_build.py --corpus titles.txt --rows {rows} --repeats {repeats}".format(**build)
    lines = [words["build"].format(**build, where=_where(build), command=command), ""]
    lines += ["| " + " | ".join(words["head"]) + " |", "|---" * len(words["head"]) + "|"]
    for side, row in build["sides"].items():
        cells = [
            f"{side} ({row['dimension']} d)",
            f"{row['texts_per_second']:.0f}",
            f"{row['ratio_to_peer']:.2f}",
            f"{row['encode_texts_per_second']:.0f}",
            f"{row['peak_mib']:,.0f}",
            f"{row['overlap@10_with_peer']:.1%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    side = titles["sides"]["retr"]
    command = "python benchmarks/bench_build.py --corpus titles.txt --repeats 1 --sides retr"
    whole = words["titles"].format(
        rows=titles["rows"],
        minutes=side["seconds"]["median"] / 60,
        rate=side["texts_per_second"],
        peak=side["peak_mib"],
        dimension=side["dimension"],
        where=_where(titles),
        command=command,
    )
    return "\n".join([*lines, "", whole, "", *_query_table(words)])


def _query_table(words: dict[str, Any]) -> list[str]:
    query = json.loads((RESULTS / "query.json").read_text(encoding="utf-8"))
    command = "python benchmarks/bench_query.py --corpus titles.txt --rows {rows} --repeats {repeats}".format(**query)
    lines = [words["query"].format(**query, where=_where(query), command=command), ""]
    lines += ["| " + " | ".join(words["query_head"]) + " |", "|---" * len(words["query_head"]) + "|"]
    for side, row in query["sides"].items():
        cells = [
            side,
            f"{row['seconds']['median']:.2f}",
            f"{row['times_faster_than_peer']:.2f}",
            f"{row['overlap@10_with_peer']:.1%}",
            f"{row['warm_milliseconds']:.1f}" if row["warm_milliseconds"] else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def with_figures(readme: str, text: str) -> str:
    """The README's text with the block between its markers made anew."""
    pattern = r"(<!-- figures: begin -->\n).*?(\n<!-- figures: end -->)"
    return re.sub(pattern, lambda match: match[1] + figures(readme) + match[2], text, flags=re.DOTALL)


def _where(result: dict[str, Any]) -> str:
    return f"{result['cores']} cores of {result['cpu']}, {result['date']}"


def main() -> None:
    for readme in WORDS:
        path = ROOT / readme
        path.write_text(with_figures(readme, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
