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
from retrieval.transforms.moments import BLOCK_ROWS, USUAL, Moments, usual_exact_rows
from retrieval.transforms.spec import AutoSpec, FlowSpec, TransformSpec, auto_transform, parse_transform
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


@pytest.fixture
def few_exact_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of 64 rows, and float32 after the first 128: what large corpora go through, at small ones' cost."""
    monkeypatch.setattr("retrieval.transforms.moments.BLOCK_ROWS", 64)
    monkeypatch.setattr(Moments.__init__, "__defaults__", (128,))


def same_to_the_bit(one: Moments, other: Moments) -> bool:
    return (
        one.rows == other.rows
        and np.array_equal(one.mean(), other.mean())
        and np.array_equal(one.covariance(), other.covariance())
    )


@pytest.mark.usefixtures("few_exact_rows")
def test_moments_beyond_the_exact_rows_are_the_same_to_the_bit_under_any_chunking() -> None:
    rows = sample(1000)
    whole = moments_of(rows)
    assert not whole.exact
    for cuts in ([1, 63, 64, 65, 500], [999], [128, 129, 192, 700], [127, 640]):
        assert same_to_the_bit(moments_of(*np.split(rows, cuts)), whole)


@pytest.mark.usefixtures("few_exact_rows")
def test_rows_of_another_type_are_taken_as_float32_whatever_the_chunks() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 4))
    expected = moments_of(rows.astype(np.float32))
    for cuts in ([], [30, 100]):
        assert same_to_the_bit(moments_of(*np.split(rows, cuts)), expected)
    assert same_to_the_bit(moments_of(np.asfortranarray(rows.astype(np.float32))), expected)


@pytest.mark.usefixtures("few_exact_rows")
@pytest.mark.parametrize("mean", [0.0, 25.0, 800.0])
def test_moments_beyond_the_exact_rows_are_as_near_as_float32_even_with_a_large_mean(mean: float) -> None:
    rows = sample(5000, mean=mean)
    exact = np.cov(rows.T.astype(np.float64), bias=True)
    scale = np.sqrt(np.outer(exact.diagonal(), exact.diagonal()))
    assert np.abs((moments_of(rows).covariance() - exact) / scale).max() < 1e-7
    assert Moments(12, None).exact


@settings(max_examples=25)
@given(st.integers(0, 3 * BLOCK_ROWS), st.sampled_from([0.0, 25.0, 800.0]))
def test_two_parts_merged_equal_one_pass(cut: int, mean: float) -> None:
    rows = sample(3 * BLOCK_ROWS, 3, mean=mean)
    rows[cut:] += 5  # the parts lie apart, and are shifted apart
    first, second, whole = moments_of(rows[:cut]), moments_of(rows[cut:]), moments_of(rows)
    before = second.rows, second.covariance() if second.rows else None
    for merged in (first.merged(second), second.merged(first)):
        assert merged.rows == whole.rows
        np.testing.assert_allclose(merged.mean(), whole.mean(), rtol=1e-12)
        error = np.abs(merged.covariance() - whole.covariance()).max()
        assert error < 1e-12 * np.abs(whole.covariance()).max()
    assert second.rows == before[0]
    assert before[1] is None or np.array_equal(before[1], second.covariance())


@pytest.mark.parametrize("mean", [0.0, 25.0, 800.0])
@pytest.mark.parametrize(("exact_rows", "tolerance"), [(None, 1e-12), (4 * BLOCK_ROWS, 1e-7)])
def test_halves_of_many_rows_merged_equal_one_pass_as_their_products_allow(
    exact_rows: int | None, tolerance: float, mean: float
) -> None:
    # 1e-12 of the largest entry, at any size, where all products are float64; with the float32 ones that begin after
    # exact_rows, a block's rounding depends on its shift and its rows, and a half has its own of both.
    rows = sample(12 * BLOCK_ROWS + 1000, 8, mean=mean)
    cut = len(rows) // 2
    first, second, whole = (Moments(8, exact_rows) for _ in range(3))
    first.update(rows[:cut]), second.update(rows[cut:]), whole.update(rows)
    merged = first.merged(second)
    assert merged.rows == whole.rows
    assert whole.exact == merged.exact == (exact_rows is None)
    error = np.abs(merged.covariance() - whole.covariance()).max() / np.abs(whole.covariance()).max()
    assert error < tolerance
    assert (merged.noise() > 1e-10) == (exact_rows is not None)


def test_usual_exact_rows_are_whole_blocks_that_cost_little() -> None:
    assert [usual_exact_rows(d) for d in (8, 384, 768, 100_000)] == [2_097_152, 40_960, 20_480, BLOCK_ROWS]
    assert Moments(768, USUAL)._exact_rows == 20_480
    assert (Moments(768, 0)._exact_rows, Moments(768)._exact_rows) == (0, None)


def test_moments_of_other_dimensions_do_not_merge() -> None:
    with pytest.raises(DimensionError, match="of 5 dimensions cannot join those of 12"):
        Moments(12).merged(Moments(5))


@pytest.mark.usefixtures("few_exact_rows")
@pytest.mark.parametrize("cut", [0, 1, 64, 100, 300, 1000])
def test_saved_moments_go_on_as_if_they_had_never_stopped(cut: int, tmp_path: Path) -> None:
    rows = sample(1000)
    moments = moments_of(rows[:cut])
    moments.save(tmp_path / "m.safetensors")
    loaded = Moments.load(tmp_path / "m.safetensors")
    loaded.update(rows[cut:])
    assert same_to_the_bit(loaded, moments_of(rows))
    assert loaded.noise() == moments_of(rows).noise()


def test_a_file_that_does_not_hold_moments_is_named(tmp_path: Path) -> None:
    transform, _ = Whitening.fit(moments_of(sample(100)), 4)
    transform.save(tmp_path / "t.safetensors")
    (tmp_path / "n.safetensors").write_bytes(b"nonsense")
    for name in ("t.safetensors", "n.safetensors", "absent"):
        with pytest.raises(TransformError, match=f"{name} does not hold moments"):
            Moments.load(tmp_path / name)


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


def test_whitening_equals_the_papers_own_formula() -> None:
    # Su et al. 2021, algorithm 1: mu, Sigma, U Lambda U^T = Sigma, W = U Lambda^(-1/2), x' = (x - mu) W[:, :k]
    rows = sample(300).astype(np.float64)
    mu = rows.mean(axis=0)
    u, eigenvalues, _ = np.linalg.svd(np.cov(rows.T))
    papers = (rows - mu) @ (u @ np.diag(eigenvalues**-0.5))[:, :6]
    transform, _ = Whitening.fit(moments_of(rows.astype(np.float32)), 6)
    # numpy's covariance divides by n - 1, ours by n
    ours = transform.transform(rows.astype(np.float32)) * np.sqrt((len(rows) - 1) / len(rows))
    np.testing.assert_allclose(ours * np.sign((ours * papers).sum(axis=0)), papers, atol=2e-4)
    # and in its cosines, with neither sign nor scale
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


def test_whitening_equals_faisss_pca_matrix_up_to_sign_and_its_n() -> None:
    import faiss

    rows = sample(2000)
    for gamma in (1.0, 0.5, 0.0):
        peer = faiss.PCAMatrix(12, 5, -gamma / 2)
        peer.train(rows)
        transform, spectrum = Whitening.fit(moments_of(rows), 5, gamma=gamma)
        # FAISS does not divide by n: its eigenvalues are those of the sum, about n times these.
        np.testing.assert_allclose(faiss.vector_to_array(peer.eigenvalues)[:5], len(rows) * spectrum[:5], rtol=1e-4)
        ours, expected = transform.transform(rows), peer.apply(rows) * len(rows) ** (gamma / 2)
        signs = np.sign((ours * expected).sum(axis=0))
        np.testing.assert_allclose(ours * signs, expected, atol=2e-4 * np.abs(expected).max())


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
    ("text", "numbers", "canonical"),
    [
        ("whiten-384:beta=1,gamma=1,eps=0", (1, 1, 0), "whiten-384:eps=0"),
        ("whiten-384:gamma=0.8", (1, 0.8, 1e-9), "whiten-384:gamma=0.8"),
        ("rotate-64:eps=1e-6, beta=.5", (0.5, 0, 1e-6), "rotate-64:beta=0.5,eps=1e-06"),
        ("soft-8:gamma=0.5", (1, 0.5, 1e-9), "soft-8"),
        ("whiten-auto:overlap=0.80", (1, 1, 1e-9), "whiten-auto"),
        ("soft-auto:overlap=.95,beta=0", (0, 0.5, 1e-9), "soft-auto:beta=0,overlap=0.95"),
        ("soft-8:gamma=0.123456789012345", (1, 0.123456789012345, 1e-9), "soft-8:gamma=0.123456789012345"),
    ],
)
def test_parse_transform_reads_explicit_numbers_and_writes_the_shortest(
    text: str, numbers: tuple[float, float, float], canonical: str
) -> None:
    spec = parse_transform(text)
    assert isinstance(spec, TransformSpec | AutoSpec)
    assert (spec.beta, spec.gamma, spec.eps) == numbers
    assert str(spec) == canonical
    assert parse_transform(canonical) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("whiten-8:", "unknown part ''.*expected beta=X, gamma=X, eps=X"),
        ("whiten-8:alpha=1", "unknown part 'alpha=1' of transform 'whiten-8:alpha=1'"),
        ("whiten-8:beta", "part 'beta' .*expected beta from 0 to 1"),
        ("whiten-8:gamma=1,beta=x", "part 'beta=x' .*expected beta from 0 to 1"),
        ("whiten-8:gamma=1.5", "part 'gamma=1.5' .*expected gamma from 0 to 1"),
        ("whiten-8:gamma=nan", "part 'gamma=nan'"),
        ("whiten-8:eps=-1e-9", "part 'eps=-1e-9' .*expected eps from 0 to 0.1"),
        ("whiten-8:eps=0,eps=0", "says eps twice"),
        ("whiten-8:overlap=0.9", "unknown part 'overlap=0.9' .*expected beta=X, gamma=X, eps=X"),
        ("rotate-auto:overlap=1.1", "part 'overlap=1.1' .*expected overlap from 0 to 1"),
        ("rotate-auto:m=3", "unknown part 'm=3' .*expected beta=X, gamma=X, eps=X, overlap=X"),
    ],
)
def test_a_wrong_part_of_a_transform_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_transform(text)


def layer_normed(rows: int, dimension: int = 24) -> NDArray[np.float32]:
    """As a layer norm leaves them: one direction holds nothing but float32's rounding.

    Most of each vector is what all have in common, as in e5, whose last eigenvalue is 2e-15 of the first (LCQMC).
    """
    states = sample(rows, dimension, mean=0)
    states += 60 * np.random.default_rng(1).normal(size=dimension).astype(np.float32)
    states = (states - states.mean(axis=1, keepdims=True)) / states.std(axis=1, keepdims=True)
    return (states * np.linspace(0.5, 2, dimension)).astype(np.float32)  # the layer norm's gains


def test_eps_0_keeps_the_direction_that_a_layer_norm_leaves_to_noise() -> None:
    rows = layer_normed(2000)
    with pytest.raises(TransformError, match=r"m = 24 .* rank 23;"):
        Whitening.fit(moments_of(rows), 24)
    transform, spectrum = Whitening.fit(moments_of(rows), 24, eps=0)
    assert 0 < spectrum[-1] < 1e-13 * spectrum[0] < spectrum[-2]
    whitened = transform.transform(rows).astype(np.float64)
    np.testing.assert_allclose(whitened.var(axis=0)[:23], 1, atol=1e-3)


@pytest.mark.usefixtures("few_exact_rows")
@pytest.mark.parametrize("eps", [0.0, 1e-9])
@pytest.mark.parametrize("mean", [0.0, 800.0])
def test_repeated_rows_have_no_more_rank_beyond_the_exact_rows(eps: float, mean: float) -> None:
    rows = np.tile(sample(7, mean=mean), (200, 1))
    with pytest.raises(TransformError, match=r"rank 6;"):
        Whitening.fit(moments_of(rows), 7, eps=eps)
    Whitening.fit(moments_of(rows), 6, eps=eps)


@pytest.mark.parametrize(
    "text", ["whiten", "auto-whiten", "whiten-0", "whiten-x", "rotate-1.5", "", "auto", "WHITEN-3", "pca-3", "flow-3"]
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
