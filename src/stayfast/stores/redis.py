"""Answers in a Redis or Valkey server that gateways share. Needs the extra `redis`; imported only if configured.

    PREFIX:a:KEY        an answer; expires at its `drop_at`
    PREFIX:l:KEY        the process that is making it
    PREFIX:s:NAME       a log: a stream of about the last `most` records; expires LOG_TTL_S after the last one
    PREFIX:i:WHAT       index for purges: the keys of a route, a tenant, a tag, or all, in a sorted set by expiry

The server's own settings limit the memory: `maxmemory`, with `maxmemory-policy volatile-ttl` (an index expires after its
answers, so it is evicted last). Not for Redis Cluster, where an answer and its indexes may be on different nodes.
"""

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from stayfast.core.clock import Clock
from stayfast.stores.base import (
    AcquireLead,
    Get,
    IsLed,
    Put,
    ReleaseLead,
    Remove,
    StoreCommand,
    StoreReply,
    StoreStats,
    StoreUnavailable,
)

IO_S: Final = 1.0  # for one round trip; requests stop waiting earlier
PURGE_BATCH: Final = 500  # answers removed in one round trip
LOG_TTL_S: Final = 2_592_000  # 30 days after the last record
FOREVER_S: Final = 31_536_000.0  # of an answer without `drop_at`
_PUT: Final = """
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
for n = 2, #KEYS do
  redis.call('ZREMRANGEBYSCORE', KEYS[n], '-inf', ARGV[3])
  redis.call('ZADD', KEYS[n], ARGV[4], ARGV[5])
  if redis.call('PTTL', KEYS[n]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[n], ARGV[2] + 60000) end
end
"""
_LEAD: Final = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_LED: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class RedisBackend:
    """A server, by its URL, which may contain a password and is never shown. Connects at its first use."""

    kind = "redis"

    def __init__(self, url: str, prefix: str, clock: Clock) -> None:
        self._prefix = f"{prefix}:"
        self._clock = clock
        self._server: Any = Redis.from_url(  # retries once, for a pooled connection that the server has closed
            url, socket_timeout=IO_S, socket_connect_timeout=IO_S, retry=Retry(NoBackoff(), 1), protocol=2)

    async def execute(self, orders: Sequence[StoreCommand]) -> list[StoreReply]:
        commands = [self._command(order) for order in orders]
        replies = await self._send(*commands)
        return [bool(reply) if isinstance(order, AcquireLead | IsLed) else reply if isinstance(order, Get) else None
                for order, reply in zip(orders, replies, strict=True)]

    async def append_log(self, name: str, records: Sequence[bytes], most: int) -> None:
        stream = f"{self._prefix}s:{name}"
        await self._send(*[("XADD", stream, "MAXLEN", "~", most, "*", "r", record) for record in records],
                         ("EXPIRE", stream, LOG_TTL_S))

    async def read_log(self, name: str, after: str, n: int) -> list[tuple[str, bytes]]:
        """Positions are the ids of the stream."""
        (rows,) = await self._send(("XRANGE", f"{self._prefix}s:{name}", f"({after}" if after else "-", "+", "COUNT", n))
        return [(position.decode(), fields.get(b"r", b"")) for position, fields in rows]

    async def purge(self, route: str | None, tenant: str | None, tag: str | None) -> int:
        """In steps of STEP. Answers that the server has evicted are not counted."""
        indexes = [self._index_key(name) for name in _index_names(route, tenant, tag) or ["all"]]
        (keys,) = await self._send(("ZINTER", len(indexes), *indexes))
        n_removed = 0
        for at in range(0, len(keys), PURGE_BATCH):
            batch = keys[at:at + PURGE_BATCH]
            n, *_ = await self._send(("UNLINK", *[f"{self._prefix}a:{key.decode()}" for key in batch]),
                                     *[("ZREM", index, *batch) for index in {*indexes, self._index_key("all")}])
            n_removed += n
        return n_removed

    async def stats(self) -> StoreStats:
        """The number of answers; their bytes are unknown."""
        (n,) = await self._send(("ZCOUNT", self._index_key("all"), round(self._clock.wall() * 1e3), "+inf"))
        return StoreStats(self.kind, n, None, None)

    async def close(self) -> None:
        try:
            await self._server.aclose()
        except (RedisError, OSError):
            return

    async def _send(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The replies. Raises StoreUnavailable if one of them is an error."""
        try:
            if len(commands) == 1:
                return [await self._server.execute_command(*commands[0])]
            pipeline = self._server.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            replies: list[Any] = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StoreUnavailable(type(error).__name__) from None  # its text may contain a cache key
        return replies

    def _command(self, order: StoreCommand) -> tuple[Any, ...]:
        prefix, key = self._prefix, order.key.hex()
        answer, lead = f"{prefix}a:{key}", f"{prefix}l:{key}"
        match order:
            case Get():
                return "GET", answer
            case Put():
                cached, now = order.answer, self._clock.wall()
                keep_s = min(cached.drop_at - now, FOREVER_S)
                names = ("all", *_index_names(cached.route, cached.tenant, None), *(f"tag:{tag}" for tag in cached.tags))
                return ("EVAL", _PUT, 1 + len(names), answer, *map(self._index_key, names), order.data,
                        max(1, round(keep_s * 1e3)), round(now * 1e3), round((now + keep_s) * 1e3), key)
            case Remove():
                return "UNLINK", answer
            case AcquireLead():
                return "EVAL", _LEAD, 1, lead, order.owner, max(1, round(order.for_s * 1e3))
            case IsLed():
                return "EXISTS", lead
            case ReleaseLead():
                return "EVAL", _LED, 1, lead, order.owner

    def _index_key(self, name: str) -> str:
        return f"{self._prefix}i:{name}"

    def __repr__(self) -> str:
        return f"<RedisBackend {self._prefix}>"


def _index_names(route: str | None, tenant: str | None, tag: str | None) -> list[str]:
    given = (("route", route), ("tenant", tenant), ("tag", tag))
    return [f"{what}:{name}" for what, name in given if name is not None]
