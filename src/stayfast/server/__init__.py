"""F6: the edge. Bytes in, `Gateway.serve`, bytes out; no decisions."""
