"""What the cache of a route holds and has learned."""
