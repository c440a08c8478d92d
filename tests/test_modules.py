"""sentence-transformers' folders: the same vectors as the library's, without its code."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import HIDDEN, random_texts

from retrieval.encoders.load import load_encoder, resolve_settings
from retrieval.encoders.modules import read_modules
from retrieval.encoders.pooling import pool
from retrieval.errors import EncoderError, UsageError

TOLERANCE = 1e-5
TEXTS = [*random_texts(12), "ABC def"]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the library warns of at import is not ours
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers import models


def saved(folder: Path, modules: Sequence[torch.nn.Module], **options: Any) -> Path:
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.SentenceTransformer(modules=list(modules), device="cpu", **options).save(str(folder))
    return folder


def theirs(folder: Path, texts: Sequence[str], method: str = "encode", **options: Any) -> np.ndarray[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        return np.asarray(getattr(model, method)(list(texts), **options))


def transformer(tiny_model: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return models.Transformer(str(tiny_model), **options)


CHAINS: dict[str, Callable[[], list[torch.nn.Module]]] = {
    "mean": lambda: [models.Pooling(HIDDEN, "mean")],
    "cls": lambda: [models.Pooling(HIDDEN, "cls")],
    "max": lambda: [models.Pooling(HIDDEN, "max")],
    "last token": lambda: [models.Pooling(HIDDEN, "lasttoken")],
    "sqrt": lambda: [models.Pooling(HIDDEN, "mean_sqrt_len_tokens")],
    "weighted": lambda: [models.Pooling(HIDDEN, "weightedmean")],
    "two modes": lambda: [models.Pooling(HIDDEN, ("cls", "mean"))],
    "normalize": lambda: [models.Pooling(HIDDEN, "mean"), models.Normalize()],
    "dense": lambda: [models.Pooling(HIDDEN, "mean"), models.Dense(HIDDEN, 12)],
    "dense without bias": lambda: [
        models.Pooling(HIDDEN, "mean"),
        models.Dense(HIDDEN, 12, bias=False, activation_function=torch.nn.Identity()),
        models.Normalize(),
    ],
    "layer norm": lambda: [models.Pooling(HIDDEN, "mean"), models.LayerNorm(HIDDEN)],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_vectors_equal_the_librarys(chain: str, tiny_model: Path, tmp_path: Path) -> None:
    folder = saved(tmp_path / "st", [transformer(tiny_model), *CHAINS[chain]()])
    encoder = load_encoder(resolve_settings(folder), "cpu")
    assert encoder.settings.pooling == "sentence-transformers"
    assert encoder.family == "tuned"
    ours = encoder.encode(TEXTS)
    np.testing.assert_allclose(ours, theirs(folder, TEXTS), atol=TOLERANCE)
    assert ours.shape[1] == encoder.dimension


def test_old_pooling_keys_and_an_old_transformer_folder_are_read(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    shutil.copytree(tiny_model, folder / "0_Transformer")
    (folder / "1_Pooling").mkdir()
    keys = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": HIDDEN, **keys}))
    _list_modules(folder, [("0_Transformer", "Transformer"), ("1_Pooling", "Pooling")])
    (folder / "0_Transformer" / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": true}')
    encoder = load_encoder(resolve_settings(folder), "cpu")
    assert encoder.settings.max_length == 16
    np.testing.assert_allclose(encoder.encode(TEXTS), theirs(folder, TEXTS), atol=TOLERANCE)
    explicit = load_encoder(resolve_settings(folder, pooling="last-avg"), "cpu")
    assert explicit.dimension == HIDDEN


def test_prompts_of_the_folder_are_used_for_queries_and_documents(tiny_model: Path, tmp_path: Path) -> None:
    prompts = {"query": "ask ", "document": "say "}
    folder = saved(tmp_path / "st", [transformer(tiny_model), models.Pooling(HIDDEN, "mean")], prompts=prompts)
    encoder = load_encoder(resolve_settings(folder), "cpu")
    for kind, method in (("query", "encode_query"), ("document", "encode_document")):
        ours = encoder.encode(TEXTS, kind=kind)  # type: ignore[arg-type]
        np.testing.assert_allclose(ours, theirs(folder, TEXTS, method), atol=TOLERANCE)


def test_a_prompt_that_does_not_count_in_the_pooling_is_left_out(tiny_model: Path, tmp_path: Path) -> None:
    pooling = models.Pooling(HIDDEN, "mean", include_prompt=False)
    folder = saved(tmp_path / "st", [transformer(tiny_model), pooling], prompts={"query": "ask me "})
    ours = load_encoder(resolve_settings(folder), "cpu").encode(TEXTS, kind="query")
    np.testing.assert_allclose(ours, theirs(folder, TEXTS, prompt_name="query"), atol=TOLERANCE)


def test_static_embeddings_equal_the_librarys(tiny_model: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    torch.manual_seed(1)
    static = models.StaticEmbedding(Tokenizer.from_file(str(tiny_model / "tokenizer.json")), embedding_dim=20)
    folder = saved(tmp_path / "static", [static, models.Normalize()])
    encoder = load_encoder(resolve_settings(folder), "cpu")
    np.testing.assert_allclose(encoder.encode(TEXTS), theirs(folder, TEXTS), atol=TOLERANCE)
    assert encoder.dimension == 20
    assert encoder.encode([]).shape == (0, 20)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("custom_code.Evil", "the module 'custom_code.Evil', which is not one of .* not even with --trust-remote-code"),
        ("sentence_transformers.models.WordWeights", "WordWeights"),
        ("os.system", "os.system"),
    ],
)
def test_a_module_of_another_kind_is_named_and_not_run(
    module: str, message: str, tiny_model: Path, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "st", [transformer(tiny_model), models.Pooling(HIDDEN, "mean")])
    entries = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*entries, {"idx": 2, "name": "2", "path": "2", "type": module}]))
    with pytest.raises(EncoderError, match=message):
        load_encoder(resolve_settings(folder), "cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "os.system"}, "the activation 'os.system'"),
        ({"activation_function": "torch.nn.modules.container.Sequential"}, "Sequential"),
        ({"out_features": 7}, "do not fit its config.json"),
        ({"module_input_name": "token_embeddings"}, "module_input_name 'token_embeddings'"),
    ],
)
def test_a_dense_layer_that_cannot_be_is_refused(
    changes: dict[str, Any], message: str, tiny_model: Path, tmp_path: Path
) -> None:
    chain = [transformer(tiny_model), models.Pooling(HIDDEN, "mean"), models.Dense(HIDDEN, 12)]
    folder = saved(tmp_path / "st", chain)
    path = next(folder.glob("2_*/config.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(EncoderError, match=message):
        load_encoder(resolve_settings(folder), "cpu")


def test_pickled_code_in_a_dense_layer_is_refused_and_not_run(tiny_model: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch '{tmp_path / 'ran'}'",)

    chain = [transformer(tiny_model), models.Pooling(HIDDEN, "mean"), models.Dense(HIDDEN, 12)]
    folder = saved(tmp_path / "st", chain)
    (dense,) = folder.glob("2_*/model.safetensors")
    dense.unlink()
    torch.save({"linear.weight": Payload()}, dense.with_name("pytorch_model.bin"))
    with pytest.raises(EncoderError, match=r"hold more than tensors.*convert them to model\.safetensors"):
        load_encoder(resolve_settings(folder), "cpu")
    assert not (tmp_path / "ran").exists()


def test_a_text_without_a_token_has_no_vector_whatever_comes_after_the_pooling(
    tiny_model: Path, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    static = models.StaticEmbedding(Tokenizer.from_file(str(tiny_model / "tokenizer.json")), embedding_dim=20)
    folder = saved(tmp_path / "static", [static, models.Dense(20, 12)])
    encoder = load_encoder(resolve_settings(folder), "cpu")
    nothing, text = encoder.encode(["\ufffd", "甲"])
    assert not nothing.any()
    assert text.any()
    assert encoder.counts.without_vector == 1


@pytest.mark.parametrize("content", ["[]", "{}", "{", "[1]"])
def test_modules_that_are_no_list_are_an_error(content: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(EncoderError, match=r"modules\.json"):
        read_modules(tmp_path)


@pytest.mark.parametrize("side", ["left", "right"])
def test_token_poolings_find_the_first_and_last_token_on_either_padding_side(side: str) -> None:
    states = [torch.arange(8.0).view(2, 4, 1)]
    mask = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]]) if side == "left" else torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    first, last = ([2.0, 5.0], [3.0, 7.0]) if side == "left" else ([0.0, 4.0], [1.0, 6.0])
    assert pool(states, mask, "cls").flatten().tolist() == first
    assert pool(states, mask, "last-token").flatten().tolist() == last
    assert pool(states, mask, "max").flatten().tolist() == last


def test_weighted_and_sqrt_averages_of_worked_values() -> None:
    states, mask = [torch.tensor([[[1.0], [4.0], [99.0]]])], torch.tensor([[1, 1, 0]])
    assert pool(states, mask, "weighted-avg").item() == pytest.approx(3.0)  # (1x1 + 2x4) / 3
    assert pool(states, mask, "sqrt-avg").item() == pytest.approx(5 / 2**0.5)


def test_layers_by_number_are_averaged_and_checked(tiny_model: Path) -> None:
    last2 = load_encoder(resolve_settings(tiny_model, pooling="last2-avg"), "cpu").encode(TEXTS)
    by_number = load_encoder(resolve_settings(tiny_model, pooling="layers-2,3"), "cpu").encode(TEXTS)
    np.testing.assert_allclose(by_number, last2, atol=1e-6)
    with pytest.raises(UsageError, match="names layer 4, and the model has layers 0 to 3"):
        load_encoder(resolve_settings(tiny_model, pooling="layers-0,4"), "cpu")


def test_pooler_is_the_checkpoints_own_and_a_missing_one_is_an_error(tiny_model: Path, tmp_path: Path) -> None:
    import transformers
    from safetensors.torch import load_file, save_file

    vector = load_encoder(resolve_settings(tiny_model, pooling="pooler"), "cpu").encode(["甲乙"])[0]
    model = transformers.AutoModel.from_pretrained(tiny_model).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(tiny_model)("甲乙", return_tensors="pt")
    with torch.no_grad():
        np.testing.assert_allclose(vector, model(**tokens).pooler_output[0].numpy(), atol=TOLERANCE)
    bare = shutil.copytree(tiny_model, tmp_path / "bare")
    weights = load_file(bare / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler")}
    save_file(kept, bare / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EncoderError, match="has no pooler"):
        load_encoder(resolve_settings(bare, pooling="pooler"), "cpu")


def _list_modules(folder: Path, modules: Sequence[tuple[str, str]]) -> None:
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
