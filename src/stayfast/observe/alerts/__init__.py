"""Prometheus's rules, made from the settings: what to record, and what to wake somebody for. Pure: settings in, text out."""
