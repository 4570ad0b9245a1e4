"""A pooled HTTP client for one origin a time: HTTP/1.1 and HTTP/2 over TCP and TLS."""
