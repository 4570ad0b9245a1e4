"""Traces: the request path queues one record per request; a thread converts it to spans and sends them by OTLP."""
