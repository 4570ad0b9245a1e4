"""The order of jobs, and when one may run."""
