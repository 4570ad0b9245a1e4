"""The providers' prompt caches: their rules, the marks of a prompt, and what is learned from answers."""
