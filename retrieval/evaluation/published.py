"""Figures that others published, row by row, which `retr reproduce` measures again. None of them was measured here.

`lcqmc`: the table that this project set out to reproduce, Pearson and Spearman on all of LCQMC. Its `cls` of SBERT is
taken by its name: the first token of the transformer, without the mean and the dense layer of the folder.

`stsb-en`: Su et al. 2021, arXiv:2103.15316, table 1, Spearman on STS-B test; what its transforms were fitted on, and
the 64 tokens of a text, are those of its code, github.com/bojone/BERT-whitening, eng/eval.py and eng/utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from retrieval.encoders import catalog

TARGET, NLI = "target", "nli"
"""What a transform was fitted on: the set's own sentences, of all splits; or those of MNLI and SNLI."""
WHITEN_ALL = "whiten"
"""Whitening with every dimension that carries anything."""

Kind = Literal["transformer", "word vectors", "elmo"]


@dataclass(frozen=True)
class Weights:
    """The weights that a row was measured with."""

    key: str
    kind: Kind
    wanted: str
    """A hub id; or, where no hub has them, a file or folder and where it can be had."""

    @property
    def hub_id(self) -> str | None:
        """The hub id, None where no hub has them."""
        return self.wanted if self.kind == "transformer" else None


@dataclass(frozen=True)
class Row:
    """A published row. Figures are fractions; None is one that was not published."""

    id: str
    model: str
    weights: str
    """A key of WEIGHTS."""
    pooling: str
    pearson: float | None
    spearman: float
    transform: str = "none"
    """none, WHITEN_ALL, whiten-256 or flow."""
    fit: str = ""
    """TARGET or NLI, of a row with a transform."""


@dataclass(frozen=True)
class Table:
    """Published rows on one set."""

    name: str
    dataset: str
    publisher: str
    """In one word, for headings."""
    source: str
    published_on: str
    """The pairs of the published figures."""
    splits: tuple[str, ...]
    """The splits that are measured here, as far as they are there."""
    max_length: int | None
    """Tokens of a text, as in the publisher's code; None: the model's own."""
    rows: tuple[Row, ...]

    def described(self, row: Row) -> dict[str, Any]:
        """What a row is and what was published of it, for JSON."""
        return {
            "table": self.name,
            "row": row.id,
            "model": row.model,
            "pooling": row.pooling,
            "transform": row.transform,
            "fit": row.fit or None,
            "published": {
                "by": self.publisher,
                "source": self.source,
                "on": self.published_on,
                "pearson": row.pearson,
                "spearman": row.spearman,
            },
        }


def _hub(name: str) -> str:
    entry = catalog.lookup(name)
    assert entry is not None
    return entry.source


WEIGHTS = {
    weights.key: weights
    for weights in (
        Weights(
            "word2vec",
            "word vectors",
            "Tencent_AILab_ChineseEmbedding.txt, the word vectors of Tencent AI Lab (200 dimensions; "
            "https://ai.tencent.com/ailab/nlp/en/embedding.html), of which the first 500,000 words are read",
        ),
        Weights(
            "elmo",
            "elmo",
            "the folder zhs.model, the simplified-Chinese ELMo of HIT-SCIR "
            "(https://github.com/HIT-SCIR/ELMoForManyLangs)",
        ),
        Weights("bert", "transformer", _hub("bert-base-chinese")),
        Weights("roberta", "transformer", _hub("chinese-roberta-wwm-ext")),
        Weights("sbert", "transformer", _hub("sbert-multilingual-v1")),
        Weights("simbert", "transformer", _hub("simbert-base")),
        Weights("bert-en", "transformer", "google-bert/bert-base-uncased"),
    )
}

_FIRST_LAST = "first-last-avg"

TABLES = {
    table.name: table
    for table in (
        Table(
            "lcqmc",
            "lcqmc",
            "article",
            "the article on sentence vectors that this project reproduces, its tables of LCQMC",
            "all of LCQMC, train, dev and test: 200,000 pairs and more",
            ("train", "dev", "test"),
            None,
            (
                Row("word2vec", "word2vec", "word2vec", "average", 0.5221, 0.6089),
                Row("elmo", "ELMo", "elmo", "average", 0.5095, 0.5385),
                Row("bert-cls", "BERT", "bert", "cls", 0.2787, 0.3311),
                Row("bert-last-avg", "BERT", "bert", "last-avg", 0.5773, 0.6065),
                Row("bert-last2-avg", "BERT", "bert", "last2-avg", 0.5800, 0.6060),
                Row("bert-first-last-avg", "BERT", "bert", _FIRST_LAST, 0.6127, 0.6497),
                Row("roberta-cls", "RoBERTa", "roberta", "cls", 0.6015, 0.6750),
                Row("roberta-last-avg", "RoBERTa", "roberta", "last-avg", 0.6248, 0.6770),
                Row("roberta-last2-avg", "RoBERTa", "roberta", "last2-avg", 0.6278, 0.6770),
                Row("roberta-first-last-avg", "RoBERTa", "roberta", _FIRST_LAST, 0.6398, 0.6919),
                Row("sbert-cls", "SBERT multilingual v1", "sbert", "cls", 0.6947, 0.7501),
                Row("simbert-cls", "SimBERT", "simbert", "cls", 0.7058, 0.7612),
                Row("whitening", "BERT-whitening", "bert", _FIRST_LAST, 0.6524, 0.6532, WHITEN_ALL, TARGET),
                Row("whitening-256", "BERT-whitening-256", "bert", _FIRST_LAST, 0.6425, 0.6594, "whiten-256", TARGET),
                Row("flow", "BERT-flow", "bert", _FIRST_LAST, 0.6117, 0.6542, "flow", TARGET),
            ),
        ),
        Table(
            "stsb-en",
            "stsb-en",
            "paper",
            "Su et al. 2021, arXiv:2103.15316, its rows of BERT-base on STS-B",
            "STS-B test",
            ("test",),
            64,
            (
                Row("en-raw", "BERT-base", "bert-en", _FIRST_LAST, None, 0.5904),
                Row("en-flow-nli", "BERT-base-flow (NLI)", "bert-en", _FIRST_LAST, None, 0.5856, "flow", NLI),
                Row(
                    "en-whitening-nli",
                    "BERT-base-whitening (NLI)",
                    "bert-en",
                    _FIRST_LAST,
                    None,
                    0.6819,
                    WHITEN_ALL,
                    NLI,
                ),
                Row(
                    "en-whitening-256-nli",
                    "BERT-base-whitening-256 (NLI)",
                    "bert-en",
                    _FIRST_LAST,
                    None,
                    0.6751,
                    "whiten-256",
                    NLI,
                ),
                Row("en-flow", "BERT-base-flow (target)", "bert-en", _FIRST_LAST, None, 0.7072, "flow", TARGET),
                Row(
                    "en-whitening",
                    "BERT-base-whitening (target)",
                    "bert-en",
                    _FIRST_LAST,
                    None,
                    0.7134,
                    WHITEN_ALL,
                    TARGET,
                ),
                Row(
                    "en-whitening-256",
                    "BERT-base-whitening-256 (target)",
                    "bert-en",
                    _FIRST_LAST,
                    None,
                    0.7143,
                    "whiten-256",
                    TARGET,
                ),
            ),
        ),
    )
}
