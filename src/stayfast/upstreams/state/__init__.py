"""The live state of upstreams: health, limits, attempts in flight."""
