"""Figures that more than one package computes with."""

from typing import Final

BYTES_A_TOKEN: Final = 4  # of English text, by OpenAI's rule of thumb; only an upstream's own count is exact
MAX_RETRY_AFTER_S: Final = 60.0  # a client that sleeps longer than this has lost its user
HOP_HEADER: Final = "x-stayfast-hop"  # how many gateways a request has passed, this one included
MAX_HOPS: Final = 5  # more is a circle: a base_url that leads back here
DEGRADED_HEADER: Final = "x-stayfast-degraded"  # what a gateway did instead of failing
LARGE_REQUEST_BYTES: Final = 1024 * 1024  # bodies above it are parsed and translated in a thread; less takes some 4 ms
