"""What a route knows of its providers' prompt caches, and what it does with each prompt."""
