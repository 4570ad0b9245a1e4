"""The published claims, one module each."""
