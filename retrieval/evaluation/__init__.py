"""How well scores match labels: pairs of sentences, correlations with their intervals, reports."""
