"""The tiers of a route in the path of a request: their upstreams, what is learned of their speed, and the choice."""
