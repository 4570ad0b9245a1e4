"""How a route chooses between its upstreams."""
