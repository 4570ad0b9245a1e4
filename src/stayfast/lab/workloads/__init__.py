"""The requests that proofs send, and the upstreams that answer them."""
