"""The spectrum drawn in a terminal, a pipe, and where there are no block characters."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Retr
from numpy.typing import NDArray

from retrieval.cli.spectrum import draw_spectrum, moments_spectrum, spectrum_lines
from retrieval.transforms.moments import Moments


def moments_of(rows: NDArray[np.float32]) -> Moments:
    moments = Moments(rows.shape[1])
    moments.update(rows)
    return moments


def normal(rows: int, dimension: int) -> NDArray[np.float32]:
    scales = np.geomspace(1, 0.01, dimension)
    return (np.random.default_rng(0).normal(size=(rows, dimension)) * scales).astype(np.float32)


def test_shares_are_those_of_the_eigenvalues_and_the_cuts_are_marked() -> None:
    rows = normal(2000, 300)
    lines = spectrum_lines(moments_spectrum(moments_of(rows), 1.0, 1e-9, 100), 79)
    assert lines[0] == "spectrum: 300 directions, rank 300, eigenvalues about the mean"
    eigenvalues = np.linalg.eigvalsh(np.cov(rows.T.astype(np.float64), bias=True))[::-1]
    shares = {int(line.split()[0]): line for line in lines[-5:]}
    assert [*shares] == [64, 100, 128, 256, 300]
    for m, line in shares.items():
        assert f"{eigenvalues[:m].sum() / eigenvalues.sum():.2%}" in line
    assert shares[100].endswith("kept")
    assert shares[300].endswith("rank")
    axis = lines[-7]
    assert axis.split() == ["64", "100", "128", "256", "300"]
    for m in shares:
        # 68 columns for 300 directions: 9 before them, and 2 behind for the last mark's digits
        assert axis.index(str(m)) == 9 + (m - 1) * 68 // 300


def test_columns_fall_from_the_top_to_one_eighth() -> None:
    lines = spectrum_lines(moments_spectrum(moments_of(normal(5000, 40)), 1.0, 1e-9, None), 79)
    rows = [line[9:].ljust(40) for line in lines[1:7]]
    levels = [sum(" ▁▂▃▄▅▆▇█".index(row[column]) for row in rows) for column in range(40)]
    assert levels[0] == 48
    assert levels[-1] == 1
    assert levels == sorted(levels, reverse=True)
    # equal steps of the logarithm are equal steps of the picture
    assert np.abs(np.diff(levels) + 47 / 39).max() < 1.5


@pytest.mark.parametrize("width", [40, 60, 79])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    spectrum = moments_spectrum(moments_of(normal(2000, 384)), 0.5, 1e-9, 188)
    assert max(map(len, spectrum_lines(spectrum, width))) <= width
    assert "0.5 times the mean" in " ".join(spectrum_lines(spectrum, width))


def test_directions_beyond_the_rank_are_blank_and_equal_vectors_have_no_picture() -> None:
    rows = np.tile(normal(11, 60), (20, 1))
    lines = spectrum_lines(moments_spectrum(moments_of(rows), 1.0, 1e-9, None), 79)
    assert lines[0].startswith("spectrum: 60 directions, rank 10,")
    assert all(len(line) <= 9 + 10 for line in lines[1:7])
    (_, told) = spectrum_lines(moments_spectrum(moments_of(np.ones((9, 4), np.float32)), 1.0, 1e-9, None), 79)
    assert "nothing to draw" in told


def test_a_stream_without_block_characters_gets_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    spectrum = moments_spectrum(moments_of(normal(500, 80)), 1.0, 1e-9, 20)
    for encoding in ("utf-8", "ascii", "latin-1"):
        lines = draw_spectrum(spectrum, io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        "\n".join(lines).encode(encoding)
        assert max(map(len, lines)) <= 49
        assert ("█" in "".join(lines)) == (encoding == "utf-8")


@pytest.mark.parametrize("transform", ["rotate-16", "none"])
def test_info_explains_from_what_the_index_keeps(transform: str, corpus: Path, tiny_model: Path, retr: Retr) -> None:
    built = retr("index", corpus, "-o", "i", "--model", tiny_model, "--transform", transform)
    assert built.returncode == 0, built.stderr
    done = retr("info", "-i", "i", "--explain", "--json", "--quiet")
    assert done.stderr == ""
    spectrum = json.loads(done.stdout)["spectrum"]
    assert len(spectrum["eigenvalues"]) == 32 >= spectrum["rank"]
    assert spectrum["rows"] == 500
    assert spectrum["m"] == (16 if transform == "rotate-16" else None)
    plain = retr("info", "-i", "i", "--explain")
    assert ("kept\n" in plain.stdout) == (transform == "rotate-16")
    assert "\x1b" not in plain.stdout
