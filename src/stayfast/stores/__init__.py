"""Doors to what is kept: answers, vectors and embeddings, in memory, in a file, in Redis."""
