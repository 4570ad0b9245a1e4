"""Durable work: what need not be answered now."""
