"""SimBERT's second half: the UniLM mask, the sequence-to-sequence loss, folders with a head, and paraphrases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import CHARACTERS, HIDDEN, POSITIONS, SPECIAL, add_head, make_tiny_model, random_texts
from torch import Tensor
from torch.nn import functional

from retrieval.encoders.base import EncoderSettings
from retrieval.encoders.transformer import TransformerEncoder
from retrieval.errors import EncoderError, UsageError
from retrieval.training.checkpoints import RunFolder
from retrieval.training.choice import weights_of
from retrieval.training.examples import TextPairs
from retrieval.training.generate import Paraphrase, _draw, generate
from retrieval.training.loop import LoopSettings, Stage, train
from retrieval.training.simbert import SimbertObjective, WritingEncoder
from retrieval.training.unilm import NoWriterError, UnilmModel, additive_mask, seq2seq_loss, unilm_mask
from retrieval.types import NoProgress

CLS, SEP = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
MOST = 16


def load(folder: Path, max_length: int = MOST) -> UnilmModel:
    return UnilmModel(TransformerEncoder(folder, EncoderSettings(str(folder), "cls", "", "", max_length), "cpu"))


@pytest.fixture
def model(headed: Path) -> UnilmModel:
    return load(headed)


FIRST, SECOND = ["一丁丂七", "丄丅", "abc三上下"], ["丈三", "万丌不与丏", "丐"]


def test_mask_is_the_table_written_by_hand() -> None:
    # [CLS] a [SEP] b b [SEP] and one place of padding; the second input is longer in a, and has no padding.
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1]])
    attention = torch.tensor([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1]])
    first = """
        1110000
        1110000
        1110000
        1111000
        1111100
        1111110
        0000000"""
    second = """
        1111100
        1111100
        1111100
        1111100
        1111100
        1111110
        1111111"""
    tables = [[[int(seen) for seen in row] for row in table.split()] for table in (first, second)]
    assert unilm_mask(segments, attention).dtype == torch.bool
    assert unilm_mask(segments, attention).int().tolist() == tables


def test_padding_on_the_left_is_hidden_too() -> None:
    mask = unilm_mask(torch.tensor([[0, 0, 0, 1]]), torch.tensor([[0, 1, 1, 1]]))
    assert mask[0].int().tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 1, 1]]


def test_pairs_stand_in_both_orders_with_their_segments(model: UnilmModel) -> None:
    inputs = model.inputs(["一丁", "七"], ["丂", "丄"])
    a, b, c, d, e = (len(SPECIAL) + CHARACTERS.index(character) for character in "一丁丂七丄")
    assert inputs["input_ids"].tolist() == [
        [CLS, a, b, SEP, c, SEP],
        [CLS, c, SEP, a, b, SEP],
        [CLS, d, SEP, e, SEP, 0],
        [CLS, e, SEP, d, SEP, 0],
    ]
    assert inputs["token_type_ids"].tolist() == [
        [0, 0, 0, 0, 1, 1],
        [0, 0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 0],
    ]
    assert inputs["attention_mask"].tolist() == [[1] * 6, [1] * 6, [1] * 5 + [0], [1] * 5 + [0]]


def test_each_text_is_cut_off_at_max_length(headed: Path) -> None:
    inputs = load(headed, 5).inputs(["一" * 40], ["丁" * 40])
    one, other = len(SPECIAL), len(SPECIAL) + 1
    assert inputs["input_ids"][0].tolist() == [CLS, one, one, one, SEP, other, other, other, SEP]


def test_texts_without_a_partner_are_told(model: UnilmModel) -> None:
    with pytest.raises(UsageError, match="2 and 1 texts are no pairs"):
        model.inputs(["一", "丁"], ["丂"])


@pytest.fixture(params=["sdpa", "eager"])
def attentive(request: pytest.FixtureRequest, headed: Path) -> UnilmModel:
    """The model under both of transformers' ways to compute attention on every machine."""
    model = load(headed)
    model.network.set_attn_implementation(request.param)
    assert model.network.base_model.config._attn_implementation == request.param
    return model


@torch.inference_mode()
def test_a_token_of_the_second_text_changes_no_state_before_it_and_every_one_after(attentive: UnilmModel) -> None:
    inputs = attentive.inputs(FIRST, SECOND)
    before = attentive.states(inputs)
    for row in range(len(before)):
        (places,) = np.nonzero(inputs["token_type_ids"][row].numpy())
        for place in places:
            changed = {name: tensor.clone() for name, tensor in inputs.items()}
            changed["input_ids"][row, place] = 300
            moved = (attentive.states(changed) - before).abs().amax(dim=-1)  # (B, T)
            whole = int(inputs["attention_mask"][row].sum())
            assert float(moved[row, :place].max()) < 1e-5
            assert float(moved[row, place:whole].min()) > 1e-3
            moved[row] = 0
            assert float(moved[inputs["attention_mask"].bool()].max()) < 1e-5


@torch.inference_mode()
def test_a_token_of_the_first_text_changes_every_state(attentive: UnilmModel) -> None:
    inputs = attentive.inputs(FIRST[:1], SECOND[:1])
    before = attentive.states(inputs)
    for place in range(4):
        inputs["input_ids"][0, 1 + place] = 300
        moved = (attentive.states(inputs) - before).abs().amax(dim=-1)
        assert float(moved[0].min()) > 1e-3


@torch.inference_mode()
def test_vectors_are_those_of_the_first_text_alone(attentive: UnilmModel) -> None:
    vectors, _ = attentive(attentive.inputs(FIRST, SECOND))
    texts = [text for pair in zip(FIRST, SECOND, strict=True) for text in pair]
    np.testing.assert_allclose(vectors.numpy(), attentive.encoder.encode(texts), atol=2e-5)


@torch.inference_mode()
def test_padding_changes_nothing_and_is_never_nan(model: UnilmModel) -> None:
    alone, together = model.inputs(FIRST[1:2], SECOND[1:2]), model.inputs(FIRST, SECOND)
    width = alone["input_ids"].shape[1]
    states = model.states(together)
    assert bool(states.isfinite().all())
    rows = together["attention_mask"][2:4, :width].bool()
    torch.testing.assert_close(states[2:4, :width][rows], model.states(alone)[rows], atol=1e-5, rtol=0)


@torch.inference_mode()
def test_half_precision_holds_no_nan(model: UnilmModel) -> None:
    inputs = model.inputs(FIRST, SECOND)
    vectors, loss = model(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        half_vectors, half_loss = model(inputs)
        half_states = model.states(inputs)
    assert bool(half_states.isfinite().all())  # the lowest float32 is -inf in bfloat16
    assert float(functional.cosine_similarity(vectors, half_vectors.float()).min()) > 0.99
    assert float(half_loss) == pytest.approx(float(loss), rel=0.05)


def plain_loss(logits: Tensor, ids: Tensor, segments: Tensor) -> float:
    """Token by token, as it is written in the paper."""
    total, count = 0.0, 0
    for row in range(len(ids)):
        for place in range(1, ids.shape[1]):
            if segments[row, place] == 1:
                scores = logits[row, place - 1].double().numpy()
                total += float(np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[ids[row, place]])
                count += 1
    return total / count


def test_loss_by_hand() -> None:
    # [CLS] a [SEP] b [SEP], three tokens in the vocabulary. b = 2 is predicted at place 2, [SEP] = 1 at place 3.
    logits = torch.log(
        torch.tensor([[[0.1, 0.1, 0.8], [0.8, 0.1, 0.1], [0.2, 0.3, 0.5], [0.5, 0.25, 0.25], [1, 1, 1]]])
    )
    ids, segments = torch.tensor([[0, 2, 1, 2, 1]]), torch.tensor([[0, 0, 0, 1, 1]])
    # -(log .5 + log .25) / 2 = 1.5 log 2
    loss = seq2seq_loss(logits, ids, segments, torch.nn.Identity())
    assert float(loss) == pytest.approx(1.5 * np.log(2), abs=1e-6)


@torch.inference_mode()
def test_loss_of_the_model_is_the_plain_one(model: UnilmModel) -> None:
    inputs = model.inputs(FIRST, SECOND)
    _, loss = model(inputs)
    segments = inputs["token_type_ids"]
    mask = additive_mask(unilm_mask(segments, inputs["attention_mask"]), torch.float32)
    logits = model.network(inputs["input_ids"], attention_mask=mask, token_type_ids=segments).logits
    assert float(loss) == pytest.approx(plain_loss(logits, inputs["input_ids"], segments), abs=1e-6)


def in_batch(vectors: Tensor, scale: float = 30.0) -> Tensor:
    """SimBERT's softmax: the partner of row 2i is 2i + 1, and a row is not compared with itself."""
    unit = functional.normalize(vectors, dim=-1)
    scores = (scale * unit @ unit.T).masked_fill(torch.eye(len(unit), dtype=torch.bool), -torch.inf)
    return functional.cross_entropy(scores, torch.arange(len(unit)) ^ 1)


def test_gradients_are_those_of_finite_differences(headed: Path) -> None:
    model = load(headed)
    model.network.double()
    inputs = model.inputs(FIRST, SECOND)

    def total() -> Tensor:
        vectors, loss = model(inputs)
        return in_batch(vectors) + loss

    total().backward()
    body, head = model.network.base_model, model.network.cls.predictions
    layer = body.encoder.layer[0]
    shown = int(inputs["input_ids"][0, 1])
    checked = [
        (body.embeddings.word_embeddings.weight, (shown, 3)),  # read, and tied to the head
        (body.embeddings.word_embeddings.weight, (700, 3)),  # in no text: as a token that is not predicted
        (body.embeddings.token_type_embeddings.weight, (1, 5)),
        (layer.attention.self.query.weight, (2, 7)),
        (layer.output.dense.weight, (4, 9)),
        (head.transform.dense.weight, (1, 2)),
        (head.bias, (shown,)),
    ]
    step = 1e-5
    for weight, place in checked:
        assert weight.dtype == torch.float64
        assert weight.grad is not None
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                weight[place] += sign * step
                values.append(float(total()))
                weight[place] -= sign * step
        slope = (values[0] - values[1]) / (2 * step)
        assert abs(slope) > 1e-6
        assert float(weight.grad[place]) == pytest.approx(slope, rel=1e-4, abs=1e-8)


def test_training_moves_what_the_encoder_encodes_with(headed: Path) -> None:
    model = load(headed)
    before = model.encoder.encode(FIRST)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    vectors, loss = model(model.inputs(FIRST, SECOND))
    (in_batch(vectors) + loss).backward()
    sgd.step()
    assert np.abs(model.encoder.encode(FIRST) - before).max() > 1e-3


def test_what_is_frozen_in_the_encoder_stays_frozen_and_the_head_follows(headed: Path) -> None:
    encoder = TransformerEncoder(headed, EncoderSettings("tiny", "cls", "", "", MOST), "cpu")
    encoder.model.get_input_embeddings().weight.requires_grad_(False)
    frozen = {name for name, value in UnilmModel(encoder).network.named_parameters() if not value.requires_grad}
    assert frozen == {"bert.embeddings.word_embeddings.weight"}  # the head's is the very same


def test_weights_that_the_encoder_was_given_since_it_was_loaded_are_kept(headed: Path) -> None:
    encoder = TransformerEncoder(headed, EncoderSettings("tiny", "cls", "", "", MOST), "cpu")
    with torch.no_grad():
        encoder.model.embeddings.token_type_embeddings.weight += 1
        encoder.model.encoder.layer[1].output.dense.weight *= 2
    vectors = encoder.encode(FIRST)
    assert np.array_equal(UnilmModel(encoder).encoder.encode(FIRST), vectors)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_model_without_a_head_is_told(kind: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / kind, kind)
    expected = {"bert": "has no language-model head", "roberta": "is a roberta with"}
    with pytest.raises(NoWriterError, match=expected[kind]):
        load(folder)


def test_a_head_that_fits_another_vocabulary_is_told(headed: Path, tmp_path: Path) -> None:
    network = transformers.BertForMaskedLM.from_pretrained(headed)
    weights = {**network.state_dict(), "cls.predictions.transform.dense.weight": torch.zeros(5, 5)}
    network.save_pretrained(tmp_path, state_dict=weights)
    for path in headed.glob("tokenizer*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(EncoderError, match=r"transform.dense.weight has shape \(5, 5\), expected \(32, 32\)"):
        load(tmp_path)


def test_lengths_and_poolings_that_do_not_go_are_told(headed: Path) -> None:
    with pytest.raises(UsageError, match=f"max length 33: .* {POSITIONS} tokens .*; expected at most 32"):
        load(headed, 33)
    assert load(headed, 32).states(load(headed, 32).inputs(["一" * 50], ["丁" * 50])).shape == (2, 63, HIDDEN)
    with pytest.raises(NoWriterError, match=r"pooling 'last-avg': SimBERT's vectors are those of .CLS."):
        UnilmModel(TransformerEncoder(headed, EncoderSettings("tiny", "last-avg", "", "", MOST), "cpu"))
    with pytest.raises(NoWriterError, match="the prompt 'text: ' would stand in paraphrases too"):
        UnilmModel(TransformerEncoder(headed, EncoderSettings("tiny", "cls", "", "text: ", MOST), "cpu"))


def test_half_a_character_is_told(model: UnilmModel) -> None:
    with pytest.raises(UsageError, match="half a surrogate pair"):
        generate(model, ["一\ud800"])


def test_a_saved_folder_is_one_of_sentence_transformers_and_keeps_the_head(model: UnilmModel, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model.save(tmp_path)
    texts = [*FIRST, *SECOND]
    vectors = model.encoder.encode(texts)
    library = SentenceTransformer(str(tmp_path), device="cpu")
    assert library.max_seq_length == MOST
    np.testing.assert_allclose(library.encode(texts), vectors, atol=1e-5)
    stock = transformers.AutoModel.from_pretrained(tmp_path, add_pooling_layer=False)
    stock.load_state_dict(model.network.base_model.state_dict())  # the very keys
    for name, tensor in transformers.AutoModel.from_pretrained(tmp_path, add_pooling_layer=False).state_dict().items():
        assert torch.equal(tensor, model.network.base_model.state_dict()[name]), name
    settings = EncoderSettings(str(tmp_path), "", "", "", 0)  # all out of the folder
    again = UnilmModel(TransformerEncoder(tmp_path, settings, "cpu"))
    assert np.array_equal(again.encoder.encode(texts), vectors)
    assert again.encoder.settings.max_length == MOST
    for name, tensor in model.network.state_dict().items():
        assert torch.equal(again.network.state_dict()[name], tensor), name
    written = {path.name for path in tmp_path.iterdir()}
    assert {"model.safetensors", "modules.json", "1_Pooling", "tokenizer.json"} <= written
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]


@torch.inference_mode()
def test_cached_keys_give_the_logits_of_the_whole_input(model: UnilmModel) -> None:
    inputs = model.inputs(FIRST[:1], SECOND[:1])
    ids, split = inputs["input_ids"][:1], 6
    whole = model.network.cls(model.states(model.inputs(FIRST[:1], SECOND[:1])))[:1]
    assert inputs["token_type_ids"][0].tolist() == [0] * split + [1] * 3
    cache = transformers.DynamicCache()
    torch.testing.assert_close(model.next_logits(ids[:, :split], 0, cache), whole[:, split - 1], atol=1e-4, rtol=0)
    for place in range(split, ids.shape[1]):
        logits = model.next_logits(ids[:, place : place + 1], 1, cache)
        torch.testing.assert_close(logits, whole[:, place], atol=1e-4, rtol=0)


def test_a_token_is_drawn_among_the_likeliest_that_reach_top_p() -> None:
    shares = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15]).log()

    def drawn(top_p: float) -> list[int]:
        chances = torch.linspace(0, 1, 1001)
        return torch.bincount(_draw(shares.expand(1001, 5), chances, top_p), minlength=5).tolist()

    assert drawn(0.0) == [0, 1001, 0, 0, 0]
    # .4 alone does not reach .6, .4 + .3 does: 4/7 and 3/7 of the draws
    assert drawn(0.6) == pytest.approx([0, 572, 0, 429, 0], abs=1)
    assert drawn(0.8) == pytest.approx([0, 471, 0, 353, 177], abs=1)  # .4, .3 and .15 of .85
    assert drawn(1.0) == pytest.approx([100, 400, 50, 300, 150], abs=2)


def test_drawing_reaches_beyond_the_first_tokens_that_are_looked_at() -> None:
    flat = torch.zeros(2000, 3000)  # all alike: .95 of them are needed
    drawn = _draw(flat, torch.linspace(0, 1, 2000), 0.95)
    assert len(drawn.unique()) > 1900


def test_paraphrases_hang_on_seed_and_text_alone(model: UnilmModel) -> None:
    texts = random_texts(7, longest=8)
    done: list[int] = []
    asked: dict[str, Any] = {"samples": 30, "temperature": 3.0}
    together = generate(model, texts, 5, **asked, seed=4, on_batch=done.append)
    assert sum(done) == len(texts)
    assert together == generate(model, texts, 5, **asked, seed=4)
    backwards = generate(model, texts[::-1], 5, **asked, seed=4)[::-1]
    alone = [generate(model, [text], 5, **asked, seed=4)[0] for text in texts]
    for other in (backwards, alone):
        assert [[one.text for one in row] for row in other] == [[one.text for one in row] for row in together]
    assert together != generate(model, texts, 5, **asked, seed=5)
    assert generate(model, [], 5) == []


def test_an_empty_text_has_no_paraphrases_and_counts_all_the_same(model: UnilmModel) -> None:
    done: list[int] = []
    found = generate(
        model, ["", *random_texts(2, longest=8), " "], 3, samples=100, temperature=3.0, on_batch=done.append
    )
    assert found[0] == found[3] == []
    assert any(found[1:3])
    assert sum(done) == 4


def test_paraphrases_are_distinct_others_and_ranked_by_cosine(model: UnilmModel) -> None:
    texts = random_texts(5, longest=8)
    found = generate(model, texts, 6, samples=60, temperature=3.0)
    assert any(found)
    for text, paraphrases in zip(texts, found, strict=True):
        written = [one.text for one in paraphrases]
        assert len(written) <= 6
        assert len({*written, text, ""}) == len(written) + 2
        assert not any(name in one for one in written for name in SPECIAL)
        scores = [one.score for one in paraphrases]
        assert scores == sorted(scores, reverse=True)
        vectors = torch.from_numpy(model.encoder.encode([text, *written]))
        cosines = functional.cosine_similarity(vectors[1:], vectors[:1])
        assert scores == pytest.approx(cosines.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"count": 0}, "0 paraphrases a text: expected 1 or more"),
        ({"samples": -1}, "-1 samples a text: expected 1 or more"),
        ({"top_p": 1.5}, "top-p 1.5: expected a number from 0 to 1"),
        ({"temperature": 0.0}, "temperature 0.0: expected a number above 0"),
        ({"seed": -1}, "seed -1: expected 0 or more"),
    ],
)
def test_numbers_out_of_range_are_told(model: UnilmModel, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        generate(model, FIRST, **asked)


def in_batch_accuracy(vectors: Tensor) -> float:
    """How many of the rows 2i and 2i + 1 have each other as the nearest of all."""
    unit = functional.normalize(vectors.detach(), dim=-1)
    nearest = (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(dim=1)
    return float((nearest == torch.arange(len(unit)) ^ 1).float().mean())


def test_a_tiny_model_learns_64_pairs_and_then_writes_the_partners(tmp_path: Path) -> None:
    model = load(add_head(make_tiny_model(tmp_path / "learner"), 0.1))
    texts = random_texts(128, seed=3, longest=8)
    first, second = texts[:64], texts[64:]
    inputs = model.inputs(first, second)
    vectors, loss = model(inputs)
    assert in_batch_accuracy(vectors) < 0.2
    assert loss.item() > 6  # of about 900 tokens: log 900 = 6.8
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    steps = 150
    schedule = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.1, total_iters=steps)
    for _ in range(steps):  # dropout is off: what is asked is whether the objective can be learnt
        vectors, loss = model(inputs)
        adam.zero_grad()
        (in_batch(vectors) + loss).backward()
        adam.step()
        schedule.step()
    vectors, loss = model(inputs)
    assert in_batch_accuracy(vectors) == 1
    assert loss.item() < 0.1

    model.save(tmp_path / "saved")
    again = UnilmModel(TransformerEncoder(tmp_path / "saved", EncoderSettings("saved", "", "", "", 0), "cpu"))
    wanted = [*second, *first]
    greedy = generate(again, [*first, *second], 1, samples=1, top_p=0.0)
    assert sum([one.text for one in row] == [want] for row, want in zip(greedy, wanted, strict=True)) >= 120
    warm = generate(again, first, 3, temperature=0.5, seed=1)
    assert sum(want in [one.text for one in row] for row, want in zip(warm, second, strict=True)) >= 60
    assert all(isinstance(one, Paraphrase) for row in warm for one in row)


def some_pairs(count: int) -> TextPairs:
    texts = random_texts(2 * count, seed=5, longest=8)
    return TextPairs("made", "", texts[:count], texts[count:], np.ones(count))


def test_simbert_is_the_sum_of_both_losses_and_leaves_out_pairs_of_a_text_seen_before(headed: Path) -> None:
    model = WritingEncoder(EncoderSettings(str(headed), "cls", "", "", 0), device="cpu", precision="float32")
    assert model.encoder.settings.max_length == POSITIONS // 2  # two of them fit
    pairs = some_pairs(4)
    pairs.first[3] = pairs.second[1]
    loss = SimbertObjective([pairs], scale=10.0).loss(model, 0, np.array([2, 1, 0, 3]))
    kept = [[side[row] for row in (2, 1, 0)] for side in (pairs.first, pairs.second)]
    vectors, written = model.unilm(model.unilm.inputs(*kept))
    assert loss.item() == pytest.approx((in_batch(vectors, 10.0) + written).item(), abs=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_loop_trains_the_head_too_and_the_folder_keeps_it(headed: Path, tmp_path: Path, precision: str) -> None:
    model = WritingEncoder(EncoderSettings(str(headed), "cls", "", "", MOST), device="cpu", precision=precision)
    before = weights_of(model)
    settings = LoopSettings(batch=16, lr=3e-3, eval_every=10)
    stages = [Stage(SimbertObjective([some_pairs(32)]), 30)]
    state = train(model, stages, settings, RunFolder(tmp_path / "run", {}), None, NoProgress())
    losses = [point.loss for point in state.curve]
    assert losses[-1] < losses[0] - 0.3
    after = weights_of(model)
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert {"cls.predictions.bias", "cls.predictions.transform.dense.weight"} <= changed
    assert "bert.embeddings.word_embeddings.weight" not in after  # frozen
    (tmp_path / "model").mkdir()
    assert model.save(tmp_path / "model") == ["Transformer", "Pooling"]
    again = load(tmp_path / "model")
    assert all(torch.equal(again.network.state_dict()[name], tensor) for name, tensor in after.items())
