"""Texts -> vectors: encoders, their catalog, and where their weights are."""
