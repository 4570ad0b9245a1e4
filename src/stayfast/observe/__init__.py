"""F3: sinks for the facts in `core.events`: log lines, metrics."""
