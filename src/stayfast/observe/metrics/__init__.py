"""Metrics: their definitions, their counts, and the text that Prometheus reads."""
