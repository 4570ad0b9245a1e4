"""Requests that are passed to an upstream: which ones, and their answers."""
