"""A replica that starts at a known instant, as an upstream in virtual time.

Until its process listens it refuses connections. Then its health endpoint is well, while the first requests still wait for
the end of the warm-up (compilation, capture of graphs). It reads one prompt at a time, in order; a prompt with a known
prefix takes `known_s`, one with a new prefix takes `new_s`. A replica that starts knows none, one that runs knows all: that
is the cold cache behind slow start. The prefix is the session of the request.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import Api
from stayfast.lab.simulated import ProviderConfig, Simulated
from stayfast.policy.admission.price import Prices
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.warm.config import ReplicaConfig
from stayfast.upstreams.base import AnswerStream, Call

SESSION_HEADER = "x-session-id"
PROBE_ID = "req_probe"  # of the gateway's own probes


@dataclass(frozen=True, slots=True)
class ReplicaTimes:
    """listens_at, warm_at: instants; -inf: it runs since long ago, and knows all prefixes."""

    listens_at: float = -inf
    warm_at: float = -inf
    known_s: float = 0.05
    new_s: float = 0.5


class StartingReplica:
    """Task-safe."""

    kind = "simulated"
    always_streams = False

    def __init__(self, name: str, provider: ProviderConfig, clock: Clock, times: ReplicaTimes) -> None:
        self.name = name
        self.engine = Simulated(name, provider, clock)
        self.n_refused = self.n_early = 0  # calls before it listened, and clients' calls before it was warm
        self._clock = clock
        self._times = times
        self._prefixes: set[str] = set()
        self._prefill = asyncio.Lock()

    def can_serve(self, api: Api) -> bool:
        return self.engine.can_serve(api)

    async def open(self, call: Call) -> AnswerStream:
        now, times = self._clock.now(), self._times
        if now < times.listens_at:
            self.n_refused += 1
            raise UpstreamFailed(self.name, Fault.CONNECT, f"upstream {self.name} refused the connection")
        if now < times.warm_at:
            self.n_early += call.request_id != PROBE_ID
            await asyncio.sleep(times.warm_at - now)
        prefix = dict(call.headers).get(SESSION_HEADER, "")
        async with self._prefill:
            is_known = times.warm_at == -inf or not prefix or prefix in self._prefixes
            await asyncio.sleep(times.known_s if is_known else times.new_s)
            self._prefixes.add(prefix)
        return await self.engine.open(call)

    async def check_health(self) -> bool | None:
        return self._clock.now() >= self._times.listens_at

    async def check_sleep(self) -> bool | None:
        return None

    async def wake(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing idle to close."""


@dataclass(frozen=True, slots=True)
class StartingUpstream:
    """Settings of a `StartingReplica`: added to a gateway's settings in code, without a name for settings files."""

    provider: ProviderConfig
    times: ReplicaTimes = ReplicaTimes()
    kind: Literal["starting"] = "starting"
    warm: ReplicaConfig = field(default_factory=ReplicaConfig)
    models: Mapping[str, str] = field(default_factory=dict)
    prices: Prices = field(default_factory=dict)
    probe: bool = True
    limit: LimitConfig = field(default_factory=LimitConfig)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)

    def build_upstream(self, name: str, clock: Clock) -> StartingReplica:
        return StartingReplica(name, self.provider, clock, self.times)
