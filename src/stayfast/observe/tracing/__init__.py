"""Spans, made after the fact: the request's path queues one record, a thread makes spans of it and sends them by OTLP."""
