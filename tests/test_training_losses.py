"""Training objectives: plain-Python formulas, finite differences, worked values, degenerate batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from retrieval.errors import UsageError
from retrieval.training import losses

EXACT = 1e-12  # float64 against the formula: rounding only
SINGLE = 1e-6  # float32 of values near 1
Rows = Sequence[Sequence[float]]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def plain_cosine(one: Sequence[float], other: Sequence[float]) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))


def plain_cosent(cosines: Sequence[float], labels: Sequence[float], scale: float) -> float:
    indexes = range(len(labels))
    ordered = [(i, j) for i in indexes for j in indexes if labels[i] > labels[j]]
    return math.log(1 + sum(math.exp(scale * (cosines[j] - cosines[i])) for i, j in ordered))


def plain_simbert(rows: Rows, scale: float) -> float:
    """Row by row: of the others, minus the log of the share of the partner."""
    losses = []
    for here, row in enumerate(rows):
        partner = here + 1 if here % 2 == 0 else here - 1
        shares = {
            there: math.exp(scale * plain_cosine(row, rows[there])) for there in range(len(rows)) if there != here
        }
        losses.append(-math.log(shares[partner] / sum(shares.values())))
    return sum(losses) / len(losses)


def plain_simcse(first: Rows, second: Rows, scale: float) -> float:
    losses = []
    for here, row in enumerate(first):
        shares = [math.exp(scale * plain_cosine(row, other)) for other in second]
        losses.append(-math.log(shares[here] / sum(shares)))
    return sum(losses) / len(losses)


def plain_ranking(
    first: Rows, second: Rows, alike: Sequence[bool], related: Sequence[Sequence[bool]], scale: float
) -> float:
    losses = []
    for here in (row for row, together in enumerate(alike) if together):
        for one, others in ((first[here], second), (second[here], first)):
            shares = {
                there: math.exp(scale * plain_cosine(one, other))
                for there, other in enumerate(others)
                if there == here or not related[here][there]
            }
            losses.append(-math.log(shares[here] / sum(shares.values())))
    return sum(losses) / len(losses)


def plain_triplet(anchor: Rows, positive: Rows, negative: Rows, margin: float) -> float:
    hinges = [
        max(math.dist(a, p) - math.dist(a, n) + margin, 0) for a, p, n in zip(anchor, positive, negative, strict=True)
    ]
    return sum(hinges) / len(hinges)


def plain_nli(weight: Rows, u: Rows, v: Rows, labels: Sequence[int]) -> float:
    losses = []
    for one, other, label in zip(u, v, labels, strict=True):
        features = [*one, *other, *(abs(a - b) for a, b in zip(one, other, strict=True))]
        logits = [sum(w * x for w, x in zip(row, features, strict=True)) for row in weight]
        losses.append(math.log(sum(map(math.exp, logits))) - logits[label])
    return sum(losses) / len(losses)


def test_cosines_are_those_of_the_formula() -> None:
    first, second = drawn(5, 4), drawn(5, 4, seed=1)
    expected = [plain_cosine(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    assert losses.cosines(first, second).tolist() == pytest.approx(expected, abs=EXACT)


def test_cosine_of_a_zero_vector_is_0_with_gradient_0() -> None:
    first = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    second = torch.tensor([[1.0, 2.0], [4.0, 3.0]], requires_grad=True)
    cosines = losses.cosines(first, second)
    assert cosines.tolist() == pytest.approx([0, 0.96], abs=SINGLE)  # (3*4 + 4*3) / (5*5) = 24/25
    cosines.sum().backward()
    assert first.grad is not None
    assert second.grad is not None
    assert first.grad[0].tolist() == second.grad[0].tolist() == [0, 0]
    # d cos / da = b / (|a||b|) - cos a / |a|^2 = (4, 3)/25 - .96 (3, 4)/25 = (1.12, -.84)/25
    assert first.grad[1].tolist() == pytest.approx([0.0448, -0.0336], abs=SINGLE)


@pytest.mark.parametrize("labels", [[1, 0, 1, 0, 0], [5.0, 2.5, 2.5, 0.0, 4.0], [3, 2, 1, 0, 4]])
def test_cosent_is_its_formula(labels: list[float]) -> None:
    cosines = drawn(5).tanh()
    loss = losses.cosent(cosines, torch.tensor(labels), scale=20.0)
    assert loss.item() == pytest.approx(plain_cosent(cosines.tolist(), labels, 20.0), abs=1e-10)


def test_cosent_of_two_pairs_worked_by_hand() -> None:
    # one ordered pair: label 1 at cosine .5, label 0 at .6: log(1 + exp(20 (.6 - .5))) = log(1 + e^2) = 2.126928
    loss = losses.cosent(torch.tensor([0.5, 0.6]), torch.tensor([1, 0]))
    assert loss.item() == pytest.approx(2.126928, abs=SINGLE)
    # the right order costs log(1 + e^-2) = .126928
    assert losses.cosent(torch.tensor([0.6, 0.5]), torch.tensor([1, 0])).item() == pytest.approx(0.126928, abs=SINGLE)


@pytest.mark.parametrize("labels", [[1, 1, 1], [0, 0, 0], [2.5, 2.5, 2.5]])
def test_cosent_without_an_ordered_pair_is_0_with_gradient_0(labels: list[float]) -> None:
    cosines = torch.tensor([0.1, 0.9, -0.3], requires_grad=True)
    loss = losses.cosent(cosines, torch.tensor(labels))
    assert loss.item() == 0
    loss.backward()
    assert cosines.grad is not None
    assert cosines.grad.tolist() == [0, 0, 0]


def test_cosent_is_stable_where_exp_overflows() -> None:
    cosines = torch.tensor([-1.0, 1.0], requires_grad=True)
    loss = losses.cosent(cosines, torch.tensor([1, 0]), scale=1000.0)  # exp(2000) is beyond float32
    assert loss.item() == pytest.approx(2000)
    loss.backward()
    assert cosines.grad is not None
    assert cosines.grad.tolist() == pytest.approx([-1000, 1000])


def test_cosent_knows_only_the_order_of_labels() -> None:
    cosines = drawn(6).tanh()
    grades = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 4.0])
    assert losses.cosent(cosines, grades).item() == losses.cosent(cosines, grades.exp()).item()


def test_simberts_softmax_is_its_formula() -> None:
    vectors = drawn(6, 3)
    loss = losses.in_batch_softmax(vectors, scale=30.0)
    assert loss.item() == pytest.approx(plain_simbert(vectors.tolist(), 30.0), abs=1e-10)


def test_simberts_softmax_of_two_orthogonal_pairs_worked_by_hand() -> None:
    # Rows a, a, b, b with a orthogonal to b: every row sees its partner at cosine 1 and two rows at 0, never itself:
    # -log(e^s / (e^s + 2)) = log(1 + 2 e^-s); s = 2: log(1.270671) = .239545
    pairs = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    assert losses.in_batch_softmax(pairs, scale=2.0).item() == pytest.approx(0.239545, abs=SINGLE)
    # Rows a, b, a, b: the partner at 0, and of the two others one at 1 and one at 0: log(e^2 + 1 + 1) = 2.239545
    crossed = pairs[[0, 2, 1, 3]]
    assert losses.in_batch_softmax(crossed, scale=2.0).item() == pytest.approx(2.239545, abs=SINGLE)


def test_each_pair_counts_in_both_orders() -> None:
    vectors = drawn(8, 5)
    turned = vectors[losses.partners(8)]
    assert losses.in_batch_softmax(turned).item() == pytest.approx(losses.in_batch_softmax(vectors).item(), abs=EXACT)
    assert losses.partners(8).tolist() == [1, 0, 3, 2, 5, 4, 7, 6]
    assert losses.partners(0).tolist() == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: losses.in_batch_softmax(drawn(2, 3)), "a batch of 1 has nothing to tell .* at least 2 pairs"),
        (lambda: losses.in_batch_softmax(drawn(0, 3)), "a batch of 0 .* at least 2 pairs"),
        (lambda: losses.in_batch_softmax(drawn(5, 3)), "5 rows are no pairs: expected an even number"),
        (lambda: losses.simcse(drawn(1, 3), drawn(1, 3)), "a batch of 1 .* at least 2 texts"),
        (lambda: losses.simcse(drawn(3, 3), drawn(2, 3)), r"vectors \(3, 3\) and \(2, 3\): expected the same"),
        (lambda: losses.cosines(drawn(3, 3), drawn(1, 3)), r"vectors \(3, 3\) and \(1, 3\): expected the same"),
        (lambda: losses.cosent(drawn(3), drawn(3, 1)), r"cosines \(3,\) and labels \(3, 1\): expected one label"),
        (lambda: losses.cosine_regression(drawn(3), drawn(1)), r"cosines \(3,\) and scores \(1,\): expected one score"),
        (lambda: losses.triplet(drawn(2, 3), drawn(2, 3), drawn(1, 3)), "expected the same rows"),
    ],
)
def test_batches_that_make_no_sense_are_refused(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


def test_simcse_is_its_formula() -> None:
    first, second = drawn(5, 4), drawn(5, 4, seed=1)
    loss = losses.simcse(first, second)
    assert loss.item() == pytest.approx(plain_simcse(first.tolist(), second.tolist(), 1 / 0.05), abs=1e-10)
    # it is not symmetric: the rows of the first ask
    assert abs(losses.simcse(second, first).item() - loss.item()) > 1e-3


def test_cosine_regression_is_the_mean_squared_error() -> None:
    # (.5 - 1)^2 + (.2 - 0)^2 + (-.1 - .4)^2 = .25 + .04 + .25 = .54; / 3 = .18
    loss = losses.cosine_regression(torch.tensor([0.5, 0.2, -0.1]), torch.tensor([1.0, 0.0, 0.4], dtype=torch.float64))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(0.18, abs=SINGLE)


def test_triplet_is_its_formula() -> None:
    anchor, positive, negative = (drawn(6, 4, seed=seed) for seed in range(3))
    for margin in (1.0, 0.25):
        loss = losses.triplet(anchor, positive, negative, margin)
        expected = plain_triplet(anchor.tolist(), positive.tolist(), negative.tolist(), margin)
        assert loss.item() == pytest.approx(expected, abs=EXACT)


def test_triplet_worked_by_hand_with_a_row_that_is_far_enough() -> None:
    anchor, positive = torch.zeros(2, 2, requires_grad=True), torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    negative = torch.tensor([[0.0, 4.5], [0.0, 9.0]])
    # 5 - 4.5 + 1 = 1.5; 1 - 9 + 1 < 0 counts 0; the mean is .75
    loss = losses.triplet(anchor, positive, negative)
    assert loss.item() == pytest.approx(0.75, abs=SINGLE)
    loss.backward()
    assert anchor.grad is not None
    # d(|a-p| - |a-n|)/da = -p/5 + n/4.5 = (-.6, -.8) + (0, 1), halved by the mean; the far row moves nothing
    assert anchor.grad.flatten().tolist() == pytest.approx([-0.3, 0.1, 0, 0], abs=SINGLE)


def test_triplet_gradient_is_finite_where_anchor_and_positive_are_equal() -> None:
    anchor = torch.tensor([[1.0, 2.0], [1.0, 2.0]], requires_grad=True)
    positive = torch.tensor([[1.0, 2.0], [1.0, 2.0]], requires_grad=True)
    loss = losses.triplet(anchor, positive, torch.tensor([[1.0, 2.5], [1.0, 2.0]]))  # 0 - .5 + 1 and 0 - 0 + 1
    assert loss.item() == pytest.approx(0.75, abs=SINGLE)
    loss.backward()
    assert anchor.grad is not None
    assert positive.grad is not None
    assert torch.isfinite(anchor.grad).all()
    assert positive.grad.tolist() == [[0, 0], [0, 0]]
    assert anchor.grad.flatten().tolist() == pytest.approx([0, 0.5, 0, 0], abs=SINGLE)  # nearer to a row below n


def test_nli_head_is_its_formula_without_a_bias() -> None:
    torch.manual_seed(0)
    head = losses.NliHead(4, classes=3).double()
    assert [tuple(parameter.shape) for parameter in head.parameters()] == [(3, 12)]
    u, v, labels = drawn(5, 4), drawn(5, 4, seed=1), [0, 2, 1, 1, 0]
    logits = head(u, v)
    assert logits.shape == (5, 3)
    loss = losses.nli(logits, torch.tensor(labels))
    assert loss.item() == pytest.approx(
        plain_nli(head.linear.weight.tolist(), u.tolist(), v.tolist(), labels), abs=EXACT
    )
    assert losses.NliHead(8, classes=2)(drawn(3, 8).float(), drawn(3, 8).float()).shape == (3, 2)


def test_nli_head_worked_by_hand() -> None:
    head = losses.NliHead(1, classes=2)
    with torch.no_grad():
        head.linear.weight.copy_(torch.tensor([[1.0, 10.0, 100.0], [0.0, 0.0, 1.0]]))
    # u = 2, v = 5: (2, 5, 3): 2 + 50 + 300 = 352, and 3
    assert head(torch.tensor([[2.0]]), torch.tensor([[5.0]])).tolist() == [[352, 3]]


ALIKE = torch.tensor([True, False, True, True])
RELATED = torch.eye(4, dtype=torch.bool)
RELATED[0, 2] = RELATED[2, 0] = True


def test_in_batch_ranking_is_its_formula() -> None:
    first, second = drawn(4, 3), drawn(4, 3, seed=1)
    for scale in (1.0, 50.0):
        loss = losses.in_batch_ranking(first, second, ALIKE, RELATED, scale)
        plain = plain_ranking(first.tolist(), second.tolist(), ALIKE.tolist(), RELATED.tolist(), scale)
        assert loss.item() == pytest.approx(plain, abs=1e-10)


def test_in_batch_ranking_worked_by_hand() -> None:
    # Pair 0 is (1, 0) with itself, pair 1 is (0, 1) with (1, 0) and does not count, but its second sentence is an
    # answer as good as the right one: log 2. Backwards there is one at cosine 1 and one at 0: log(1 + e^-1) = .313262.
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    second = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
    alike, apart = torch.tensor([True, False]), torch.eye(2, dtype=torch.bool)
    loss = losses.in_batch_ranking(first, second, alike, apart, scale=1.0)
    assert loss.item() == pytest.approx((math.log(2) + 0.313262) / 2, abs=SINGLE)
    # Where they share a sentence, there is nothing to be told from.
    shared = torch.ones(2, 2, dtype=torch.bool)
    assert losses.in_batch_ranking(first, second, alike, shared, scale=1.0).item() == 0


def test_in_batch_ranking_without_a_pair_that_belongs_together_is_0_with_gradient_0() -> None:
    first, second = drawn(3, 2).requires_grad_(), drawn(3, 2, seed=1)
    loss = losses.in_batch_ranking(first, second, torch.zeros(3, dtype=torch.bool), torch.eye(3, dtype=torch.bool))
    assert loss.item() == 0
    loss.backward()
    assert first.grad is not None
    assert not first.grad.any()


GRADED = torch.tensor([0.0, 1.0, 0.5, 1.0])
LOSSES: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
    "cosines": (lambda a, b: losses.cosines(a, b).sum(), [drawn(4, 3), drawn(4, 3, seed=1)]),
    "cosent": (lambda a, b: losses.cosent(losses.cosines(a, b), GRADED), [drawn(4, 3), drawn(4, 3, seed=1)]),
    "in_batch_softmax": (losses.in_batch_softmax, [drawn(6, 3)]),
    "in_batch_ranking": (
        lambda a, b: losses.in_batch_ranking(a, b, ALIKE, RELATED),
        [drawn(4, 3), drawn(4, 3, seed=1)],
    ),
    "simcse": (losses.simcse, [drawn(4, 3), drawn(4, 3, seed=1)]),
    "cosine_regression": (lambda c: losses.cosine_regression(c, GRADED), [drawn(4).tanh()]),
    "triplet": (losses.triplet, [drawn(4, 3, seed=seed) for seed in range(3)]),
    "nli": (
        lambda u, v, w: losses.nli(
            torch.func.functional_call(losses.NliHead(3).double(), {"linear.weight": w}, (u, v)),
            torch.tensor([0, 1, 2, 1]),
        ),
        [drawn(4, 3), drawn(4, 3, seed=1), drawn(3, 9, seed=2)],
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_is_that_of_finite_differences_in_float64(name: str) -> None:
    loss, inputs = LOSSES[name]
    assert loss(*inputs).dtype == torch.float64
    assert loss(*inputs).shape == ()
    assert gradcheck(loss, [given.clone().requires_grad_() for given in inputs])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32_under_autocast_too(name: str, half: torch.dtype) -> None:
    loss, inputs = LOSSES[name]
    rounded = [given.to(half) for given in inputs]
    expected = loss(*(given.float() for given in rounded))
    with torch.autocast("cpu", torch.bfloat16):
        under = loss(*(given.float() for given in rounded))
        found = loss(*rounded)
    assert expected.dtype == found.dtype == torch.float32
    assert found.item() == under.item() == expected.item()
