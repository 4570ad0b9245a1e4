"""Attempts: one call to one upstream, the plans for hedges, and probes."""
