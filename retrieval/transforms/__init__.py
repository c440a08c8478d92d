"""Raw embeddings (n, d) -> (n, m): whitening and its kin."""
