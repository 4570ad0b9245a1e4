"""API keys that are stored: the table of one process, changes, and what requests of a key cost."""
