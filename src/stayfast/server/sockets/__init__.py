"""WebSockets: the Responses API in WebSocket mode, and jobs."""
