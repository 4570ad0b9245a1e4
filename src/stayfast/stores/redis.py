"""Answers in a Redis or Valkey server that gateways share. Needs the extra `redis`; imported only where it is configured.

    PREFIX:a:KEY        an answer, until its `drop_at`
    PREFIX:l:KEY        who makes it just now
    PREFIX:s:NAME       records of what was learned, a stream of about the last `most`, until TOLD_S after the last one
    PREFIX:i:WHAT       keys of a route, a tenant, a tag, and of all, in a sorted set by when they go: what is purged by

How much room it takes, and what goes first, is for the server's own settings to say: `maxmemory`, and for this
`maxmemory-policy volatile-ttl` (the sets outlive what is in them, so they go last). Not for Redis Cluster: an answer and the
sets that it is in may be on different nodes there.
"""

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from stayfast.core.clock import Clock
from stayfast.stores.base import Get, IsLed, Lead, Led, Order, Put, Remove, Reply, StoreStats, StoreUnavailable

IO_S: Final = 1.0  # for one round trip; whoever waits for an answer has gone on by then
STEP: Final = 500  # answers forgotten in one round trip
TOLD_S: Final = 2_592_000  # 30 days: of records that nobody adds to
FOREVER_S: Final = 31_536_000.0  # of an answer that says nothing of its own end
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


class RedisDoor:
    """A server, by its URL, which may hold a password and is never shown. Connects when it is first asked."""

    kind = "redis"

    def __init__(self, url: str, prefix: str, clock: Clock) -> None:
        self._prefix = f"{prefix}:"
        self._clock = clock
        self._server: Any = Redis.from_url(  # once more where a kept connection turns out to be dead
            url, socket_timeout=IO_S, socket_connect_timeout=IO_S, retry=Retry(NoBackoff(), 1), protocol=2)

    async def execute(self, orders: Sequence[Order]) -> list[Reply]:
        commands = [self._command(order) for order in orders]
        replies = await self._ask(*commands)
        return [bool(one) if isinstance(order, Lead | IsLed) else one if isinstance(order, Get) else None
                for order, one in zip(orders, replies, strict=True)]

    async def append_log(self, name: str, records: Sequence[bytes], most: int) -> None:
        stream = f"{self._prefix}s:{name}"
        await self._ask(*[("XADD", stream, "MAXLEN", "~", most, "*", "r", record) for record in records],
                        ("EXPIRE", stream, TOLD_S))

    async def read_log(self, name: str, after: str, n: int) -> list[tuple[str, bytes]]:
        """The next records. Places are the stream's own ids."""
        (rows,) = await self._ask(("XRANGE", f"{self._prefix}s:{name}", f"({after}" if after else "-", "+", "COUNT", n))
        return [(place.decode(), fields.get(b"r", b"")) for place, fields in rows]

    async def purge(self, route: str | None, tenant: str | None, tag: str | None) -> int:
        """Forget STEP after STEP. What the server itself has thrown away before is not counted."""
        names = [self._set(name) for name in _sets(route, tenant, tag) or ["all"]]
        (keys,) = await self._ask(("ZINTER", len(names), *names))
        n = 0
        for at in range(0, len(keys), STEP):
            some = keys[at:at + STEP]
            n_gone, *_ = await self._ask(("UNLINK", *[f"{self._prefix}a:{key.decode()}" for key in some]),
                                         *[("ZREM", name, *some) for name in {*names, self._set("all")}])
            n += n_gone
        return n

    async def stats(self) -> StoreStats:
        """How many are kept; their bytes are the server's to know."""
        (n,) = await self._ask(("ZCOUNT", self._set("all"), round(self._clock.wall() * 1e3), "+inf"))
        return StoreStats(self.kind, n, None, None)

    async def close(self) -> None:
        try:
            await self._server.aclose()
        except (RedisError, OSError):
            return

    async def _ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The server's answers. Raises StoreUnavailable where one of them is an error."""
        try:
            if len(commands) == 1:
                return [await self._server.execute_command(*commands[0])]
            together = self._server.pipeline(transaction=False)
            for command in commands:
                together.execute_command(*command)
            replies: list[Any] = await together.execute()
        except (RedisError, OSError) as error:
            raise StoreUnavailable(type(error).__name__) from None  # its words may hold a key
        return replies

    def _command(self, order: Order) -> tuple[Any, ...]:
        prefix, key = self._prefix, order.key.hex()
        answer, lead = f"{prefix}a:{key}", f"{prefix}l:{key}"
        match order:
            case Get():
                return "GET", answer
            case Put():
                cached, now = order.kept, self._clock.wall()
                keep_s = min(cached.drop_at - now, FOREVER_S)
                sets = ("all", *_sets(cached.route, cached.tenant, None), *(f"tag:{tag}" for tag in cached.tags))
                return ("EVAL", _PUT, 1 + len(sets), answer, *map(self._set, sets), order.data, max(1, round(keep_s * 1e3)),
                        round(now * 1e3), round((now + keep_s) * 1e3), key)
            case Remove():
                return "UNLINK", answer
            case Lead():
                return "EVAL", _LEAD, 1, lead, order.owner, max(1, round(order.for_s * 1e3))
            case IsLed():
                return "EXISTS", lead
            case Led():
                return "EVAL", _LED, 1, lead, order.owner

    def _set(self, name: str) -> str:
        return f"{self._prefix}i:{name}"

    def __repr__(self) -> str:
        return f"<RedisDoor {self._prefix}>"


def _sets(route: str | None, tenant: str | None, tag: str | None) -> list[str]:
    given = (("route", route), ("tenant", tenant), ("tag", tag))
    return [f"{what}:{name}" for what, name in given if name is not None]
