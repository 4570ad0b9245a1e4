"""Replicas of self-hosted engines: their phases, how long they take to start, and how many are needed."""
