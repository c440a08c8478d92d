"""The model card: README.md and training.json, which say what a model was made from and how well it does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retrieval import __version__
from retrieval.training.checkpoints import Point
from retrieval.training.choice import short_names
from retrieval.transforms.spec import NONE

RECORD = "training.json"


@dataclass(frozen=True)
class TestScore:
    """Spearman x 100 on a test set, before and after training; scored once."""

    name: str
    pairs: int
    start: float
    trained: float
    cut: str
    """The transform of the two figures beside."""
    start_cut: float
    trained_cut: float


@dataclass(frozen=True)
class Advice:
    """What the dev sets say of poolings and transforms of the trained encoder: mean Spearman x 100."""

    pooling: str
    """Trained with."""
    raw: float
    best: tuple[str, str, float]
    """Pooling, transform and mean, of all that were tried."""
    by_transform: dict[str, float]
    """With the pooling that was trained."""
    lowered: str
    """The dev sets that the best of these transforms lowers, with their figures; "" where there is none."""

    @property
    def sentence(self) -> str:
        """Whether a transform helps."""
        name = best_transform(self.by_transform)
        value = self.by_transform[name]
        gain = value - self.raw
        verdict = "helps" if gain > 0.1 else "does not help"
        little = " a little" if 0.1 < gain <= 0.5 else ""
        lowered = f", but it lowers {self.lowered}" if self.lowered and gain > 0.1 else ""
        return (
            f"A transform {verdict} this encoder{little}: the best with {self.pooling}, {name}, comes to {value:.2f} "
            f"on the dev sets, raw {self.raw:.2f} ({gain:+.2f}){lowered}. Best of all poolings: {self.best[0]} with "
            f"{self.best[1]}, {self.best[2]:.2f}."
        )


@dataclass(frozen=True)
class Record:
    """All that the card says."""

    name: str
    command: str
    """As it was typed."""
    start: dict[str, Any]
    """source, pooling, fingerprint and prompts of the model that training began from."""
    settings: dict[str, Any]
    data: Sequence[dict[str, Any]]
    """name, role, rows and sha256 of each file; of those trained on, how many rows were trained on and held out."""
    notes: Sequence[str]
    curve: Sequence[Point]
    chosen: str
    """Which weights these are."""
    blends: dict[str, dict[str, float]]
    seconds: float
    advice: Advice | None
    tests: Sequence[TestScore]
    machine: dict[str, Any]


def best_transform(means: Mapping[str, float]) -> str:
    """The one with the highest mean, of those that are one."""
    return max((name for name in means if name != NONE), key=lambda name: means[name])


def lasted(seconds: float) -> str:
    """A time in words: seconds under a minute, hours from two on."""
    if seconds < 60:
        return "under 2 seconds" if seconds < 2 else f"{seconds:.0f} seconds"
    return f"{seconds / 60:.1f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def write_card(folder: Path, record: Record) -> None:
    """Add README.md and RECORD to a sentence-transformers folder."""
    content = {"retr_version": __version__, **asdict(record)}
    (folder / RECORD).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "README.md").write_text("\n".join(_lines(record)) + "\n", encoding="utf-8")


def _lines(record: Record) -> list[str]:
    start = record.start
    lines = [
        "---",
        "library_name: sentence-transformers",
        "pipeline_tag: sentence-similarity",
        "tags: [sentence-transformers, sentence-similarity, feature-extraction]",
        "---",
        f"# {record.name}",
        "",
        f"{start['source']} ({start['pooling']}), trained by retr {__version__} in {lasted(record.seconds)} on "
        f"{record.machine['cpu']}, {record.machine['threads']} threads, in {record.settings['precision']}:",
        "",
        "```sh",
        record.command,
        "```",
        "",
        f"{record.chosen}. The starting model's licence is its authors'.",
        "",
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        f'model = SentenceTransformer("{record.name}")',
        'vectors = model.encode(["..."], normalize_embeddings=True)',
        "```",
        "",
        f"Or `retr index CORPUS --model {record.name}`. Prompt before each text: {start['document_prompt']!r}.",
        *(
            [f"Its language-model head was trained too: `retr paraphrase TEXT --model {record.name}` writes."]
            if record.settings.get("writes")
            else []
        ),
        "",
    ]
    if record.tests:
        cut = record.tests[0].cut
        lines += [
            "## Test sets, scored once, at the end",
            "",
            f"Spearman x 100 of the cosine; {cut} is fitted on training texts.",
            "",
            f"| set | pairs | before | trained | before, {cut} | trained, {cut} |",
            "|---|---:|---:|---:|---:|---:|",
            *(
                f"| {one.name} | {one.pairs:,} | {one.start:.2f} | {one.trained:.2f} | {one.start_cut:.2f} "
                f"| {one.trained_cut:.2f} |"
                for one in record.tests
            ),
            "",
        ]
    if record.advice is not None:
        lines += ["## Poolings and transforms", "", record.advice.sentence, "", *_table(record.advice.by_transform), ""]
    if record.curve:
        lines += ["## Curve", "", *_curve(record.curve), ""]
    lines += [
        "## Data",
        "",
        "| file | used for | rows | trained on | held out | sha256 |",
        "|---|---|---:|---:|---:|---|",
    ]
    for one in record.data:
        counts = (f"{one[key]:,}" if key in one else "" for key in ("rows", "trained", "held_out"))
        lines.append(f"| {one['name']} | {one['role']} | {' | '.join(counts)} | {one['sha256']} |")
    if record.notes:
        lines += ["", *(f"- {note}" for note in record.notes)]
    start_settings = {name: start[name] for name in ("pooling", "max_length")}
    lines += ["", "## Settings", "", *_table({**start_settings, **record.settings})]
    return lines


def _curve(curve: Sequence[Point]) -> list[str]:
    """A row a point; the stage only where there are several."""
    names = short_names(name for point in curve for name in point.dev)
    several = curve[-1].stage > 0
    head = [*(["stage"] if several else []), "step", "time", "loss", *names.values(), *(["mean"] if names else [])]
    lines = ["Spearman x 100 on dev sets and on the parts held out.", ""] if names else []
    lines += ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]
    for point in curve:
        cells = [f"{point.stage + 1}, {point.objective}"] if several else []
        cells += [str(point.step), lasted(point.seconds), "" if point.loss is None else f"{point.loss:.4f}"]
        cells += [f"{point.dev[name]:.2f}" for name in names] + ([f"{point.mean:.2f}"] if names else [])
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _table(values: dict[str, Any]) -> list[str]:
    def shown(value: Any) -> str:
        if isinstance(value, list | tuple):
            return ", ".join(map(str, value))
        return f"{value:.2f}" if isinstance(value, float) and abs(value) >= 1 else f"{value}"

    rows = (f"| {name} | {shown(value)} |" for name, value in values.items() if value is not None)
    return ["| | |", "|---|---:|", *rows]
