"""What proofs ask, and the upstreams that answer it."""
