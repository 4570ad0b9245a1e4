"""Prompt caches of providers: what a route has learned about them, and how it marks each prompt."""
