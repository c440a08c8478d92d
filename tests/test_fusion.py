"""Several encoders as one: the text that names them, the arithmetic, means, counts, fingerprints, files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import HIDDEN, random_texts
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save

from retrieval.encoders import fusion
from retrieval.encoders.base import Encoder, EncoderCounts, EncoderSettings, Family, TextKind, settings_fingerprint
from retrieval.encoders.fusion import FusionEncoder, FusionPart, FusionTerm, fusion_text, parse_fusion
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.errors import DimensionError, EncoderError, UsageError

# Unit vectors of an encoder that keeps its rows to 1e-5: their components move by no more.
BATCH_TOLERANCE = 1e-5
EXACT = 1e-7  # float32's rounding of values up to 1

PLANE = {"a": [3.0, 4.0], "b": [0.0, 2.0], "c": [3.0, 0.0], "?": [0.0, 0.0]}
LINE = {"a": [2.0], "b": [-5.0], "c": [6.0], "?": [0.0]}


class Table:
    """An encoder that looks its texts up; each is one token, cut off where it is `c`."""

    def __init__(self, rows: dict[str, list[float]], source: str, family: Family = "raw", max_length: int = 0) -> None:
        self.rows, self.family = rows, family
        self.settings = EncoderSettings(source, "table", "", "", max_length)
        self.counts = EncoderCounts()
        self.kinds: list[TextKind] = []

    @property
    def dimension(self) -> int:
        return len(self.rows["a"])

    @property
    def fingerprint(self) -> str:
        return settings_fingerprint(self.settings, {"rows": json.dumps(self.rows)})

    def encode(
        self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        self.kinds.append(kind)
        self.counts += EncoderCounts(texts.count("c"), len(texts), texts.count("?"), texts.count("?"))
        if on_batch is not None:
            on_batch(len(texts))
        return np.array([self.rows[text] for text in texts], dtype=np.float32).reshape(len(texts), self.dimension)


def plane(family: Family = "raw", max_length: int = 0) -> Table:
    return Table(PLANE, "plane", family, max_length)


def line(family: Family = "raw", max_length: int = 0) -> Table:
    return Table(LINE, "line", family, max_length)


def mean(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("a+b", [(1, "a", False), (1, "b", False)]),
        ("a+0.3*b", [(1, "a", False), (0.3, "b", False)]),
        ("a + .3 * center( b )", [(1, "a", False), (0.3, "b", True)]),
        (
            "2*center(org/a)+1.50*/models/b (old)+c",
            [(2, "org/a", True), (1.5, "/models/b (old)", False), (1, "c", False)],
        ),
    ],
)
def test_parse_fusion_of_worked_texts(text: str, terms: list[tuple[float, str, bool]]) -> None:
    assert parse_fusion(text) == terms


@pytest.mark.parametrize("text", ["a", "", "org/model", "0.3*b", "center(b)", "/models/a"])
def test_text_without_a_plus_sign_is_no_fusion(text: str) -> None:
    assert parse_fusion(text) is None


def test_existing_folder_with_a_plus_sign_is_no_fusion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_fusion(str(tmp_path / "a+b")) == [(1, str(tmp_path / "a"), False), (1, "b", False)]
    (tmp_path / "a+b").mkdir()
    assert parse_fusion(str(tmp_path / "a+b")) is None
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_fusion("~/a+b") is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a+", "''"),
        ("+a", "''"),
        ("a+ +b", "''"),
        ("a+0*b", "'0*b'"),
        ("a+0.000*b", "'0.000*b'"),
        ("a+-0.3*b", "'-0.3*b'"),
        ("a+1e-3*b", "'1e-3*b'"),
        ("a+inf*b", "'inf*b'"),
        ("a+x*b", "'x*b'"),
        ("a+0.3*", "'0.3*'"),
        ("a+*b", "'*b'"),
        ("a+.*b", "'.*b'"),
        ("a+0.3*0.3*b", "'0.3*0.3*b'"),
        ("a+b*0.3", "'b*0.3'"),
        ("a+" + "9" * 400 + "*b", "'9"),
        ("a+0." + "0" * 60 + "1*b", "'0.0"),
        ("a+center()", "'center()'"),
        ("a+center( )", "'center( )'"),
        ("a+center(b", "'center(b'"),
        ("center(a+b)", "'center(a'"),
        ("a+center(0.3*b)", "'center(0.3*b)'"),
        ("a+center(center(b))", "'center(center(b))'"),
        ("~nobody-of-this-name/" + "a" * 300 + "++b", "''"),
    ],
)
def test_malformed_fusion_is_refused_with_the_part_and_the_form(text: str, wrong: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fusion(text)
    assert str(caught.value).startswith(wrong)
    assert "is no part of a fusion" in str(caught.value)
    assert "a+0.3*center(b)" in str(caught.value)


_MODELS = st.from_regex(r"[A-Za-z0-9_/.-]+", fullmatch=True)
_WEIGHTS = st.floats(1e-15, 1e15)


@given(st.lists(st.builds(FusionTerm, _WEIGHTS, _MODELS, st.booleans()), min_size=2, max_size=4))
def test_fusion_text_is_read_back_as_the_same_parts(terms: list[FusionTerm]) -> None:
    assert parse_fusion(fusion_text(terms)) == terms


def test_vectors_of_worked_values() -> None:
    encoder = FusionEncoder([FusionPart(plane()), FusionPart(line(), 0.5)])
    # (3, 4) / 5 and .5 x 2 / 2; (0, 2) / 2 and .5 x -5 / 5
    expected = [[0.6, 0.8, 0.5], [0.0, 1.0, -0.5]]
    vectors = encoder.encode(["a", "b"])
    np.testing.assert_allclose(vectors, expected, atol=EXACT)
    # cosine .8 with weight 1, cosine -1 with weight .5: .8 - .25
    assert vectors[0] @ vectors[1] == pytest.approx(0.55, abs=1e-6)


def test_centred_vectors_of_worked_values() -> None:
    encoder = FusionEncoder([FusionPart(plane(), 2.0, True, mean(0, 4)), FusionPart(line())])
    # 2 x unit((3, 4) - (0, 4)) = 2 x (1, 0); 2 x unit((0, 2) - (0, 4)) = 2 x (0, -1); 2 x unit(3, -4) = (1.2, -1.6)
    np.testing.assert_allclose(encoder.encode(["a", "b", "c"]), [[2, 0, 1], [0, -2, -1], [1.2, -1.6, 1]], atol=EXACT)


def test_zero_vector_of_a_part_stays_zero_centred_or_not() -> None:
    known = Table({"a": [1.0], "?": [3.0]}, "known")
    encoder = FusionEncoder([FusionPart(plane(), 1.0, True, mean(1, 1)), FusionPart(line()), FusionPart(known)])
    np.testing.assert_array_equal(encoder.encode(["?"]), [[0, 0, 0, 1]])


def test_vector_that_is_its_mean_but_for_rounding_is_zero_not_noise() -> None:
    third = Table({"a": [1 / 3, 1e4 / 3]}, "third")
    near = np.array([1 / 3, 1e4 / 3], dtype=np.float32) + mean(0, 2e-4)  # float32's step at 3333 is 2.4e-4
    assert near[1] != np.float32(1e4 / 3)
    assert not FusionEncoder([FusionPart(third, 1.0, True, near)]).encode(["a"]).any()


def test_lengths_beyond_float32s_squares_are_right() -> None:
    large = Table({"a": [3e30, 4e30], "b": [3e-30, 4e-30]}, "large")
    np.testing.assert_allclose(FusionEncoder([FusionPart(large)]).encode(["a", "b"]), [[0.6, 0.8]] * 2, atol=EXACT)


def test_means_are_those_of_the_raw_vectors_that_are_not_zero() -> None:
    encoder = FusionEncoder([FusionPart(plane(), 1.0, True), FusionPart(line(), 0.3), FusionPart(line(), 1.0, True)])
    encoder.fit_means(["a", "b", "c", "?"])
    first, second, third = (part.mean for part in encoder.parts)
    assert first is not None
    assert third is not None
    np.testing.assert_array_equal(first, mean(2, 2))  # ((3, 4) + (0, 2) + (3, 0)) / 3
    assert second is None
    np.testing.assert_array_equal(third, mean(1))  # (2 - 5 + 6) / 3
    assert encoder.counts == EncoderCounts()


def test_mean_of_texts_of_which_nothing_is_known_is_zero() -> None:
    encoder = FusionEncoder([FusionPart(line(), 1.0, True)])
    encoder.fit_means(["?", "?"])
    np.testing.assert_array_equal(encoder.encode(["a", "?"]), [[1], [0]])


def test_means_are_taken_over_a_sample_spread_over_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "MEAN_TEXTS", 4)
    monkeypatch.setattr(fusion, "BATCH_TEXTS", 3)
    part = line()
    encoder = FusionEncoder([FusionPart(part, 1.0, True)])
    sizes: list[int] = []
    encoder.fit_means(["a", "b"] * 3 + ["c"] * 2, sizes.append)  # rows 0, 2, 4, 6: a, a, a, c
    np.testing.assert_array_equal(encoder.parts[0].mean, mean(3))  # (2 + 2 + 2 + 6) / 4
    assert sizes == [3, 1]
    assert part.kinds == ["document"] * 2


def test_centred_part_without_a_mean_can_be_neither_encoded_nor_saved_nor_named(tmp_path: Path) -> None:
    encoder = FusionEncoder([FusionPart(line()), FusionPart(plane(), 1.0, True)])
    for use in (
        lambda: encoder.encode([]),
        lambda: encoder.fingerprint,
        lambda: encoder.save(tmp_path / "fusion.safetensors"),
    ):
        with pytest.raises(EncoderError, match="plane is to be centred and has no mean yet: call fit_means"):
            use()
    with pytest.raises(UsageError, match="needs texts, got none"):
        encoder.fit_means([])
    FusionEncoder([FusionPart(line())]).fit_means([])  # nothing to be centred, nothing needed


@pytest.mark.parametrize("count", [0, 1, 3])
def test_encode_gives_float32_of_the_same_rank_for_none_one_and_many(count: int) -> None:
    encoder = FusionEncoder([FusionPart(plane()), FusionPart(line())])
    vectors = encoder.encode(["a"] * count)
    assert vectors.shape == (count, 3) == (count, encoder.dimension)
    assert vectors.dtype == np.float32


def test_a_vector_never_depends_on_its_batch(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "BATCH_TEXTS", 7)
    inner = load_encoder(resolve_settings(tiny_model), "cpu")
    other = load_encoder(resolve_settings(tiny_model, pooling="cls"), "cpu")
    encoder = FusionEncoder([FusionPart(inner), FusionPart(other, 0.3, True)])
    texts = random_texts(20)
    encoder.fit_means(texts)
    sizes: list[int] = []
    vectors = encoder.encode(texts, on_batch=sizes.append)
    assert sizes == [7, 7, 6]
    assert vectors.shape == (20, 2 * HIDDEN)
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(vectors, alone, atol=BATCH_TOLERANCE)


def test_texts_means_and_part_vectors_are_not_modified() -> None:
    class Kept(Table):
        vectors = np.array([[3.0, 4.0]], dtype=np.float32)

        def encode(
            self, texts: Sequence[str], kind: TextKind = "document", on_batch: Callable[[int], None] | None = None
        ) -> NDArray[np.float32]:
            return self.vectors

    centre = mean(1, 2)
    kept = Kept(PLANE, "kept")
    FusionEncoder([FusionPart(kept, 2.0, True, centre), FusionPart(kept)]).encode(["a"])
    np.testing.assert_array_equal(centre, mean(1, 2))
    np.testing.assert_array_equal(kept.vectors, [[3, 4]])


def test_kind_reaches_the_parts() -> None:
    part = plane()
    FusionEncoder([FusionPart(part)]).encode(["a"], kind="query")
    assert part.kinds == ["query"]


def test_counts_are_texts_once_and_tokens_of_every_part() -> None:
    known = Table({"a": [1.0], "c": [1.0], "?": [1.0]}, "known")
    encoder = FusionEncoder([FusionPart(plane()), FusionPart(line())])
    encoder.encode(["a", "c", "?"])
    encoder.encode(["c"])
    # Both parts cut `c` off, twice; 4 tokens in each; `?` is unknown to both.
    assert encoder.counts == EncoderCounts(truncated=2, tokens=8, unknown=2, without_vector=1)
    part_known = FusionEncoder([FusionPart(plane()), FusionPart(known)])
    part_known.encode(["?"])
    assert part_known.counts.without_vector == 0  # one part knows it


def test_settings_name_the_fusion_and_the_smallest_length() -> None:
    encoder = FusionEncoder(
        [FusionPart(plane(max_length=512)), FusionPart(line(max_length=128), 0.3, True, mean(0)), FusionPart(line())]
    )
    assert encoder.settings == EncoderSettings("plane+0.3*center(line)+line", "fusion", "", "", 128)
    assert FusionEncoder([FusionPart(line())]).settings.max_length == 0


def test_family_is_tuned_if_any_part_is() -> None:
    assert FusionEncoder([FusionPart(plane()), FusionPart(line())]).family == "raw"
    assert FusionEncoder([FusionPart(plane()), FusionPart(line("tuned"))]).family == "tuned"


def test_fingerprint_is_another_for_anything_that_shapes_a_vector() -> None:
    parts = [FusionPart(plane()), FusionPart(line(), 0.5, True, mean(1))]
    variants = [
        parts,
        parts[::-1],
        parts[:1],
        [parts[0], replace(parts[1], weight=0.25)],
        [parts[0], replace(parts[1], mean=mean(1.5))],
        [parts[0], FusionPart(line(), 0.5)],
        [parts[0], FusionPart(line(), 0.5, True, mean(0))],
        [FusionPart(Table({"a": [3.0, 5.0]}, "plane")), parts[1]],
    ]
    assert len({FusionEncoder(variant).fingerprint for variant in variants}) == len(variants)
    assert FusionEncoder(list(parts)).fingerprint == FusionEncoder(parts).fingerprint


def test_means_are_in_the_fingerprint_as_fitted() -> None:
    encoder = FusionEncoder([FusionPart(plane(), 1.0, True)])
    encoder.fit_means(["a", "b"])
    before = encoder.fingerprint
    encoder.fit_means(["a", "c"])
    assert encoder.fingerprint != before


@given(st.lists(st.sampled_from("abc?"), min_size=1, max_size=20), _WEIGHTS, st.booleans(), st.booleans())
def test_save_and_load_are_exact(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], weight: float, first: bool, second: bool
) -> None:
    path = tmp_path_factory.mktemp("fusion") / "fusion.safetensors"
    encoder = FusionEncoder([FusionPart(plane(), weight, first), FusionPart(line(), 0.3, second)])
    encoder.fit_means(texts)
    encoder.save(path)
    loaded = FusionEncoder.load(path, load_table)
    assert loaded.fingerprint == encoder.fingerprint
    assert loaded.settings == encoder.settings
    np.testing.assert_array_equal(loaded.encode(texts), encoder.encode(texts))


def load_table(settings: EncoderSettings) -> Encoder:
    return {"plane": plane, "line": line}[settings.source]()


def test_load_refuses_a_part_that_is_another_encoder(tmp_path: Path) -> None:
    path = tmp_path / "fusion.safetensors"
    FusionEncoder([FusionPart(plane()), FusionPart(line())]).save(path)
    with pytest.raises(EncoderError, match="plane is another encoder than the fusion in"):
        FusionEncoder.load(path, lambda settings: line())


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"nonsense",
        save({"mean.0": mean(1)}),
        save({"mean.0": mean(1)}, metadata={"other": "x"}),
        save({"mean.0": mean(1)}, metadata={"fusion": "{"}),
        save({"mean.0": mean(1)}, metadata={"fusion": "[1]"}),
        save({}, metadata={"fusion": json.dumps([])}),
        save(
            {},
            metadata={
                "fusion": json.dumps(
                    [{"settings": plane().settings.to_json(), "fingerprint": "", "weight": 1, "centred": True}]
                )
            },
        ),
    ],
    ids=["missing", "empty", "nonsense", "bare", "other", "no-json", "no-records", "no-parts", "no-mean"],
)
def test_load_of_a_file_that_is_no_fusion_is_one_clear_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "fusion.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EncoderError, match=r"fusion\.safetensors is not a saved fusion"):
        FusionEncoder.load(path, load_table)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e-16, 1e16])
def test_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(UsageError, match=r"weight .* of plane: expected one > 0"):
        FusionPart(plane(), weight)


def test_mean_must_fit_the_part() -> None:
    with pytest.raises(DimensionError, match=r"the mean of plane has shape \(1,\), expected \(2,\)"):
        FusionPart(plane(), 1.0, True, mean(1))
    with pytest.raises(UsageError, match="plane has a mean and is not centred"):
        FusionPart(plane(), 1.0, False, mean(1, 2))


def test_fusion_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one part"):
        FusionEncoder([])
