"""Stayfast: an LLM gateway that keeps applications fast where users feel it: at p99, under load, when providers stall."""

__version__ = "0.1.0"
__all__ = ["__version__"]
