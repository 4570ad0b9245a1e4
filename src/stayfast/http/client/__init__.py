"""A pooled HTTP client for one origin: HTTP/1.1 and HTTP/2 over TCP and TLS."""
