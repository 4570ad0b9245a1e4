"""Simulated vendors: providers with their own protocols and errors."""
