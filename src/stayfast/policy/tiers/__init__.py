"""The tiers of a route: which is the smallest one that is enough and that answers in the time that is left."""
