"""What several gateways exchange through Redis or Valkey: records of the live ones, events, replies and histograms.

    P:alive     sorted set: a gateway's id, by the instant (ms, the server's clock) at which it counts as gone
    P:records   hash: its record, by id. The script of `beat` drops records of gateways that are gone
    P:times     hash: the histograms of its rare routes, by id
    P:events    stream: hints and purges, the last EVENTS of them, for EVENTS_TTL_S
    P:epochs    hash: the last epoch of each route's cache
    P:reply:C   list: replies to the event with call id C, for REPLY_TTL_S

P is `{PREFIX:fleet}`: the braces put all keys on one node of a Redis Cluster. A stream instead of pub/sub, so that a gateway
that was disconnected for a moment still reads the purges of that moment. Every call is off the path of requests and ends
within IO_S, except `read_events`, which blocks on a connection of its own.
"""

from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from stayfast.stores.fleet.base import FleetEvent, FleetUnavailable, LiveGateway

IO_S: Final = 0.1
CONNECT_S: Final = 0.5
BLOCK_S: Final = 1.0
KEYS_TTL_MS: Final = 60_000
EVENTS: Final = 1000
EVENTS_TTL_S: Final = 3600
REPLY_TTL_S: Final = 10
MAX_EVENTS: Final = 100  # in one reading
_BEAT: Final = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do
  redis.call('ZREM', KEYS[1], gone)
  redis.call('HDEL', KEYS[2], gone)
  redis.call('HDEL', KEYS[3], gone)
end
for n = 1, 3 do redis.call('PEXPIRE', KEYS[n], ARGV[4]) end
return {now, redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), redis.call('HGETALL', KEYS[2])}
"""
_LIST: Final = """
local t = redis.call('TIME')
return {t[1] * 1000 + math.floor(t[2] / 1000), redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'),
        redis.call('HGETALL', KEYS[2])}
"""
_CLAIM: Final = """
local last = redis.call('HGET', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if last and last ~= ARGV[2] then return 1 end
return 0
"""


class _Keys(NamedTuple):
    alive: str
    records: str
    times: str
    events: str
    epochs: str
    reply: str

    @classmethod
    def of(cls, prefix: str) -> "_Keys":
        tag = f"{prefix}:fleet" if "{" in prefix else f"{{{prefix}:fleet}}"
        return cls(*(f"{tag}:{name}" for name in cls._fields))


class RedisGateways:
    """A `FleetStore` on a server, by its URL, which may contain a password and is never shown. Connects at its first use."""

    def __init__(self, url: str, prefix: str) -> None:
        self._keys = _Keys.of(prefix)
        self._server: Any = Redis.from_url(
            url, socket_timeout=IO_S, socket_connect_timeout=CONNECT_S, retry=Retry(NoBackoff(), 1), protocol=2)
        self._listener: Any = Redis.from_url(
            url, socket_timeout=BLOCK_S + CONNECT_S, socket_connect_timeout=CONNECT_S, retry=Retry(NoBackoff(), 0),
            protocol=2)

    async def beat(self, gateway: str, record: bytes, ttl_s: float) -> list[LiveGateway]:
        keys = self._keys
        return _live(await self._send("EVAL", _BEAT, 3, keys.alive, keys.records, keys.times, gateway, round(ttl_s * 1e3),
                                      record, KEYS_TTL_MS), ttl_s)

    async def list_gateways(self, ttl_s: float) -> list[LiveGateway]:
        return _live(await self._send("EVAL", _LIST, 2, self._keys.alive, self._keys.records), ttl_s)

    async def leave(self, gateway: str) -> None:
        await self._send("ZREM", self._keys.alive, gateway)
        await self._send("HDEL", self._keys.records, gateway)
        await self._send("HDEL", self._keys.times, gateway)

    async def exchange_times(self, gateway: str, times: bytes) -> dict[str, bytes]:
        await self._send("HSET", self._keys.times, gateway, times)
        return {name.decode(): data for name, data in (await self._send("HGETALL", self._keys.times)).items()}

    async def publish(self, event: bytes) -> None:
        await self._send("XADD", self._keys.events, "MAXLEN", "~", EVENTS, "*", "e", event)
        await self._send("EXPIRE", self._keys.events, EVENTS_TTL_S)

    async def position_before(self, seconds: float) -> str:
        at_s, _ = await self._send("TIME")
        return f"{max(0, round((int(at_s) - seconds) * 1e3))}-0"

    async def read_events(self, after: str) -> list[FleetEvent]:
        try:
            found = await self._listener.execute_command("XREAD", "COUNT", MAX_EVENTS, "BLOCK", round(BLOCK_S * 1e3),
                                                         "STREAMS", self._keys.events, after)
        except (RedisError, OSError) as error:
            raise FleetUnavailable(type(error).__name__) from None
        return [FleetEvent(position.decode(), fields.get(b"e", b"")) for _, rows in found or () for position, fields in rows]

    async def reply(self, call: str, reply: bytes) -> None:
        key = f"{self._keys.reply}:{call}"
        await self._send("RPUSH", key, reply)
        await self._send("EXPIRE", key, REPLY_TTL_S)

    async def take_replies(self, call: str) -> list[bytes]:
        return list(await self._send("LPOP", f"{self._keys.reply}:{call}", MAX_EVENTS) or ())

    async def claim_epoch(self, route: str, epoch: str) -> bool:
        return bool(await self._send("EVAL", _CLAIM, 1, self._keys.epochs, route, epoch))

    async def close(self) -> None:
        for client in (self._server, self._listener):
            try:
                await client.aclose()
            except (RedisError, OSError):
                continue

    async def _send(self, *command: Any) -> Any:
        try:
            return await self._server.execute_command(*command)
        except (RedisError, OSError) as error:
            raise FleetUnavailable(type(error).__name__) from None  # its text may contain a key or an address

    def __repr__(self) -> str:
        return f"<RedisGateways {self._keys.alive}>"


def _live(reply: Any, ttl_s: float) -> list[LiveGateway]:
    now_ms, scores, records = reply
    by_id = dict(zip(records[::2], records[1::2], strict=True))
    return [LiveGateway(gateway.decode(), max(0.0, (now_ms - float(until_ms)) / 1e3 + ttl_s), by_id.get(gateway, b""))
            for gateway, until_ms in zip(scores[::2], scores[1::2], strict=True) if float(until_ms) > now_ms]
