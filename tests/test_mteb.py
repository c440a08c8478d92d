"""mteb's own evaluation runs on our encoders, and result files in its form say the same as it does."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Retr, random_texts

import retrieval
from retrieval.evaluation.evaluate import System, evaluate, make_task
from retrieval.evaluation.hub import HUB_SETS
from retrieval.evaluation.mteb import MtebEncoder, write_mteb_results
from retrieval.transforms.apply import unit_vectors


def write_lcqmc(folder: Path, count: int = 60) -> Path:
    """A data folder with an LCQMC of random sentences: pairs of label 1 share most of their characters."""
    texts = random_texts(count, seed=7, longest=20)
    random = np.random.default_rng(0)
    lines = []
    for row, text in enumerate(texts):
        label = int(random.random() < 0.5)
        other = text[1:] + "x" if label else texts[(row + 1) % count]
        lines.append(f"{text}\t{other}\t{label}")
    (folder / "lcqmc").mkdir(parents=True)
    (folder / "lcqmc" / "test.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def index(tiny_model: Path, corpus: Path, tmp_path: Path) -> retrieval.Index:
    return retrieval.Index.build(
        corpus, tmp_path / "index", model=tiny_model, pooling="cls", transform="whiten-16", backend="torch"
    )


def system(index: retrieval.Index) -> System:
    return System("index", lambda: (index.encoder, index.transform, str(index.manifest.transform["name"])))


def test_texts_are_encoded_with_the_prompt_of_their_type(tiny_model: Path) -> None:
    from retrieval.encoders.load import load_encoder, resolve_settings

    encoder = load_encoder(resolve_settings(tiny_model, query_prompt="ask ", document_prompt="say "), "cpu")
    model, texts = MtebEncoder(encoder), random_texts(5)
    batches = [{"text": texts[:3]}, {"text": [*texts[3:], texts[0]]}]
    for prompt_type, kind in (("query", "query"), ("document", "document"), (None, "document")):
        expected = unit_vectors(encoder.encode([*texts, texts[0]], kind=kind), None)  # type: ignore[arg-type]
        found = model.encode(batches, prompt_type=prompt_type, task_metadata=None, batch_size=32)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_similarities_are_cosines(tiny_model: Path) -> None:
    model = MtebEncoder.of_model(tiny_model, "cls")
    vectors = model.encode([{"text": random_texts(6)}])
    np.testing.assert_allclose(model.similarity(vectors, vectors[:2]), vectors @ vectors[:2].T, atol=1e-6)
    pairwise = model.similarity_pairwise(vectors[:3] * 5, vectors[3:])
    np.testing.assert_allclose(pairwise, (vectors[:3] * vectors[3:]).sum(axis=1), atol=1e-6)


def test_result_file_has_mtebs_form(index: retrieval.Index, tmp_path: Path) -> None:
    folder = write_lcqmc(tmp_path / "data")
    task = make_task("lcqmc", folder=folder)
    ((result,),) = evaluate([task], [system(index)], resamples=0, distances=True)
    (path,) = write_mteb_results([result], tmp_path / "results")
    assert path.name == "LCQMC.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["task_name"] == "LCQMC"
    assert content["dataset_revision"] == f"md5:{task.pairs.md5}"
    assert content["evaluation_time"] > 0
    (scores,) = content["scores"]["test"]
    assert scores["main_score"] == scores["cosine_spearman"] == round(result.measures.values["spearman"].value or 0, 6)
    assert scores["cosine_pearson"] == round(result.measures.values["pearson"].value or 0, 6)
    # Of unit vectors the Euclidean distance is sqrt(2 - 2 cosine): the ranks are the same.
    assert scores["euclidean_spearman"] == pytest.approx(scores["cosine_spearman"], abs=1e-6)
    assert (scores["hf_subset"], scores["languages"]) == ("default", ["cmn-Hans"])


def test_several_systems_have_a_folder_each(index: retrieval.Index, tmp_path: Path) -> None:
    from dataclasses import replace

    task = make_task("lcqmc", folder=write_lcqmc(tmp_path / "data"))
    systems = [system(index), replace(system(index), name="other")]
    ((one, other),) = evaluate([task], systems, resamples=0, distances=True)
    paths = write_mteb_results([one, other], tmp_path / "results")
    assert [path.relative_to(tmp_path / "results").as_posix() for path in paths] == [
        "index-cls-whiten-16/LCQMC.json",
        "other-cls-whiten-16/LCQMC.json",
    ]


def test_mtebs_own_evaluation_gives_our_scores(index: retrieval.Index, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what mteb and its dependencies warn of is not ours
        mteb = pytest.importorskip("mteb")
        from datasets import Dataset, DatasetDict
        from mteb.abstasks import AbsTaskSTS
        from mteb.results import TaskResult

        task = make_task("lcqmc", folder=write_lcqmc(tmp_path / "data"))
        pairs, place = task.pairs, HUB_SETS["lcqmc"]
        columns = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.labels.tolist()}
        known = mteb.get_task("LCQMC").metadata
        assert (known.name, known.dataset["path"], known.revision) == (place.task, place.repository, place.revision)

        class Local(AbsTaskSTS):  # type: ignore[misc]
            metadata = known
            min_score, max_score = 0, 1

            def load_data(self, **options: Any) -> None:
                self.dataset = DatasetDict({"test": Dataset.from_dict(columns)})
                self.data_loaded = True

        model = MtebEncoder.of_index(index.path)
        theirs = mteb.evaluate(model, Local(), cache=None, show_progress_bar=False).task_results[0].to_dict()
        ((result,),) = evaluate([task], [system(index)], resamples=0, distances=True)
        (path,) = write_mteb_results([result], tmp_path / "results")
        read = TaskResult.from_disk(path)
        meta = model.mteb_model_meta

    assert meta.name == "retr/index-whiten-16"
    assert meta.embed_dim == 16
    ours = json.loads(path.read_text(encoding="utf-8"))
    expected, found = theirs["scores"]["test"][0], ours["scores"]["test"][0]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value, abs=1e-4) if isinstance(value, float) else value), name
    assert ours.keys() == theirs.keys()
    assert (ours["task_name"], ours["mteb_version"]) == (theirs["task_name"], theirs["mteb_version"])
    assert read.get_score() == pytest.approx(found["main_score"])


def test_the_places_on_the_hub_are_those_that_mteb_measures() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mteb = pytest.importorskip("mteb")
        for place in HUB_SETS.values():
            known = mteb.get_task(place.task).metadata
            assert (known.dataset["path"], known.revision) == (place.repository, place.revision)
            assert place.language in known.eval_langs


@pytest.mark.data
def test_official_files_of_which_the_revision_is_said_have_as_many_pairs_as_mtebs(data_folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mteb = pytest.importorskip("mteb")
        for name, place in HUB_SETS.items():
            if not place.same:
                continue
            task = make_task(name, folder=data_folder, threshold_from="none")
            split = {"dev": "validation"}.get(task.pairs.split, task.pairs.split)
            known = mteb.get_task(place.task).metadata.descriptive_stats[split]
            assert task.pairs.md5 in place.same
            assert known["num_samples"] == len(task.pairs)
            assert known["number_of_characters"] == sum(map(len, [*task.pairs.first, *task.pairs.second]))
            assert known["label_statistics"]["avg_score"] == pytest.approx(task.pairs.labels.mean())


def test_command_line_writes_the_file_and_refuses_own_pairs(retr: Retr, index: retrieval.Index, tmp_path: Path) -> None:
    write_lcqmc(tmp_path / "data")
    done = retr("eval", "lcqmc", "--data", "data", "-i", "index", "--bootstrap", "0", "--mteb", "results", "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "results" / "LCQMC.json").read_text(encoding="utf-8"))
    spearman = json.loads(done.stdout)["spearman"]["value"]
    assert content["scores"]["test"][0]["main_score"] == round(spearman, 6)
    (tmp_path / "mine.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\t1\nc\td\t0\n", encoding="utf-8")
    done = retr("eval", "mine.tsv", "-i", "index", "--mteb", "results")
    assert done.returncode == 2
    assert "mine.tsv is a file, and no task of mteb" in done.stderr
