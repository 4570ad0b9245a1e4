"""Messages of WebSockets: the Responses API, and jobs."""
