"""Rows, vectors and documents on disk and in FAISS."""
