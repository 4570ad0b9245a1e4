"""Prometheus rules, derived from the settings: recordings and alerts. Pure functions of the settings."""
