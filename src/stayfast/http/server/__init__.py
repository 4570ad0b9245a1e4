"""HTTP/1.1 server: bytes to requests, requests to an application, one Task a request."""
