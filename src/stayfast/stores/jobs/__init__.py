"""Durable jobs, batches and files: the stores."""
