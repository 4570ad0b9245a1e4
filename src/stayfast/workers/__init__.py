"""Several processes that act as one: supervisor, channels between them, shared counters."""
