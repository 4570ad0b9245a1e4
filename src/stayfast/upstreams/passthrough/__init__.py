"""Upstreams as targets of requests that are passed on without being read."""
