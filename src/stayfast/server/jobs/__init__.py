"""The endpoints of jobs, batches, files and background responses."""
