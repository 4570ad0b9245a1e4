"""HTTP/1.1 server: parses requests and runs an application with one Task per request."""
