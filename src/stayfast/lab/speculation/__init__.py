"""Speculation measured: on a real engine, and on a simulated one in virtual time."""
