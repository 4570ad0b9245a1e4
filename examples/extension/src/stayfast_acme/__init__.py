"""Acme's own kinds of upstream and store."""
