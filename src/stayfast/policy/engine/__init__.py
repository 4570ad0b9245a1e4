"""The embedded engine: what fits into memory, and which slot a prompt goes to."""
