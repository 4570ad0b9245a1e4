"""Which upstream of a route a request goes to."""
