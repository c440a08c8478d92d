"""Corpus files (Parquet, CSV, TSV, JSON Lines, text) -> Arrow batches of (id, text, kept columns)."""
