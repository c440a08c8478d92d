"""Corpus files (Parquet, CSV, TSV, JSON Lines, text) -> Arrow batches of (id, text, kept columns)."""

from retrieval.corpus.reader import Corpus, CorpusOptions, is_blank

__all__ = ["Corpus", "CorpusOptions", "is_blank"]
