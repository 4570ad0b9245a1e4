"""Metrics: definitions, counters, and the Prometheus text."""
