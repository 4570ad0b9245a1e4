"""When an upstream is slow or broken, and what may be done about it: limits, breakers, retries, hedges."""
