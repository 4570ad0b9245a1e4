"""Stores of answers, vectors and embeddings: in memory, in a file, in Redis."""
