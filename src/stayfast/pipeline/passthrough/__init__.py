"""Requests that are passed to an upstream without being read."""
