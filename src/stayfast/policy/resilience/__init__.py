"""Slow and broken upstreams: limits, breakers, retries, hedges, stalls."""
