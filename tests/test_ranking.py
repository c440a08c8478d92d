"""Ranking metrics against worked values, plain formulas and the libraries; TREC's files; intervals."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import CorpusError, UsageError
from retrieval.evaluation.bootstrap import interval, resampled_means
from retrieval.evaluation.ranking import measure_names, measure_queries, ordered
from retrieval.evaluation.trec import read_qrels, read_run, write_qrels, write_run
from retrieval.types import Qrels, Run

TOLERANCE = 1e-12  # float64 sums of at most some dozen values, in another order
NAMES = measure_names((1, 3, 10), None)

documents = st.sampled_from("abcdefgh")
queries = st.sampled_from("pqr")
judgements = st.dictionaries(queries, st.dictionaries(documents, st.integers(0, 2), min_size=1), min_size=1)
# Quarters: ties are frequent, and float32 holds each.
rankings = st.dictionaries(queries, st.dictionaries(documents, st.integers(-4, 4).map(lambda score: score / 4)))


def plain(judged: dict[str, int], ranking: list[str]) -> dict[str, float]:
    """The textbook's formulas, for one query."""
    relevant = {document for document, grade in judged.items() if grade > 0}
    hits = [document in relevant for document in ranking]
    precisions = [sum(hits[: place + 1]) / (place + 1) for place, hit in enumerate(hits) if hit]
    values = {"MAP": sum(precisions) / len(relevant)}
    for k in (1, 3, 10):
        first = next((place for place, hit in enumerate(hits[:k], 1) if hit), None)
        gains = [judged.get(document, 0) / math.log2(place + 1) for place, document in enumerate(ranking[:k], 1)]
        best = sorted(judged.values(), reverse=True)[:k]
        ideal = sum(grade / math.log2(place + 1) for place, grade in enumerate(best, 1))
        values[f"recall@{k}"] = sum(hits[:k]) / len(relevant)
        values[f"MRR@{k}"] = 1 / first if first else 0
        values[f"nDCG@{k}"] = sum(gains) / ideal
        values[f"judged@{k}"] = sum(document in judged for document in ranking[:k]) / max(1, len(ranking[:k]))
    return values


def test_measures_of_a_worked_example() -> None:
    # a is relevant and third, b is relevant and not found, x is judged and not relevant, nobody judged y.
    qrels, run = {"q": {"a": 1, "b": 2, "x": 0}}, {"q": {"x": 0.9, "y": 0.8, "a": 0.7}}
    values = dict(zip(NAMES, measure_queries(qrels, run, NAMES)[0], strict=True))
    assert values["recall@1"] == values["MRR@1"] == values["nDCG@1"] == 0
    assert values["recall@3"] == values["recall@10"] == 1 / 2
    assert values["MRR@10"] == pytest.approx(1 / 3, abs=TOLERANCE)
    assert values["MAP"] == pytest.approx(1 / 3 / 2, abs=TOLERANCE)
    # a gains 1 / log2(4) = .5; ideal is 2 / log2(2) + 1 / log2(3).
    assert values["nDCG@10"] == pytest.approx(0.5 / (2 + 1 / math.log2(3)), abs=TOLERANCE)
    assert values["judged@1"] == 1
    assert values["judged@3"] == pytest.approx(2 / 3, abs=TOLERANCE)


@given(judgements, rankings)
def test_measures_agree_with_the_plain_formulas(qrels: Qrels, run: Run) -> None:
    asked = [query for query in qrels if any(qrels[query].values())]
    values = measure_queries(qrels, run, NAMES)
    assert values.shape == (len(asked), len(NAMES))
    for row, query in enumerate(asked):
        wanted = plain(qrels[query], ordered(run.get(query, {})))
        np.testing.assert_allclose(values[row], [wanted[name] for name in NAMES], atol=TOLERANCE)


@given(judgements, rankings)
def test_measures_agree_with_trec_eval_on_the_scores_themselves(qrels: Qrels, run: Run) -> None:
    """Ties too: the scores are given to trec_eval as they are, and not in the order that we made of them."""
    asked = [query for query in qrels if any(qrels[query].values())]
    names = ["recall@1", "recall@10", "nDCG@3", "nDCG@10", "MAP"]
    theirs = ["recall_1", "recall_10", "ndcg_cut_3", "ndcg_cut_10", "map"]
    values = measure_queries(qrels, run, names)
    found = pytrec_eval.RelevanceEvaluator(qrels, {"recall.1,10", "ndcg_cut.3,10", "map"}).evaluate(run)
    for row, query in enumerate(asked):
        if query in found:
            np.testing.assert_allclose(values[row], [found[query][name] for name in theirs], atol=TOLERANCE)
        else:
            assert values[row].tolist() == [0] * len(names)


def test_means_agree_with_ir_measures_on_files(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    qrels = {f"q{i}": {f"d{j}": int(random.integers(0, 3)) for j in random.permutation(50)[:5]} for i in range(40)}
    qrels = {query: {**found, "sure": 1} for query, found in qrels.items()}
    run = {query: {f"d{j}": float(score) for j, score in enumerate(random.normal(size=50))} for query in qrels}
    write_qrels(tmp_path / "qrels", qrels)
    write_run(tmp_path / "run", run, "test")
    wanted = ir_measures.calc_aggregate(
        [ir_measures.parse_measure(name) for name in ("R@10", "RR@10", "nDCG@10", "AP@20")],
        ir_measures.read_trec_qrels(str(tmp_path / "qrels")),
        ir_measures.read_trec_run(str(tmp_path / "run")),
    )
    names = ["recall@10", "MRR@10", "nDCG@10", "MAP@20"]
    means = dict(zip(names, measure_queries(qrels, run, names).mean(axis=0), strict=True))
    for ours, theirs in zip(names, ("R@10", "RR@10", "nDCG@10", "AP@20"), strict=True):
        assert means[ours] == pytest.approx(wanted[ir_measures.parse_measure(theirs)], abs=TOLERANCE)


@given(judgements, rankings)
def test_recall_and_mrr_never_fall_as_k_grows(qrels: Qrels, run: Run) -> None:
    for name in ("recall", "MRR"):
        values = measure_queries(qrels, run, [f"{name}@{k}" for k in (1, 2, 3, 5, 8)])
        assert (np.diff(values, axis=1) >= 0).all()


def test_names_are_those_of_every_cut_off_and_the_depth() -> None:
    assert measure_names((1,), 100) == ["recall@1", "MRR@1", "nDCG@1", "judged@1", "MAP@100"]
    assert measure_names((5,), None) == ["judged@1", "recall@5", "MRR@5", "nDCG@5", "judged@5", "MAP"]


def test_order_is_that_of_trec_eval() -> None:
    assert ordered({"a": 0.5, "b": 0.75, "c": 0.5}) == ["b", "c", "a"]
    assert ordered({"a": 0.5, "b": 0.5 + 1e-9}) == ["b", "a"]  # one float32
    assert ordered({"b": 0.5, "a": 0.5 + 1e-9}) == ["b", "a"]
    assert ordered({"a": 1e39, "b": 2.0}) == ["a", "b"]
    assert ordered({}) == []


def test_intervals_of_means_are_those_of_a_straightforward_bootstrap() -> None:
    values = np.random.default_rng(1).random((37, 2)) ** 3
    samples = resampled_means(values, 200, seed=5)
    random = np.random.default_rng(5)
    plain_samples = np.array([values[random.integers(37, size=37)].mean(axis=0) for _ in range(200)])
    np.testing.assert_allclose(samples, plain_samples, atol=TOLERANCE)
    assert interval(samples[:, 0]) == pytest.approx(tuple(np.quantile(plain_samples[:, 0], [0.025, 0.975])))


# Files


def test_qrels_and_runs_come_back_as_they_were_written(tmp_path: Path) -> None:
    qrels = {"一": {"d/1": 1, "d2": 0}, "q": {"d2": 2}}
    run = {"一": {"d/1": 0.1 + 0.2, "d2": -1e-7}, "q": {"d2": 3.0}}
    write_qrels(tmp_path / "a.qrels", qrels)
    write_run(tmp_path / "a.run", run, "my system")
    assert read_qrels(tmp_path / "a.qrels") == qrels
    assert read_run(tmp_path / "a.run") == run
    lines = (tmp_path / "a.run").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "一 Q0 d/1 1 0.30000000000000004 my-system"
    assert lines[1].split()[3] == "2"


def test_qrels_of_beir_and_compressed_files_are_read(tmp_path: Path) -> None:
    beir = "query-id\tcorpus-id\tscore\nq 1\td 1\t1\n"
    (tmp_path / "test.tsv").write_text(beir, encoding="utf-8")
    (tmp_path / "test.tsv.gz").write_bytes(gzip.compress(beir.encode()))
    assert read_qrels(tmp_path / "test.tsv") == read_qrels(tmp_path / "test.tsv.gz") == {"q 1": {"d 1": 1}}
    with pytest.raises(UsageError, match="'q 1' is empty or holds white space"):
        write_qrels(tmp_path / "out", {"q 1": {"d": 1}})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q 0 d 1\nq 0 d\n", "line 2: 3 columns, expected query_id, 0, doc_id and relevance"),
        ("q 0 d yes\n", "line 1: the relevance is 'yes', expected a whole number"),
        ("q 0 d 1\n\nq 0 d 0\n", "line 3: document 'd' is judged twice for query 'q'"),
        ("query-id\tcorpus-id\tscore\nq d 1\n", "line 2: 1 columns, expected query-id, corpus-id and score"),
        ("\n", "holds no judgement: it is empty"),
    ],
)
def test_bad_qrels_are_named_by_line(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text(content, encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        read_qrels(tmp_path / "bad")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q Q0 d 1 0.5\n", "line 1: 5 columns, expected query_id, Q0, doc_id, rank, score and tag"),
        ("q Q0 d 1 high tag\n", "line 1: the score is 'high', expected a number"),
        ("q Q0 d 1 nan tag\n", "line 1: the score is 'nan', expected a number"),
        ("q Q0 d 1 1 t\nq Q0 d 2 0.5 t\n", "line 2: document 'd' is listed twice for query 'q'"),
        ("", "holds no ranked document: it is empty"),
    ],
)
def test_bad_runs_are_named_by_line(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text(content, encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        read_run(tmp_path / "bad")
    with pytest.raises(CorpusError, match="no such file"):
        read_run(tmp_path / "none")
