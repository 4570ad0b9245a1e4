"""Generated conversations with planted facts, good summaries of them, and damage to these."""
