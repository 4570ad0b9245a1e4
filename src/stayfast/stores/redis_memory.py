"""What a Redis or Valkey server reports of its memory (INFO). Needs the extra `redis`; imported only if configured.

One connection each time, as a minute lies between two calls.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

IO_S: Final = 1.0


class MemoryInfo(NamedTuple):
    """n_evicted: keys since the server's start. max_bytes: 0: not limited."""

    n_evicted: int
    eviction_policy: str
    used_bytes: int
    max_bytes: int


async def read_memory_info(url: str) -> MemoryInfo | None:
    """None: the server does not answer, or refuses INFO. url: may contain a password, which is never shown."""
    server: Any = Redis.from_url(url, socket_timeout=IO_S, socket_connect_timeout=IO_S, retry=Retry(NoBackoff(), 0),
                                 protocol=2)
    try:
        return _memory_in({**await server.info("stats"), **await server.info("memory")})
    except (RedisError, OSError):
        return None
    finally:
        await server.aclose()


def _memory_in(info: Mapping[str, Any]) -> MemoryInfo | None:
    figures = [info.get(name) for name in ("evicted_keys", "used_memory", "maxmemory")]
    if not all(isinstance(figure, int) for figure in figures):
        return None
    n_evicted, used_bytes, max_bytes = figures
    return MemoryInfo(n_evicted or 0, str(info.get("maxmemory_policy", "")), used_bytes or 0, max_bytes or 0)
