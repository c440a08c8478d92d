"""Models that bring Python code along: it is run with --trust-remote-code, and never otherwise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import transformers
from conftest import Retr, random_texts
from test_cli_bad_input import failed

from retrieval import Index
from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.errors import EncoderError

TEXTS = random_texts(12)
REFUSED = r"brings its own code \(auto_map in {}\), which was not run: .*--trust-remote-code"
CODE = """
import os
import pathlib

import transformers

from .own_factor import FACTOR

pathlib.Path(os.environ["OWN_CODE_RAN"]).touch()


class OwnConfig(transformers.BertConfig):
    model_type = "own"


class OwnModel(transformers.BertModel):
    config_class = OwnConfig

    def forward(self, *arguments, **options):
        output = super().forward(*arguments, **options)
        output.last_hidden_state = output.last_hidden_state * FACTOR
        return output


class OwnTokenizer(transformers.PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture(autouse=True, scope="module")
def code_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let transformers keep its copies of the models' code in the tests' own folder."""
    folder = str(tmp_path_factory.mktemp("code"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_MODULES_CACHE", folder)
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", folder)
        patch.syspath_prepend(folder)
        yield


@pytest.fixture(autouse=True)
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the model's code makes when it is run."""
    monkeypatch.setenv("OWN_CODE_RAN", str(tmp_path / "ran"))
    return tmp_path / "ran"


@pytest.fixture
def model(tmp_path: Path, tiny_model: Path) -> Path:
    """The tiny BERT with code of its own, which multiplies the last states."""
    folder = shutil.copytree(tiny_model, tmp_path / "own-model")
    (folder / "own.py").write_text(f"{CODE}# {tmp_path}\n")  # a process runs code of equal content once
    (folder / "own_factor.py").write_text("FACTOR = 3\n")
    change(
        folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    )
    return folder


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def test_code_is_refused_in_one_line_and_not_run(model: Path, ran: Path) -> None:
    with pytest.raises(EncoderError, match=REFUSED.format("config.json")) as caught:
        load_encoder(resolve_settings(model), "cpu")
    assert "\n" not in str(caught.value)
    assert not ran.exists()


def test_code_beside_an_architecture_of_transformers_is_refused_too(model: Path, ran: Path) -> None:
    change(model / "config.json", model_type="bert")
    with pytest.raises(EncoderError, match=REFUSED.format("config.json")):
        load_encoder(resolve_settings(model), "cpu")
    assert not ran.exists()


def test_code_of_a_tokenizer_is_refused_and_runs_where_it_is_trusted(model: Path, tiny_model: Path, ran: Path) -> None:
    shutil.copy(tiny_model / "config.json", model)
    change(model / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "own.OwnTokenizer"]})
    with pytest.raises(EncoderError, match=REFUSED.format("tokenizer_config.json")):
        load_encoder(resolve_settings(model), "cpu")
    assert not ran.exists()
    trusted = load_encoder(resolve_settings(model), "cpu", trust_remote_code=True)
    assert ran.exists()
    np.testing.assert_array_equal(
        trusted.encode(TEXTS), load_encoder(resolve_settings(tiny_model), "cpu").encode(TEXTS)
    )


def test_code_that_is_trusted_computes_the_vectors_and_is_in_the_fingerprint(model: Path, tiny_model: Path) -> None:
    plain = load_encoder(resolve_settings(tiny_model), "cpu").encode(TEXTS)
    prints = set()
    for factor in (3, 5):
        (model / "own_factor.py").write_text(f"FACTOR = {factor}\n")
        trusted = load_encoder(resolve_settings(model), "cpu", trust_remote_code=True)
        np.testing.assert_allclose(trusted.encode(TEXTS), factor * plain, atol=1e-4)
        prints.add(trusted.fingerprint)
    assert len(prints) == 2


def test_building_and_asking_each_need_the_consent(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    with pytest.raises(EncoderError, match="--trust-remote-code"):
        Index.build(tmp_path / "c.txt", tmp_path / "i", model=model, backend="torch")
    built = Index.build(tmp_path / "c.txt", tmp_path / "i", model=model, backend="torch", trust_remote_code=True)
    assert "trust" not in json.dumps(built.manifest.to_json())
    with pytest.raises(EncoderError, match="--trust-remote-code"):
        Index.open(tmp_path / "i").search(TEXTS[3])
    for index in (built, Index.open(tmp_path / "i", trust_remote_code=True)):
        assert index.search(TEXTS[3], k=1)[0][0].doc_id == "3"


def test_no_part_of_a_fusion_runs_code_without_the_consent(model: Path, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    fusion = f"{tiny_model}+{model}"
    with pytest.raises(EncoderError, match="--trust-remote-code"):
        load_encoder(resolve_settings(fusion), "cpu")
    Index.build(tmp_path / "c.txt", tmp_path / "i", model=fusion, trust_remote_code=True)
    with pytest.raises(EncoderError, match="--trust-remote-code"):
        Index.open(tmp_path / "i").search(TEXTS[3])
    found = Index.open(tmp_path / "i", trust_remote_code=True).search(TEXTS[3], k=1)
    assert found[0][0].doc_id == "3"


def test_the_command_line_never_asks_and_needs_the_option_each_time(
    model: Path, tmp_path: Path, ran: Path, retr: Retr
) -> None:
    (tmp_path / "c.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    build = ("index", "c.txt", "--model", model, "--backend", "torch")
    ask = ("query", TEXTS[3], "-i", "indexes/c", "--json")
    failed(retr(*build, stdin="y\n"), 1, "brings its own code", "--trust-remote-code")
    assert not ran.exists()
    assert retr(*build, "--trust-remote-code").returncode == 0
    assert ran.exists()
    ran.unlink()
    failed(retr(*build, stdin="y\n"), 1, "brings its own code")
    failed(retr(*ask, stdin="y\n"), 1, "brings its own code", "--trust-remote-code")
    assert not ran.exists()
    done = retr(*ask, "--trust-remote-code")
    assert json.loads(done.stdout.splitlines()[0])["id"] == "3", done.stderr


def test_the_graph_of_a_model_with_its_own_code_needs_consent_once_and_runs_none_of_it(
    model: Path, tmp_path: Path, ran: Path
) -> None:
    (tmp_path / "c.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    with pytest.raises(EncoderError, match="--trust-remote-code"):
        Index.build(tmp_path / "c.txt", tmp_path / "i", model=model, backend="openvino")
    assert not ran.exists()
    Index.build(tmp_path / "c.txt", tmp_path / "i", model=model, backend="openvino", trust_remote_code=True)
    ran.unlink()
    assert Index.open(tmp_path / "i").search(TEXTS[3], k=1)[0][0].doc_id == "3"
    assert not ran.exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_kernel_that_a_config_names_is_not_fetched(tiny_model: Path, tmp_path: Path, key: str) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "kernel")
    plain = load_encoder(resolve_settings(folder), "cpu").encode(TEXTS)
    change(folder / "config.json", **{key: "someone/kernel"})
    np.testing.assert_array_equal(load_encoder(resolve_settings(folder), "cpu").encode(TEXTS), plain)
