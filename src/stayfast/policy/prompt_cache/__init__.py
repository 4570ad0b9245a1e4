"""Providers' prompt caches: what they keep, which parts of a prompt are marked, what answers teach."""
