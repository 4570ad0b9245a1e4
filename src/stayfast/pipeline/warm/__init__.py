"""Replicas that start, sleep and drain: how they are watched, and what requests do meanwhile."""
