"""Batches for encoders: which texts share one, what one costs, and who is refused."""
