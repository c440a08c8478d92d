"""BERT-flow: exact inverse, determinants against autograd, likelihoods against known densities, indexes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from conftest import Retr, random_texts
from numpy.typing import NDArray

from retrieval import Index
from retrieval.encoders.onnx import GRAPH, OnnxEncoder
from retrieval.errors import DimensionError, TransformError
from retrieval.transforms.apply import load_transform, unit_vectors
from retrieval.transforms.flow import Epoch, Flow
from retrieval.transforms.flow_training import FlowNetwork
from retrieval.transforms.moments import Moments
from retrieval.transforms.sampling import distinct_rows, sample_rows
from retrieval.transforms.whitening import Whitening

SMALL = {"steps": 6, "width": 32}


def bent(rows: int, dimension: int = 5, seed: int = 0) -> NDArray[np.float32]:
    """A parabola with noise, mixed into all dimensions and moved away from the origin: far from Gaussian."""
    random = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(dimension, dimension))
    rows_ = random.normal(size=(rows, dimension))
    rows_[:, 1] = rows_[:, 0] ** 2 + 0.3 * rows_[:, 1]
    return (rows_ @ mixing + 3).astype(np.float32)


@pytest.fixture(scope="module", params=[2, 5, 32])
def flow(request: pytest.FixtureRequest) -> Flow:
    return Flow.fit(bent(1500, request.param), epochs=4, **SMALL)


def test_inverse_is_exact(flow: Flow) -> None:
    rows = bent(300, flow.dimension, seed=1)
    latents = flow.transform(rows)
    assert latents.shape == rows.shape
    assert np.abs(latents - rows).max() > 1
    np.testing.assert_allclose(flow.inverse(latents), rows, atol=1e-4)
    # and the other way round, from where no vector was seen
    anywhere = np.random.default_rng(2).normal(size=rows.shape).astype(np.float32)
    np.testing.assert_allclose(flow.transform(flow.inverse(anywhere)), anywhere, atol=1e-4)


def test_numpy_and_torch_give_the_same_latents_and_likelihoods(flow: Flow) -> None:
    rows = bent(50, flow.dimension, seed=1)
    network = FlowNetwork(flow.weights)
    with torch.no_grad():
        latents, log_determinants = network(torch.from_numpy(rows))
        likelihoods = network.log_likelihood(torch.from_numpy(rows))
    np.testing.assert_allclose(flow.transform(rows), latents.numpy(), atol=1e-5)
    np.testing.assert_allclose(flow.log_determinant(rows), log_determinants.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(flow.log_likelihood(rows), likelihoods.numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dimension", [2, 5])
def test_log_determinant_is_that_of_autograds_jacobian(dimension: int) -> None:
    flow = Flow.fit(bent(1500, dimension), epochs=4, **SMALL)
    network = FlowNetwork(flow.weights).double()
    rows = bent(10, dimension, seed=1)
    for row, ours in zip(rows, flow.log_determinant(rows), strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda x: network(x[None])[0][0], torch.tensor(row).double())
        assert isinstance(jacobian, torch.Tensor)
        assert ours == pytest.approx(float(torch.linalg.slogdet(jacobian).logabsdet), abs=1e-4)


@pytest.mark.parametrize("dimension", [32, 33])
def test_two_steps_change_every_dimension(dimension: int) -> None:
    flow = Flow.fit(bent(400, dimension), epochs=3, steps=2, width=8)
    network = FlowNetwork(flow.weights).double()
    row = torch.tensor(bent(1, dimension, seed=1)[0]).double()
    jacobian = torch.autograd.functional.jacobian(lambda x: network(x[None])[0][0], row)
    assert isinstance(jacobian, torch.Tensor)
    # an output that only actnorm and permutation made would depend on one input
    assert ((jacobian != 0).sum(dim=1) > 1).all()


def test_likelihood_rises_over_training_and_is_that_of_the_weights_kept() -> None:
    epochs: list[Epoch] = []
    rows = bent(3000)
    flow = Flow.fit(rows, epochs=12, on_epoch=epochs.append, **SMALL)
    assert [epoch.number for epoch in epochs] == list(range(1, flow.fitted.epochs + 1))
    best = max(epochs, key=lambda epoch: epoch.held_out_nats)
    assert (flow.fitted.best_epoch, flow.fitted.held_out_nats) == (best.number, best.held_out_nats)
    assert flow.fitted.held_out_nats > flow.fitted.start_nats + 0.3
    fresh = flow.log_likelihood(bent(3000, seed=1)).mean() / 5
    assert fresh == pytest.approx(flow.fitted.held_out_nats, abs=0.1)
    # A Gaussian, however well fitted, cannot say as much of these rows: the flow is more than a whitening.
    gaussian = -(np.log(2 * np.pi * np.e) + np.linalg.slogdet(np.cov(rows.T))[1] / 5) / 2
    assert fresh > gaussian + 0.05


def test_likelihood_of_a_gaussian_comes_near_its_entropy() -> None:
    random = np.random.default_rng(0)
    mixing = random.normal(size=(4, 4))
    flow = Flow.fit((random.normal(size=(4000, 4)) @ mixing).astype(np.float32), epochs=30, **SMALL)
    fresh = (random.normal(size=(4000, 4)) @ mixing).astype(np.float32)
    # h = (d log(2 pi e) + log |Sigma|) / 2, Sigma = M^T M
    entropy = np.log(2 * np.pi * np.e) / 2 + np.linalg.slogdet(mixing)[1] / 4
    assert flow.log_likelihood(fresh).mean() / 4 == pytest.approx(-entropy, abs=0.06)
    latents = flow.transform(fresh)
    np.testing.assert_allclose(np.cov(latents.T), np.eye(4), atol=0.2)


def test_same_seed_same_flow_whatever_the_chunks_and_no_global_state_changes() -> None:
    rows = bent(700)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    one = Flow.fit(rows, epochs=2, rows=500, **SMALL)
    assert torch.equal(torch.get_rng_state(), state)
    other = Flow.fit(iter(np.split(rows, [0, 10, 400])), epochs=2, rows=500, **SMALL)
    another = Flow.fit(rows, epochs=2, rows=500, seed=1, **SMALL)
    np.testing.assert_array_equal(one.transform(rows), other.transform(rows))
    assert one.fitted == other.fitted
    assert np.abs(one.transform(rows) - another.transform(rows)).max() > 0.1


def test_training_ends_when_the_held_out_likelihood_no_longer_rises() -> None:
    random = np.random.default_rng(0)
    flow = Flow.fit(random.normal(size=(300, 6)).astype(np.float32), epochs=150)
    assert flow.fitted.epochs == flow.fitted.best_epoch + 5 < 150
    assert flow.fitted.held_out_nats >= flow.fitted.start_nats


def test_sampled_rows_are_evenly_drawn() -> None:
    rows = np.arange(40, dtype=np.float32)[:, None]
    drawn = np.zeros(40)
    for seed in range(2000):
        sample = sample_rows(np.split(rows, [7, 25]), 10, seed)
        assert len(np.unique(sample)) == 10
        drawn[sample[:, 0].astype(int)] += 1
    # 2000 x 10 / 40 = 500 each, deviation sqrt(2000 x .25 x .75) = 19
    assert np.abs(drawn - 500).max() < 5 * 19
    np.testing.assert_array_equal(sample_rows([rows], 40, 0), rows)
    np.testing.assert_array_equal(distinct_rows(np.concatenate([rows, rows[::-1]])), rows)


def test_constant_and_dependent_dimensions_do_not_blow_up_other_vectors() -> None:
    rows = bent(1000, 6)
    rows[:, 2] = 7  # constant
    rows[:, 4] = rows[:, 0] - rows[:, 1]
    flow = Flow.fit(rows, epochs=20, **SMALL)
    latents = flow.transform(bent(200, 6, seed=1))  # the two dimensions are as they please here
    assert np.isfinite(latents).all()
    np.testing.assert_allclose(flow.inverse(flow.transform(rows)), rows, atol=1e-3)


def test_batch_size_is_invisible(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = bent(50, flow.dimension, seed=1)
    whole, likelihood = flow.transform(rows), flow.log_likelihood(rows)
    inverse = flow.inverse(whole)
    monkeypatch.setattr("retrieval.transforms.flow._BLOCK_ROWS", 7)
    np.testing.assert_allclose(flow.transform(rows), whole, atol=1e-5)
    np.testing.assert_allclose(flow.log_likelihood(rows), likelihood, atol=1e-4)
    np.testing.assert_allclose(flow.inverse(whole), inverse, atol=1e-4)
    np.testing.assert_allclose(np.concatenate([flow.transform(row[None]) for row in rows]), whole, atol=1e-5)


def test_flow_checks_its_input_and_leaves_it_as_it_was(flow: Flow) -> None:
    d = flow.dimension
    rows = bent(20, d)
    before = rows.copy()
    for method in (flow.transform, flow.inverse):
        assert method(rows).dtype == np.float32
        assert method(rows[:0]).shape == (0, d)
        with pytest.raises(DimensionError, match=rf"\(n, {d}\).*got \(3, {d + 1}\)"):
            method(np.zeros((3, d + 1), dtype=np.float32))
    flow.log_likelihood(rows)
    np.testing.assert_array_equal(rows, before)
    assert (flow.m, len(flow.log_likelihood(rows[:0]))) == (d, 0)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([], "no vector was seen"),
        ([bent(0)], "no vector was seen"),
        ([bent(99)], "at least 100 distinct vectors, got 99"),
        ([np.tile(bent(3), (100, 1))], "at least 100 distinct vectors, got 3"),
        ([np.arange(200, dtype=np.float32)[:, None]], "have 1: use --transform none"),
        ([bent(20), np.full((2, 5), np.nan, dtype=np.float32)], "row 20 holds NaN or infinity"),
    ],
)
def test_rows_that_carry_no_flow_are_named(chunks: list[NDArray[np.float32]], message: str) -> None:
    with pytest.raises(TransformError, match=message):
        Flow.fit(chunks, **SMALL)


def test_chunks_of_another_dimension_are_refused() -> None:
    with pytest.raises(DimensionError, match=r"\(n, 5\), got \(200, 6\)"):
        Flow.fit([bent(200), bent(200, 6)])


def test_saved_flow_is_read_back_exactly(flow: Flow, tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    flow.save(path)
    loaded = load_transform(path)
    assert isinstance(loaded, Flow)
    assert loaded.fitted == flow.fitted
    rows = bent(30, flow.dimension, seed=1)
    np.testing.assert_array_equal(loaded.transform(rows), flow.transform(rows))
    with pytest.raises(TransformError, match="is not a transform"):
        Whitening.load(path)


def test_load_transform_tells_a_whitening_from_a_flow_and_both_from_nonsense(tmp_path: Path) -> None:
    from safetensors.numpy import save

    path = tmp_path / "t.safetensors"
    moments = Moments(5)
    moments.update(bent(100))
    Whitening.fit(moments, 3)[0].save(path)
    assert isinstance(load_transform(path), Whitening)
    with pytest.raises(TransformError, match="is not a flow: 'fitted'"):
        Flow.load(path)
    flow = Flow.fit(bent(100), epochs=1, **SMALL)
    flow.save(path)
    whole = path.read_bytes()
    weights = dict(flow.weights)
    narrower = weights | {"b3": weights["b3"][:, 1:]}
    twice = weights | {"permutation": np.zeros_like(weights["permutation"])}
    path.unlink()
    for content in (b"nonsense", b"", whole[:-7], save({"mean": bent(1)}, {"kind": "flow"}), save({"mean": bent(1)})):
        path.write_bytes(content)
        with pytest.raises(TransformError, match=r"is not a (transform|flow)"):
            load_transform(path)
    for tensors, message in ((narrower, "its tensors have shapes"), (twice, "its permutation is none")):
        Flow(tensors, flow.fitted).save(path)
        with pytest.raises(TransformError, match=message):
            load_transform(path)


@pytest.fixture
def built(tmp_path: Path, tiny_model: Path) -> Index:
    (tmp_path / "c.txt").write_text("\n".join(random_texts(300)), encoding="utf-8")
    return Index.build(tmp_path / "c.txt", tmp_path / "i", model=tiny_model, transform="flow", precision="float32")


def test_index_of_a_flow_finds_every_document_and_its_graph_ends_before_it(built: Index) -> None:
    texts = random_texts(300)
    hits = built.search(texts, k=1)
    assert [found[0].doc_id for found in hits] == [str(row) for row in range(300)]
    assert min(found[0].score for found in hits) > 0.999
    stored = built.manifest.transform
    assert (stored["name"], stored["m"], stored["rows"]) == ("flow", 32, 300)
    assert stored["held_out_nats"] >= stored["start_nats"]
    assert {value.name for value in onnx.load(built.path / "encoder" / GRAPH).graph.output} == {"pooled"}
    # The fit is the one that the stored embeddings give.
    graph = built.encoder
    assert isinstance(graph, OnnxEncoder)
    flow = Flow.fit(graph.encode(texts), epochs=stored["epochs"])
    expected = np.argsort(-(unit_vectors(graph.encode(texts[:20]), flow) @ unit_vectors(graph.encode(texts), flow).T))
    assert [[int(hit.doc_id) for hit in found] for found in built.search(texts[:20], k=3)] == expected[:, :3].tolist()


def test_index_of_a_flow_answers_without_torch(built: Index) -> None:
    code = (
        "import sys, retrieval; index = retrieval.Index.open(sys.argv[1], preload=True);"
        "hits = index.search(sys.argv[2], k=1)[0];"
        "print(hits[0].doc_id, round(hits[0].score, 3), [m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    text = random_texts(300)[7]
    done = subprocess.run([sys.executable, "-c", code, built.path, text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "7 1.0 []"


def test_command_line_fits_a_flow_tells_its_likelihood_and_refuses_few_documents(
    tmp_path: Path, tiny_model: Path, retr: Retr
) -> None:
    (tmp_path / "c.txt").write_text("\n".join(random_texts(120)), encoding="utf-8")
    (tmp_path / "few.txt").write_text("\n".join(random_texts(20)), encoding="utf-8")
    done = retr("index", "c.txt", "--model", tiny_model, "--transform", "flow", "--backend", "torch")
    assert done.returncode == 0, done.stderr
    assert "flow, epoch 1 of at most 200: " in done.stderr
    assert "nats a dimension of held-out vectors" in done.stderr
    assert "transform    flow, fitted on 120 vectors in " in retr("info").stdout
    few = retr("index", "few.txt", "--model", tiny_model, "--transform", "flow", "--backend", "torch")
    assert few.returncode == 1
    assert "a flow wants at least 100 distinct documents, the corpus has 20" in few.stderr
