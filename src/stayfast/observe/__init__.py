"""Consumers of the facts in `core.events`: log lines, metrics, traces, recent requests, alert rules."""
