"""Requests that the gateway passes to an upstream without reading their bodies: which paths, and which headers."""
