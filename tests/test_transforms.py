"""Moments and the general whitening: laws, worked values, parity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from retrieval.errors import DimensionError, TransformError, UsageError
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.moments import BLOCK_ROWS, Moments
from retrieval.transforms.spec import FlowSpec, TransformSpec, auto_transform, parse_transform
from retrieval.transforms.whitening import Whitening


def sample(rows: int, dimension: int = 12, seed: int = 0, mean: float = 3.0) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(dimension, dimension))
    return (random.normal(size=(rows, dimension)) @ mixing + mean).astype(np.float32)


def moments_of(*chunks: NDArray[np.float32]) -> Moments:
    moments = Moments(chunks[0].shape[1])
    for chunk in chunks:
        moments.update(chunk)
    return moments


def test_moments_of_worked_values() -> None:
    moments = moments_of(np.array([[1, 0], [3, 0], [2, 3]], dtype=np.float32))
    np.testing.assert_allclose(moments.mean(), [2, 1])
    # deviations (-1,-1), (1,-1), (0,2): xx 2/3, yy 6/3, xy (1 - 1 + 0)/3
    np.testing.assert_allclose(moments.covariance(), [[2 / 3, 0], [0, 2]], atol=1e-15)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 3 * BLOCK_ROWS), max_size=5))
def test_moments_are_the_same_to_the_bit_under_any_chunking(cuts: list[int]) -> None:
    rows = sample(3 * BLOCK_ROWS, 3)
    whole = moments_of(rows)
    chunked = moments_of(*np.split(rows, sorted(cuts)))
    assert chunked.rows == whole.rows
    np.testing.assert_array_equal(chunked.mean(), whole.mean())
    np.testing.assert_array_equal(chunked.covariance(), whole.covariance())


@pytest.mark.parametrize("mean", [0.0, 25.0, 800.0])
def test_moments_equal_numpys_in_float64_even_with_a_large_mean(mean: float) -> None:
    rows = sample(5000, mean=mean)
    np.testing.assert_allclose(moments_of(rows).mean(), rows.mean(axis=0, dtype=np.float64), rtol=1e-12)
    exact = np.cov(rows.T.astype(np.float64), bias=True)
    np.testing.assert_allclose(moments_of(rows).covariance(), exact, rtol=1e-9, atol=1e-10)


def test_reading_moments_in_between_changes_nothing() -> None:
    rows = sample(100)
    moments = moments_of(rows[:30])
    moments.mean(), moments.covariance()
    moments.update(rows[30:])
    np.testing.assert_array_equal(moments.mean(), moments_of(rows).mean())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_named(bad: float) -> None:
    rows = sample(10)
    rows[7, 2] = bad
    moments = moments_of(sample(5))
    with pytest.raises(TransformError, match="row 12 holds NaN or infinity"):
        moments.update(rows)


def test_whitened_rows_have_unit_covariance_and_no_mean() -> None:
    rows = sample(4000)
    transform, _ = Whitening.fit(moments_of(rows), 12)
    whitened = transform.transform(rows).astype(np.float64)
    np.testing.assert_allclose(np.cov(whitened.T, bias=True), np.eye(12), atol=1e-4)
    np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=1e-4)


def test_whitening_equals_scikit_learns_up_to_sign_and_its_n_minus_1() -> None:
    rows = sample(2000)
    transform, _ = Whitening.fit(moments_of(rows), 5)
    expected = PCA(5, whiten=True, svd_solver="full").fit(rows.astype(np.float64)).transform(rows)
    # scikit-learn divides by n - 1 where this formula divides by n
    ours = transform.transform(rows) * np.sqrt((len(rows) - 1) / len(rows))
    signs = np.sign((ours * expected).sum(axis=0))
    np.testing.assert_allclose(ours * signs, expected, atol=2e-4)


def test_whitening_equals_the_papers_own_formula_in_its_cosines() -> None:
    # Su et al. 2021, algorithm 1: mu, Sigma, U Lambda U^T = Sigma, W = U Lambda^(-1/2), x' = (x - mu) W[:, :k]
    rows = sample(300).astype(np.float64)
    mu = rows.mean(axis=0)
    u, eigenvalues, _ = np.linalg.svd(np.cov(rows.T))
    papers = (rows - mu) @ (u @ np.diag(eigenvalues**-0.5))[:, :6]
    transform, _ = Whitening.fit(moments_of(rows.astype(np.float32)), 6)
    ours = unit_vectors(rows.astype(np.float32), transform)
    papers /= np.linalg.norm(papers, axis=1, keepdims=True)
    np.testing.assert_allclose(ours @ ours.T, papers @ papers.T, atol=1e-4)


def test_rotation_to_all_dimensions_keeps_every_inner_product() -> None:
    rows = sample(500)
    transform, spectrum = Whitening.fit(moments_of(rows), 12, beta=0, gamma=0)
    np.testing.assert_allclose(
        transform.transform(rows) @ transform.transform(rows).T, rows @ rows.T, rtol=1e-3, atol=1e-2
    )
    assert spectrum.sum() == pytest.approx((rows.astype(np.float64) ** 2).sum() / len(rows), rel=1e-9)


@pytest.mark.parametrize(("beta", "gamma"), [(1.0, 1.0), (0.0, 0.0), (1.0, 0.5), (0.5, 0.3)])
def test_general_formula_against_plain_numpy(beta: float, gamma: float) -> None:
    rows = sample(400).astype(np.float64)
    centre = beta * rows.mean(axis=0)
    eigenvalues, vectors = np.linalg.eigh((rows - centre).T @ (rows - centre) / len(rows))
    plain = (rows - centre) @ vectors[:, ::-1][:, :4] * eigenvalues[::-1][:4] ** (-gamma / 2)
    transform, spectrum = Whitening.fit(moments_of(rows.astype(np.float32)), 4, beta=beta, gamma=gamma)
    ours = transform.transform(rows.astype(np.float32))
    np.testing.assert_allclose(np.abs(ours), np.abs(plain), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(spectrum, eigenvalues[::-1], rtol=1e-5)


def test_two_fits_of_the_same_rows_in_another_order_agree_in_sign() -> None:
    rows = sample(1000)
    one, _ = Whitening.fit(moments_of(rows), 8)
    other, _ = Whitening.fit(moments_of(rows[::-1]), 8)
    np.testing.assert_allclose(one.components, other.components, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "rank"),
    [
        (sample(5), 4),  # n - 1
        (np.tile(sample(3), (50, 1)), 2),  # repeated rows
        (np.tile(sample(1), (50, 1)), 0),
        (sample(1), 0),
        (np.concatenate([sample(500, 6), sample(500, 6)], axis=1), 6),  # dependent columns
    ],
    ids=["few rows", "three repeated rows", "equal rows", "one row", "dependent columns"],
)
def test_m_above_the_rank_is_an_error_that_names_both(rows: NDArray[np.float32], rank: int) -> None:
    for beta in (1.0, 0.0):
        with pytest.raises(TransformError, match=rf"m = 12 .* rank {rank}|rank {rank + 1 - int(beta)}"):
            Whitening.fit(moments_of(rows), 12, beta=beta, gamma=beta)
    if rank:
        Whitening.fit(moments_of(rows), rank)
        with pytest.raises(TransformError, match=rf"m = {rank + 1} .* rank {rank};"):
            Whitening.fit(moments_of(rows), rank + 1)


def test_transform_checks_its_input_and_leaves_it_as_it_was() -> None:
    rows = sample(100)
    transform, _ = Whitening.fit(moments_of(rows), 4)
    before = rows.copy()
    assert transform.transform(rows).dtype == np.float32
    assert transform.transform(rows[:0]).shape == (0, 4)
    unit_vectors(rows, transform), unit_vectors(rows, None)
    np.testing.assert_array_equal(rows, before)
    with pytest.raises(DimensionError, match=r"\(n, 12\).*got \(3, 5\)"):
        transform.transform(np.zeros((3, 5), dtype=np.float32))


def test_saved_transform_is_read_back_exactly(tmp_path: Path) -> None:
    rows = sample(100)
    transform, _ = Whitening.fit(moments_of(rows), 4, gamma=0.3)
    transform.save(tmp_path / "t.safetensors")
    loaded = Whitening.load(tmp_path / "t.safetensors")
    np.testing.assert_array_equal(loaded.transform(rows), transform.transform(rows))
    (tmp_path / "t.safetensors").write_bytes(b"nonsense")
    with pytest.raises(TransformError, match="is not a transform"):
        Whitening.load(tmp_path / "t.safetensors")


def test_unit_vectors_have_length_one_and_zero_stays_zero() -> None:
    vectors = unit_vectors(np.array([[3, 4], [0, 0]], dtype=np.float32), None)
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0, 0]], rtol=1e-6)


def test_parse_transform_reads_kind_m_beta_and_gamma() -> None:
    assert parse_transform("none") is None
    assert parse_transform("flow") == FlowSpec()
    specs = [parse_transform(f"{kind}-256") for kind in ("whiten", "rotate", "soft")]
    assert [(spec.m, spec.beta, spec.gamma) for spec in specs if isinstance(spec, TransformSpec)] == [
        (256, 1, 1),
        (256, 0, 0),
        (256, 1, 0.5),
    ]


@pytest.mark.parametrize(
    "text", ["whiten", "whiten-0", "whiten-x", "rotate-1.5", "", "auto", "WHITEN-3", "pca-3", "flow-3"]
)
def test_unknown_transform_names_the_choices(text: str) -> None:
    with pytest.raises(UsageError, match="expected auto, none, whiten-M, rotate-M, soft-M, flow"):
        parse_transform(text)


@pytest.mark.parametrize(
    ("kind", "rows", "dimension", "expected"),
    [
        ("rotate", 2000, 384, "rotate-256"),
        ("rotate", 1000, 384, "none"),
        ("rotate", 2000, 256, "none"),
        ("whiten", 2000, 768, "whiten-256"),
        ("whiten", 2000, 1024, "whiten-256"),
        ("whiten", 2000, 312, "whiten-104"),
        ("whiten", 10, 768, "none"),
    ],
)
def test_auto_transform_suits_the_encoder_and_the_rows(kind: str, rows: int, dimension: int, expected: str) -> None:
    assert auto_transform(kind, rows, dimension)[0] == expected
