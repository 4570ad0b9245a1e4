"""Shared limits in Redis or Valkey: one script call for all limits of one tenant (`policy.fleet.slices`).

    PREFIX:q:{TENANT}   a hash. `epoch`, `at`: when the key was made and last written (us, the server's clock);
                        `t:LIMIT`: when the bucket will be full; `g:GATEWAY`: "expires call LIMIT@CAPACITY spent held
                        demand entitled LIMIT@CAPACITY ..." of each gateway; `c:LIMIT`: "credit until"

The credit is what a full bucket could not take of its refill while no gateway called. What gateways granted themselves in
that time out of the refill is charged only beyond it; else a long loss of the server would leave a debt as long.

Amounts are in us of the bucket, so a limit that the settings change keeps the share of it that is used.

A bucket and the slices out of it never hold more than the capacity: a slice that was not spent keeps its place in it.

The clock is the server's (TIME), so clocks of gateways do not matter; if it goes back, the buckets go back with it. A call
that arrives after a later one of the same gateway changes nothing. A server that lost its data gets the last known levels
from the gateways: the first call of each under another `epoch` raises `t:LIMIT` to what it knows.

One key per call, so that Redis Cluster can hold them. Integers are below 2^53, exact in Lua's numbers. Scripts are called by
their digest; a server that does not have the script (restart, SCRIPT FLUSH) gets its text. Needs the extra `redis`.
"""

import asyncio
from collections.abc import Sequence
from hashlib import sha1
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from stayfast.policy.fleet.slices import RECENT_S, TTL_S, US, LeaseGrant
from stayfast.stores.fleet.quota_calls import QuotaCall, QuotaReply, QuotaStoreLost

IO_S: Final = 0.04  # one trip with all its calls; a request waits 0.05 s at most
_STALE: Final = -1
_SCRIPT: Final = """
local id, call, ttl, recent = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local known_epoch = ARGV[5]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local hash = redis.call('HGETALL', KEYS[1])
local full_at, credits, others, own, epoch, at = {}, {}, {}, nil, nil, now
local n, total, entitled, out = 1, {}, {}, {}
for i = 1, #hash, 2 do
  local field, value = hash[i], hash[i + 1]
  local kind, name = string.sub(field, 1, 2), string.sub(field, 3)
  if kind == 't:' then full_at[name] = tonumber(value)
  elseif kind == 'c:' then credits[name] = value
  elseif field == 'epoch' then epoch = value
  elseif field == 'at' then at = tonumber(value)
  elseif kind == 'g:' then
    local words = {}
    for word in string.gmatch(value, '%S+') do words[#words + 1] = word end
    if name == id then own = words
    else others[name] = words end
  end
end
if own and tonumber(own[2]) >= call then return {-1} end
local back = math.max(0, at - now)
for name, words in pairs(others) do
  if tonumber(words[1]) - back <= now then redis.call('HDEL', KEYS[1], 'g:' .. name)
  else
    n = n + 1
    for i = 3, #words, 5 do
      local limit = string.match(words[i], '^[^@]+')
      out[limit] = (out[limit] or 0) + words[i + 2]
      if tonumber(words[1]) - ttl + recent > now + back then total[limit] = (total[limit] or 0) + words[i + 3] end
      entitled[limit] = (entitled[limit] or 0) + words[i + 4]
    end
  end
end
local spent_before, held_before = {}, {}
if own then
  for i = 3, #own, 5 do spent_before[own[i]], held_before[own[i]] = tonumber(own[i + 1]), tonumber(own[i + 2]) end
end
epoch = epoch or string.format('%.0f', now)
local record = {string.format('%.0f', now + ttl), ARGV[2]}
local reply, expires, write = {0, epoch, n}, ttl, {'epoch', epoch, 'at', string.format('%.0f', now)}
for i = 6, #ARGV, 11 do
  local capacity, spent, held = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local name, before, was_held = string.match(ARGV[i], '^[^@]+'), spent_before[ARGV[i]], held_before[ARGV[i]]
  if not before then before, was_held = tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]) end
  local demand, wanted, needed = tonumber(ARGV[i + 6]), tonumber(ARGV[i + 7]), tonumber(ARGV[i + 8])
  local full = (full_at[name] or now) - back
  if known_epoch ~= '' and known_epoch ~= epoch then
    full = math.max(full, math.min(tonumber(ARGV[i + 10]), now + 2 * capacity))
  end
  local credit, credit_until = string.match(credits[name] or '', '(%S+) (%S+)')
  credit, credit_until = tonumber(credit or 0), tonumber(credit_until or 0)
  local overflow = math.min(now - at, now - full)
  if overflow > 0 and now - at > recent then credit, credit_until = overflow, now + recent end
  if credit_until < now then credit = 0 end
  local returned = was_held - (spent - before) - held
  local forgiven = math.max(0, math.min(tonumber(ARGV[i + 9]), -returned, credit))
  full = math.max(now, full) - returned - forgiven
  full = math.max(now + (out[name] or 0) + held, full)
  local level = now + capacity - full
  local all = (total[name] or 0) + demand
  local share = all > 0 and demand / all or 1 / n
  local granted = 0
  if level > 0 and wanted > 0 and level >= needed then
    granted = math.min(wanted, level, math.max(needed, math.floor(math.max(share, 1 / (2 * n)) * level)))
  end
  full = full + granted
  local part = math.max(0, math.min(math.floor(share * 1000000), 1000000 - (entitled[name] or 0)))
  write[#write + 1], write[#write + 2] = 't:' .. name, string.format('%.0f', full)
  write[#write + 1], write[#write + 2] = 'c:' .. name, string.format('%.0f %.0f', credit - forgiven, credit_until)
  record[#record + 1] = ARGV[i] .. string.format(' %.0f %.0f %.0f %.0f', spent, held + granted, demand, part)
  for _, number in ipairs({granted, now + capacity - full, full, part, all}) do
    reply[#reply + 1] = string.format('%.0f', number)
  end
  expires = math.max(expires, full - now)
end
redis.call('HSET', KEYS[1], 'g:' .. id, table.concat(record, ' '), unpack(write))
redis.call('PEXPIRE', KEYS[1], math.ceil(expires / 1000) + 5000)
return reply
"""
_DIGEST: Final = sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()


class RedisQuota:
    """A server, by its URL, which may contain a password and is never shown. Connects at its first use."""

    def __init__(self, url: str, prefix: str, io_s: float = IO_S) -> None:
        self._io_s = io_s
        self._prefix = prefix
        self._server: Any = Redis.from_url(url, socket_timeout=io_s, socket_connect_timeout=io_s,
                                           retry=Retry(NoBackoff(), 0), protocol=2)

    async def exchange(self, gateway: str, calls: Sequence[QuotaCall]) -> list[QuotaReply | None]:
        try:
            async with asyncio.timeout(self._io_s):
                replies = await self._send(gateway, ("EVALSHA", _DIGEST), calls)
                unknown = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
                if unknown:
                    texts = await self._send(gateway, ("EVAL", _SCRIPT), [calls[n] for n in unknown])
                    for n, reply in zip(unknown, texts, strict=True):
                        replies[n] = reply
        except (RedisError, OSError) as error:
            raise QuotaStoreLost(type(error).__name__) from None  # its text may contain a key
        for reply in replies:
            if isinstance(reply, RedisError):
                raise QuotaStoreLost(type(reply).__name__)
        return [_read(call, reply) for call, reply in zip(calls, replies, strict=True)]

    async def close(self) -> None:
        try:
            await self._server.aclose()
        except (RedisError, OSError):
            return

    async def _send(self, gateway: str, script: tuple[str, str], calls: Sequence[QuotaCall]) -> list[Any]:
        """Replies and errors. Raises RedisError or OSError if there are none."""
        pipeline = self._server.pipeline(transaction=False)
        for call in calls:
            limits = [word for name, report in call.limits.items() for word in (name, *report)]
            pipeline.execute_command(*script, 1, self._key(call.tenant), gateway, call.number,
                                     round(TTL_S * US), round(RECENT_S * US), call.epoch, *limits)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    def _key(self, tenant: str) -> str:
        return f"{self._prefix}:q:{{{tenant}}}"

    def __repr__(self) -> str:
        return f"<RedisQuota {self._prefix}>"


def _read(call: QuotaCall, reply: Any) -> QuotaReply | None:
    """Raises QuotaStoreLost for a reply of another form."""
    if reply[0] == _STALE:
        return None
    epoch, n, *numbers = reply[1].decode(), reply[2], *map(int, reply[3:])
    if len(numbers) != 5 * len(call.limits):
        raise QuotaStoreLost("ResponseError")
    grants = {name: LeaseGrant._make((*numbers[5 * at:5 * at + 5], n)) for at, name in enumerate(call.limits)}
    return QuotaReply(epoch, grants)
