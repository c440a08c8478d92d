"""What a sweep tries, how it encodes once, what it chooses on, and how it is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import Retr, make_tiny_model
from numpy.typing import NDArray
from test_cli_eval import HEADER, pairs

from retrieval.encoders.base import EncoderCounts, EncoderSettings
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.errors import UsageError
from retrieval.evaluation import stored
from retrieval.evaluation.evaluate import System, evaluate, make_task
from retrieval.evaluation.grid import USUAL_POOLINGS, parse_poolings, parse_transforms
from retrieval.evaluation.pairs import Pairs
from retrieval.evaluation.stored import read, stored_embeddings
from retrieval.evaluation.sweep import Pass, Sweep, SweepTask, make_passes, make_sweep_task, sweep
from retrieval.evaluation.sweep_report import as_chart, as_json, as_latex, as_markdown, as_table
from retrieval.transforms.spec import parse_transform
from retrieval.types import NoProgress

TOLERANCE = 1e-6  # of correlations: vectors of one pass and of several differ by rounding of float32


# Grids


def test_the_default_grid_is_that_of_384_dimensions() -> None:
    assert list(parse_transforms(None, None).specs(384)) == [
        *("none", "whiten-all", "whiten-256", "whiten-128", "whiten-64"),
        *("soft-256", "soft-128", "rotate-256", "rotate-128", "rotate-64"),
    ]
    assert list(parse_transforms(None, None).specs(32)) == [
        "none",
        "whiten-all",
        "whiten-16",
        "soft-16",
        "rotate-16",
    ]


@pytest.mark.parametrize(
    ("transforms", "dimensions", "expected"),
    [
        ("none", None, ["none"]),
        ("whiten-128:beta=.5,gamma=.5,none", None, ["whiten-128:beta=0.5,gamma=0.5", "none"]),
        ("rotate, whiten:eps=0", "8,4", ["rotate-8", "rotate-4", "whiten-8:eps=0", "whiten-4:eps=0"]),
        ("whiten,whiten-8", "8", ["whiten-8"]),
        (None, "8", ["none", "whiten-8", "soft-8", "rotate-8"]),
        ("whiten,rotate-all", "all,8", ["whiten-all", "whiten-8", "rotate-all"]),
        ("whiten-all:eps=0,gamma=.5", None, ["whiten-all:gamma=0.5,eps=0"]),
        ("whiten-16,flow", None, ["whiten-16", "flow"]),
    ],
)
def test_transforms_are_read_with_their_numbers(
    transforms: str | None, dimensions: str | None, expected: list[str]
) -> None:
    assert list(parse_transforms(transforms, dimensions).specs(16)) == expected


@pytest.mark.parametrize(
    ("transforms", "dimensions", "message"),
    [
        ("shrink", None, "unknown transform 'shrink'"),
        ("whiten:beta=2", None, "expected beta from 0 to 1"),
        ("auto", None, "auto sees a corpus"),
        ("", None, "unknown transform ''"),
        ("none", "8", "dimensions '8' are for transforms without a number"),
        (None, "8,x", "dimensions '8,x': expected all or numbers from 1"),
        (None, "0", "expected all or numbers from 1"),
        ("none,whiten-auto", None, "'whiten-auto' chooses one dimension"),
    ],
)
def test_transforms_that_cannot_be_read_are_refused(
    transforms: str | None, dimensions: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_transforms(transforms, dimensions)


def test_poolings_are_read_with_their_layers() -> None:
    assert parse_poolings("cls,layers-0,12, last-avg,cls") == ("cls", "layers-0,12", "last-avg")
    with pytest.raises(UsageError, match="unknown pooling 'first'"):
        parse_poolings("cls,first")


def test_a_transformer_is_read_once_for_all_usual_poolings(tiny_model: Path) -> None:
    settings = resolve_settings(tiny_model)
    (all_usual,) = make_passes(settings, None, print)
    assert all_usual.computed == all_usual.wanted == USUAL_POOLINGS
    assert all_usual.settings.pooling == "+".join(USUAL_POOLINGS)
    one, other = make_passes(settings, ("max", "cls"), print)
    assert (one.computed, one.wanted) == (USUAL_POOLINGS, ("cls",))
    assert (other.computed, other.wanted, other.settings.pooling) == (("max",), ("max",), "max")


# Encoding once


class Counting:
    """An encoder whose poolings are known functions of a text, and which remembers what it was given."""

    family = "tuned"
    backend = precision = "test"

    def __init__(self, settings: EncoderSettings, width: int = 8, fingerprint: str = "f") -> None:
        self.settings, self._width, self._print = settings, width, fingerprint
        self.given: list[str] = []
        self.counts = EncoderCounts()
        self.fails_at: int | None = None

    @property
    def dimension(self) -> int:
        return self._width * len(self.settings.pooling.split("+"))

    @property
    def fingerprint(self) -> str:
        return f"{self._print} {self.settings.pooling}"

    def encode(
        self, texts: Sequence[str], kind: str = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        if self.fails_at is not None and len(self.given) >= self.fails_at:
            raise KeyboardInterrupt
        self.given += texts
        parts = self.settings.pooling.split("+")
        return np.array([np.concatenate([vector(text, part, self._width) for part in parts]) for text in texts])


def vector(text: str, pooling: str, width: int) -> NDArray[np.float32]:
    seed = int.from_bytes(f"{pooling} {text}".encode()) % 2**32
    return np.random.default_rng(seed).normal(size=width).astype(np.float32)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stored, "SHARD_ROWS", 8)
    return tmp_path / "cache"


def settings_of(pooling: str) -> EncoderSettings:
    return EncoderSettings("m", pooling, "", "", 0)


def test_embeddings_are_kept_and_gone_on_with(own_cache: Path) -> None:
    groups = [[f"a{i}" for i in range(20)], [f"b{i}" for i in range(5)]]
    encoder = Counting(settings_of("x+y"))
    encoder.fails_at = 16
    with pytest.raises(KeyboardInterrupt):
        stored_embeddings(encoder, ("x", "y"), ("x", "y"), groups, NoProgress())
    assert encoder.given == groups[0][:16]
    again = Counting(settings_of("x+y"))
    found = stored_embeddings(again, ("x", "y"), ("x", "y"), groups, NoProgress())
    assert again.given == [*groups[0][16:], *groups[1]]
    for pooling in "xy":
        expected = [vector(text, pooling, 8) for group in groups for text in group]
        np.testing.assert_array_equal(read(found[pooling]), expected)
    third = Counting(settings_of("x+y"))
    stored_embeddings(third, ("x", "y"), ("y",), [["new"], groups[0], groups[1]], NoProgress())
    assert third.given == ["new"]


def test_another_encoder_and_damaged_shards_are_encoded_again(own_cache: Path) -> None:
    texts = [[f"a{i}" for i in range(10)]]
    stored_embeddings(Counting(settings_of("x")), ("x",), ("x",), texts, NoProgress())
    other = Counting(settings_of("x"), fingerprint="g")
    stored_embeddings(other, ("x",), ("x",), texts, NoProgress())
    assert other.given == texts[0]
    for path in own_cache.rglob("000001.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    again = Counting(settings_of("x"))
    found = stored_embeddings(again, ("x",), ("x",), texts, NoProgress())
    assert again.given == texts[0][8:]
    np.testing.assert_array_equal(read(found["x"]), [vector(text, "x", 8) for text in texts[0]])


# Measuring and choosing


def labelled(start: int, name: str = "set", split: str = "test", count: int = 60) -> Pairs:
    rows = [line.split("\t") for line in pairs(start, count).splitlines()]
    labels = np.array([float(row[2]) for row in rows])
    return Pairs(
        name, split, [row[0] for row in rows], [row[1] for row in rows], labels, f"{split}.txt", f"{start:032x}"
    )


def swept(tiny_model: Path, transforms: str, *, choosing: bool = True, poolings: str | None = None) -> Sweep:
    dev = labelled(100, split="dev")
    why = "" if choosing else "the choice comes from dev, which is measured"
    task = SweepTask(labelled(0), dev if choosing else None, why, dev.texts, "set dev")
    settings = resolve_settings(tiny_model)
    passes = make_passes(settings, parse_poolings(poolings) if poolings else None, print)
    grid = parse_transforms(transforms, None)
    return sweep(task, "tiny", passes, load_encoder, grid, resamples=20, progress=NoProgress())


def test_cells_are_what_eval_measures(tiny_model: Path, tmp_path: Path, own_cache: Path) -> None:
    found = swept(tiny_model, "none,whiten-8,rotate-16:beta=1")
    assert len(found.cells) == 15
    for name, start in (("test", 0), ("dev", 100)):
        (tmp_path / f"{name}.tsv").write_text(HEADER + pairs(start, 60), encoding="utf-8")
    task = make_task(str(tmp_path / "test.tsv"), fit=str(tmp_path / "dev.tsv"), needs_fit=True)
    for cell in found.cells:
        encoder = load_encoder(resolve_settings(tiny_model, pooling=cell.pooling), "cpu")
        system = System("s", lambda encoder=encoder: (encoder, None, ""), parse_transform(cell.transform))
        values = evaluate([task], [system], resamples=0)[0][0].measures.values
        for name in ("spearman", "pearson", "auc"):
            assert getattr(cell, name) == pytest.approx(values[name].value, abs=TOLERANCE), (cell, name)


def test_pairs_without_weight_do_not_count(tiny_model: Path, own_cache: Path) -> None:
    passes = make_passes(resolve_settings(tiny_model), None, print)
    all_of_them, fewer = labelled(0, count=60), labelled(0, count=40)
    found = []
    for task in (
        SweepTask(all_of_them, None, "", all_of_them.texts, "", np.repeat([1.0, 0.0], (40, 20))),
        SweepTask(fewer, None, "", all_of_them.texts, ""),
        SweepTask(all_of_them, None, "", all_of_them.texts, ""),
    ):
        grid = parse_transforms("none,whiten-8", None)
        cells = sweep(task, "tiny", passes, load_encoder, grid, resamples=0, progress=NoProgress()).cells
        found.append([cell.spearman for cell in cells])
    weighted, expected, whole = found
    assert weighted == pytest.approx(expected, abs=TOLERANCE)
    assert weighted != pytest.approx(whole, abs=1e-3)


def test_the_best_is_chosen_on_dev_and_never_on_test(own_cache: Path) -> None:
    # One pooling orders dev perfectly and test at random, the other the other way round.
    test, dev = labelled(0), labelled(100, split="dev")

    class Rigged(Counting):
        def encode(self, texts: Sequence[str], kind: str = "document", on_batch: object = None) -> NDArray[np.float32]:
            parts = self.settings.pooling.split("+")
            return np.array([np.concatenate([self._one(text, part) for part in parts]) for text in texts])

        def _one(self, text: str, part: str) -> NDArray[np.float32]:
            known = dev if part == "for-dev" else test
            for first, second, label in zip(known.first, known.second, known.labels, strict=True):
                if text in (first, second) and label == 1:
                    return vector(first, part, self._width)
            return vector(text, part, self._width)

    computed = ("for-test", "for-dev")
    task = SweepTask(test, dev, "", [], "")
    passes = [Pass(settings_of("+".join(computed)), computed, computed)]
    found = sweep(task, "m", passes, Rigged, parse_transforms("none", None), resamples=20, progress=NoProgress())
    by_test = max(found.cells, key=lambda cell: cell.spearman or -1)
    assert by_test.pooling == "for-test"
    assert found.best is not None
    assert found.best.pooling == "for-dev"
    assert found.interval is not None
    assert found.interval[0] <= (found.best.spearman or 0) <= found.interval[1]
    marked = [line for line in as_table(found).splitlines() if line.startswith("best on set dev")]
    assert marked == [
        f"best on set dev (marked *): for-dev, none: {100 * (found.best.choosing or 0):.2f}; set test: "
        f"{100 * (found.best.spearman or 0):.2f} [{', '.join(f'{100 * end:.2f}' for end in found.interval)}]"
    ]
    assert as_table(found).count("*") == 2  # the cell, and what the mark means


def test_a_cell_that_cannot_be_fitted_says_why_and_ends_nothing(tiny_model: Path, own_cache: Path) -> None:
    found = swept(tiny_model, "none,whiten-32,whiten-99,rotate-8", poolings="last-avg")
    cells = {cell.transform: cell for cell in found.cells}
    # The layer norm at the end of the model leaves one of 32 directions empty.
    assert cells["whiten-32"].refused == "rank 31"
    assert cells["whiten-99"].refused == "32 dims"
    assert cells["rotate-8"].spearman is not None
    table = as_table(found)
    assert re.search(r"^whiten-32 +rank 31$", table, re.MULTILINE)
    assert "rank 31: more dimensions are asked for" in table
    both = as_chart(swept(tiny_model, "none,whiten-32", poolings="last-avg,cls")).svg("a")
    assert "rank 31" in both
    assert (
        "cannot keep m = 32"
        in next(record for record in as_json(found) if record["transform"] == "whiten-32")["refused"]
    )


def test_all_dimensions_are_those_that_the_vectors_have(tiny_model: Path, own_cache: Path) -> None:
    found = swept(tiny_model, "whiten-all,whiten-31,whiten-32:eps=0,rotate-all", poolings="last-avg,max")
    cells = {(cell.pooling, cell.transform): cell for cell in found.cells}
    # Behind a layer norm one direction of an average is empty, and of a maximum none.
    assert cells["last-avg", "whiten-all"].fitted == "whiten-31"
    assert cells["last-avg", "whiten-all"].spearman == cells["last-avg", "whiten-31"].spearman
    assert cells["max", "whiten-all"].fitted == "whiten-32"
    assert cells["max", "whiten-all"].spearman == cells["max", "whiten-32:eps=0"].spearman
    assert "whiten-all: 31 dimensions of last-avg" in as_table(found)


def test_without_pairs_to_choose_on_nothing_is_marked(tiny_model: Path, own_cache: Path) -> None:
    found = swept(tiny_model, "none,rotate-8", choosing=False)
    assert found.best is found.interval is None
    for write in (as_table, as_markdown, as_latex):
        text = write(found)
        assert "no cell is marked as the best: the choice comes from dev, which is measured" in text
        assert "**" not in text
        assert "textbf" not in text
    assert {record["choice"] for record in as_json(found)} == {None}


def test_reports_hold_every_cell_in_100_columns(tiny_model: Path, own_cache: Path) -> None:
    found = swept(tiny_model, "none,whiten:eps=0,soft,rotate")
    table, markdown, latex = as_table(found), as_markdown(found), as_latex(found)
    assert max(map(len, table.splitlines())) <= 100
    records = [json.loads(json.dumps(record, allow_nan=False)) for record in as_json(found)]
    assert len(records) == len(found.cells)
    assert [record["best"] for record in records].count(True) == 1
    for cell in found.cells:
        assert cell.spearman is not None
        for text in (table, markdown, latex):
            assert f"{100 * cell.spearman:.2f}" in text
    assert found.best is not None
    assert f"**{100 * (found.best.spearman or 0):.2f}**" in markdown
    assert rf"\textbf{{{100 * (found.best.spearman or 0):.2f}}}" in latex
    assert len({line.count("|") for line in markdown.splitlines() if line.startswith("|")}) == 1
    for part in (found.task.pairs.md5, "set test: 60 pairs", "choice on set dev: 60 pairs"):
        assert part in table
        assert part in markdown
        assert part in latex


def test_a_table_of_many_poolings_is_broken_into_parts(tiny_model: Path, own_cache: Path) -> None:
    table = as_table(
        swept(tiny_model, "none,rotate-8", poolings=",".join((*USUAL_POOLINGS, "max", "layers-0,2", "sqrt-avg")))
    )
    rows = [line for line in table.splitlines() if line.startswith("rotate-8")]
    assert len(rows) == 2
    assert max(map(len, rows)) <= 100


def test_charts_are_heat_maps_or_curves(tiny_model: Path, own_cache: Path) -> None:
    many = as_chart(swept(tiny_model, "none,whiten-8,rotate-16")).svg("a")
    assert all(pooling in many for pooling in USUAL_POOLINGS)
    assert "best on set dev" in many
    one = as_chart(swept(tiny_model, "none,whiten-8,whiten-16,rotate-16", poolings="cls")).svg("a")
    assert ">dimensions<" in one
    assert ">whiten<" in one


# The command


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "data" / "lcqmc").mkdir(parents=True)
    (tmp_path / "data" / "afqmc").mkdir()
    for name, start in (("test", 0), ("dev", 100)):
        (tmp_path / f"{name}.tsv").write_text(HEADER + pairs(start, 60), encoding="utf-8")
        (tmp_path / "data" / "lcqmc" / f"{name}.txt").write_text(pairs(start, 60), encoding="utf-8")
    for name, start in (("dev", 0), ("train", 200)):
        (tmp_path / "data" / "afqmc" / f"{name}.txt").write_text(pairs(start, 60), encoding="utf-8")
    return tmp_path


def test_sweep_prints_a_table_writes_a_chart_and_encodes_once(files: Path, tiny_model: Path, retr: Retr) -> None:
    model = make_tiny_model(files / "model", seed=7)  # of which no other test has embeddings in the cache
    call = ("sweep", "lcqmc", "--data", "data", "--model", model, "--backend", "torch", "--bootstrap", "50")
    done = retr(*call, "--chart", "a.svg")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lcqmc test: 60 pairs\nmd5 ")
    assert "last-avg" in done.stdout
    assert "best on lcqmc dev (marked *)" in done.stdout
    assert "transforms fitted on lcqmc dev (" in done.stdout
    assert "25 cells measured in" in done.stderr
    assert "embeddings are kept for other sweeps in" in done.stderr
    assert (files / "a.svg").read_text(encoding="utf-8").startswith("<?xml")
    again = retr(*call, "--pool", "cls", "--transform", "rotate", "--dims", "8,4", "--chart", "a.png", "--json")
    assert again.returncode == 0, again.stderr
    assert "in the cache: 60 of 60" not in again.stderr
    assert re.search(r"in the cache: (\d+) of \1 sentences", again.stderr)
    records = [json.loads(line) for line in again.stdout.splitlines()]
    assert [(record["pooling"], record["transform"]) for record in records] == [
        ("cls", "rotate-8"),
        ("cls", "rotate-4"),
    ]
    assert (files / "a.png").read_bytes().startswith(b"\x89PNG")


def test_sweep_of_a_set_without_dev_says_so(files: Path, tiny_model: Path, retr: Retr) -> None:
    done = retr("sweep", "afqmc", "--data", "data", "--model", tiny_model, "--backend", "torch", "--pool", "cls")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("afqmc dev: 60 pairs")
    assert "no cell is marked as the best: the choice comes from dev, which is measured" in done.stdout
    assert "transforms fitted on afqmc train" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nope"], 2, "no set and no file 'nope'"),
        (["lcqmc"], 2, "give --data DIR, or set RETR_DATA"),
        (["test.tsv"], 2, "Give --fit FILE"),
        (["test.tsv", "--fit", "test.tsv"], 2, "is test.tsv itself, which is measured"),
        (["test.tsv", "--transform", "none", "--fit", "dev.tsv"], 2, "there is nothing to fit"),
        (["test.tsv", "--fit", "dev.tsv", "--choose-on", "test.tsv"], 2, "is test.tsv itself, which is measured"),
        (["lcqmc", "--data", "data", "--choose-on", "test"], 2, "nothing is learnt from a test split"),
        (["test.tsv", "--transform", "shrink-8"], 2, "unknown transform 'shrink-8'"),
        (["test.tsv", "--dims", "many"], 2, "dimensions 'many': expected all or numbers from 1"),
        (["test.tsv", "--pool", "cls,first"], 2, "unknown pooling 'first'"),
        (["test.tsv", "--chart", "a.pdf"], 2, "'a.pdf': expected a name that ends with .png or .svg"),
        (["test.tsv", "--chart", "none/a.svg"], 2, "there is no folder 'none'"),
        (["test.tsv", "--json", "--latex"], 2, "exclude each other"),
        (["test.tsv", "--backend", "fast"], 2, "unknown backend 'fast'"),
    ],
)
def test_sweep_bad_input_is_one_clear_line(
    arguments: list[str], code: int, message: str, files: Path, retr: Retr, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RETR_DATA", raising=False)
    done = retr("sweep", *arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_tasks_of_sweeps_refuse_to_choose_on_what_is_measured(files: Path) -> None:
    task = make_sweep_task("afqmc", folder=files / "data", needs_fit=True)
    assert task.choosing is None
    assert task.fit_name.startswith("afqmc train")
    assert make_sweep_task("lcqmc", folder=files / "data", choose_on="none", needs_fit=False).choosing is None
    with pytest.raises(UsageError, match="--choose-on dev: that split is measured"):
        make_sweep_task("afqmc", folder=files / "data", choose_on="dev", needs_fit=False)
