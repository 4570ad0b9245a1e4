"""Embeddings and rerank by the encoder in this process."""
