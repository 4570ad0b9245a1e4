"""HTTP/1.1 and HTTP/2, client and server: no module here knows what an LLM is."""
