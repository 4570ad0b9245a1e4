"""Constants that several packages share."""

from typing import Final

BYTES_A_TOKEN: Final = 4  # of English text, by OpenAI's rule of thumb; only an upstream's own count is exact
MAX_RETRY_AFTER_S: Final = 60.0  # most users give up before a longer wait ends
HOP_HEADER: Final = "x-stayfast-hop"  # number of gateways that a request has passed, this one included
MAX_HOPS: Final = 5  # more means a loop: a base_url that leads back to this gateway
DEGRADED_HEADER: Final = "x-stayfast-degraded"  # names the substitute answer that replaced a failure
LARGE_REQUEST_BYTES: Final = 1024 * 1024  # larger bodies are parsed in a thread; 1 MiB takes about 4 ms
MAX_NAME: Final = 128  # characters of a client's or upstream's text in events and statistics
KEY_HEADER: Final = "x-stayfast-key"  # among the stored headers of a job: the id of the key that submitted it; never sent
