"""Metrics of self-hosted engines: the names of each version, and what two pages of them show."""
