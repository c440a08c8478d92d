"""The smallest m whose held-out neighbours are those of all dimensions."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from conftest import Retr, random_texts
from numpy.typing import NDArray

from retrieval import Index
from retrieval.encoders.base import Encoder
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.errors import TransformError
from retrieval.transforms.choice import Choice, choose_m
from retrieval.transforms.fitting import curve_lines
from retrieval.transforms.held_out import SplitMoments
from retrieval.transforms.spec import AutoSpec, parse_transform
from retrieval.transforms.whitening import Whitening


def falling(rows: int, dimension: int = 24, seed: int = 0) -> NDArray[np.float32]:
    """Normal vectors whose standard deviations fall from 1 to 1/20, away from the origin."""
    scales = np.geomspace(1, 0.05, dimension)
    return (np.random.default_rng(seed).normal(size=(rows, dimension)) * scales + 0.2).astype(np.float32)


def spec_of(text: str) -> AutoSpec:
    spec = parse_transform(text)
    assert isinstance(spec, AutoSpec)
    return spec


def choose(text: str, rows: NDArray[np.float32], chunk: int = 100, seed: int = 0) -> Choice:
    split = SplitMoments(rows.shape[1])
    split.update(rows)
    return choose_m(spec_of(text), split, lambda: (rows[i : i + chunk] for i in range(0, len(rows), chunk)), seed=seed)


def overlaps(text: str, rows: NDArray[np.float32]) -> list[float]:
    """Overlap@10 with the uncut vectors at m = 1, 2, ..., rank: written out plainly, over all rows."""
    spec, held_out = spec_of(text), np.arange(len(rows)) % 10 == 9
    moments = SplitMoments(rows.shape[1])
    moments.update(rows)
    rank = rows.shape[1]
    transform, _ = Whitening.fit(moments.fitted, rank, beta=spec.beta, gamma=spec.gamma)
    vectors = transform.transform(rows)

    def neighbours(m: int) -> list[set[int]]:
        cut = vectors[:, :m] / np.linalg.norm(vectors[:, :m], axis=1, keepdims=True)
        order = np.argsort(-(cut[held_out] @ cut[~held_out].T), axis=1)[:, :10]
        return [set(row.tolist()) for row in order]

    uncut = neighbours(rank)
    return [
        float(np.mean([len(a & b) / 10 for a, b in zip(neighbours(m), uncut, strict=True)])) for m in range(1, rank + 1)
    ]


@pytest.mark.parametrize("text", ["whiten-auto", "rotate-auto:overlap=0.6", "soft-auto:overlap=0.9"])
def test_m_is_the_smallest_of_all_that_passes(text: str) -> None:
    rows = falling(1500)
    choice, expected = choose(text, rows), overlaps(text, rows)
    assert choice.m == 1 + next(i for i, overlap in enumerate(expected) if overlap >= choice.threshold)
    assert 1 < choice.m < choice.rank == 24
    for point in choice.points:
        assert point.overlap == pytest.approx(expected[point.m - 1], abs=2e-3)  # ties, and float32
    measured = {point.m: point for point in choice.points}
    assert measured[choice.m - 1].overlap < choice.threshold <= measured[choice.m].overlap
    assert {8, 12, 16, 24} <= measured.keys()
    assert [*measured] == sorted(measured)
    assert measured[24].overlap == 1
    if text.startswith("rotate"):  # keeps every inner product: uncut is raw
        assert all(point.raw == pytest.approx(point.overlap, abs=2e-3) for point in choice.points)
    else:
        assert measured[24].raw < 0.9


def test_thresholds_at_the_ends_keep_all_or_one() -> None:
    rows = falling(400)
    assert choose("whiten-auto:overlap=1", rows).m == 24
    assert choose("whiten-auto:overlap=0", rows).m == 1
    ms = [choose(f"whiten-auto:overlap={overlap}", rows).m for overlap in (0.3, 0.5, 0.7, 0.9)]
    assert all(one < other for one, other in itertools.pairwise(ms))


def test_the_same_seed_gives_the_same_choice_under_any_chunking() -> None:
    rows = falling(12_000, 8)
    assert choose("rotate-auto", rows) == choose("rotate-auto", rows, chunk=777)
    choice = choose("rotate-auto", rows)
    assert (choice.queries, choice.documents) == (1000, 10_000)
    assert choose("rotate-auto", rows, seed=1).points != choice.points


def test_a_held_out_row_that_equals_a_fitted_one_is_no_query() -> None:
    rows = falling(600)
    rows[9:300:10] = rows[0:291:10]  # 30 of the 60 held out
    choice = choose("whiten-auto", rows)
    assert choice.queries == 30
    assert choice.documents == 540


def test_rows_of_zeros_take_no_part() -> None:
    rows = falling(600)
    assert choose("whiten-auto", np.insert(rows, [0, 0, 33, 599], 0, axis=0)) == choose("whiten-auto", rows)


@pytest.mark.parametrize(
    ("rows", "left"),
    [(falling(199), 19), (np.tile(falling(3), (100, 1)), 0), (np.ones((300, 4), np.float32), 0)],
    ids=["few", "repeated", "equal"],
)
def test_too_few_distinct_vectors_are_refused(rows: NDArray[np.float32], left: int) -> None:
    with pytest.raises(TransformError, match=r"whiten-auto wants at least 200 distinct vectors.*say m \(whiten-M\)"):
        choose("whiten-auto", rows)


def test_the_curve_fits_narrow_terminals_and_marks_the_choice() -> None:
    choice = choose("whiten-auto", falling(600))
    head, names, *lines = curve_lines("whiten-auto", choice)
    assert "60 held-out vectors among 540" in head
    assert names.split() == ["m", "of", "uncut", "of", "raw"]
    assert len(lines) == len(choice.points)
    assert [line.split()[0] for line in lines if "<-" in line] == [str(choice.m)]
    assert max(map(len, lines)) <= 60


@pytest.fixture(scope="module")
def encoder(tiny_model: Path) -> Encoder:
    return load_encoder(resolve_settings(tiny_model), "cpu")


def test_an_index_keeps_the_smallest_m_and_its_manifest_the_curve(
    corpus: Path, tmp_path: Path, encoder: Encoder
) -> None:
    index = Index.build(corpus, tmp_path / "i", encoder=encoder, transform="whiten-auto:overlap=0.6")
    transform = index.manifest.transform
    chosen = transform["chosen"]
    assert transform["name"] == f"whiten-{chosen['m']}"
    assert transform["m"] == chosen["m"] == index.manifest.index["dimension"] < chosen["rank"]
    assert (chosen["spec"], chosen["threshold"], chosen["seed"]) == ("whiten-auto:overlap=0.6", 0.6, 0)
    assert (chosen["queries"], chosen["documents"]) == (50, 450)
    passing = [m for m, overlap, _ in chosen["curve"] if overlap >= 0.6]
    assert passing[0] == chosen["m"]
    # moments of the standing index serve, and another threshold needs no encoding
    again = Index.build(corpus, tmp_path / "i", encoder=encoder, transform="whiten-auto:overlap=0.9")
    assert again.manifest.transform["m"] > chosen["m"]
    assert "chosen" not in Index.build(corpus, tmp_path / "i", encoder=encoder, transform="whiten-8").manifest.transform


def test_the_command_line_prints_curve_and_spectrum_and_info_shows_them(
    corpus: Path, tiny_model: Path, tmp_path: Path, retr: Retr
) -> None:
    done = retr("index", corpus, "-o", "i", "--model", tiny_model, "--transform", "rotate-auto", "--explain", "--json")
    assert done.returncode == 0, done.stderr
    assert "rotate-auto: of the 10 neighbours of 50 held-out vectors among 450, those kept" in done.stderr
    assert "<- the smallest of at least 0.8" in done.stderr
    assert "spectrum: 32 directions, rank 31, eigenvalues about the origin" in done.stderr
    assert len(done.stdout.splitlines()) == 1
    shown = retr("info", "-i", "i", "--explain").stdout
    assert "m chosen     rotate-auto: " in shown
    assert "\ncurve        " in shown
    assert "eigenvalues about the origin" in shown
    assert "  kept" in shown


def test_a_corpus_too_small_is_refused_before_it_is_encoded(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    (tmp_path / "few.txt").write_text("\n".join(random_texts(150)), encoding="utf-8")
    done = retr("index", "few.txt", "--model", tiny_model, "--transform", "whiten-auto")
    assert done.returncode == 1
    assert "whiten-auto wants at least 200 distinct documents to choose m by, the corpus has 150" in done.stderr
    assert "encoding" not in done.stderr
    assert not (tmp_path / "indexes" / "few").exists()


def test_eval_chooses_m_on_what_it_fits_on(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    texts = random_texts(700)
    (tmp_path / "fit.txt").write_text("\n".join(texts[:600]), encoding="utf-8")
    pairs = [f"{a}\t{b}\t{i % 2}" for i, (a, b) in enumerate(itertools.pairwise(texts[600:]))]
    (tmp_path / "p.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *pairs]), encoding="utf-8")
    options = ["--model", tiny_model, "--transform", "whiten-auto:overlap=0.7", "--fit", "fit.txt", "--bootstrap", "0"]
    done = retr("eval", "p.tsv", *options)
    assert done.returncode == 0, done.stderr
    assert "of the 10 neighbours of 60 held-out vectors among 540" in done.stderr
    m = int(next(line.split()[0] for line in done.stderr.splitlines() if "<-" in line))
    assert f"whiten-{m} (whiten-auto:overlap=0.7)" in done.stdout
