"""Which requests come in now, and how long their prompts may be."""
