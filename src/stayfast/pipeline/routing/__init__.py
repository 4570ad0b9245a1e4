"""What a route knows of its upstreams when it chooses between them."""
