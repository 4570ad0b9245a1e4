"""Shared parts of all proofs: claims and figures, server processes, load, virtual time."""
