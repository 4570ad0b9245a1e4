"""Checks of a snapshot: pure functions from figures to findings."""
