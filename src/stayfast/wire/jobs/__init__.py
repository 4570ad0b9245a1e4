"""The formats of jobs, batches and files."""
