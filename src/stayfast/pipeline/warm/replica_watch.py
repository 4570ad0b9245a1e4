"""Watches one replica off the path of requests, and moves it through its phases (policy/warm/phases.py).

Every `check_s`: does it sleep, is its health endpoint well, and while it is not ready: does it answer with a token? A probe
is the one of `pipeline.attempts.readiness`, with the model of the replica's first route. A refused connection and a 503 mean
that it loads; other failures are its breaker's business, and are probed with a growing back-off.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, NamedTuple, Protocol, runtime_checkable

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault
from stayfast.pipeline.attempts.readiness import Prober, ProbeResult
from stayfast.pipeline.warm.route_pool import RoutePool
from stayfast.policy.resilience.retry import backoff_s
from stayfast.policy.warm.phases import Phase, Replica
from stayfast.upstreams.state.upstream_state import UpstreamState

_BASE_S: Final = 0.25
_CAP_S: Final = 30.0
_UNAVAILABLE: Final = 503
_REFUSALS: Final = frozenset(f"upstream_{fault.value}" for fault in (Fault.CONNECT, Fault.CRASHED))


@runtime_checkable
class ReplicaControl(Protocol):
    """The endpoints of an engine that are not for requests. None of them raises."""

    async def check_health(self) -> bool | None:
        """Whether it is well; False: refused, or 503; None: it has no such endpoint, or answers otherwise."""

    async def check_sleep(self) -> bool | None:
        """Whether it sleeps; None: unknown."""

    async def wake(self) -> bool:
        """Wake it; whether it accepted that."""

    def close(self) -> None:
        """Close connections."""


class WatchParts(NamedTuple):
    """What a watch needs besides its upstream."""

    prober: Prober
    control: ReplicaControl | None  # None: only probes show its state
    is_sleeping: Callable[[], bool | None]  # as the engine's metrics show it; None: unknown
    pools: Sequence[RoutePool]  # that it is part of
    clock: Clock
    rng: Random


class ReplicaWatch:
    """For one event loop."""

    __slots__ = ("_member", "_model", "_n_failed", "_parts", "_replica", "_wanted")

    def __init__(self, member: UpstreamState, replica: Replica, model: str, parts: WatchParts) -> None:
        """model: to probe, by the upstream's own name."""
        self._member = member
        self._replica = replica
        self._model = model
        self._parts = parts
        self._n_failed = 0
        self._wanted = asyncio.Event()
        replica.on_wake = self._wanted.set

    async def run(self) -> None:
        """Check until cancelled."""
        try:
            while True:
                await self.check()
                pause_s = self._replica.config.check_s
                if self._n_failed:
                    pause_s = max(pause_s, backoff_s(self._n_failed, _BASE_S, _CAP_S, self._parts.rng))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wanted.wait()
        finally:
            if self._parts.control is not None:
                self._parts.control.close()

    async def check(self) -> None:
        """One check."""
        replica, control, is_wanted = self._replica, self._parts.control, self._wanted.is_set()
        self._wanted.clear()
        if replica.phase is Phase.DRAINING:
            return
        await self._check_sleep(control)
        if replica.phase is Phase.SLEEPING:
            if is_wanted or any(pool.needs(replica) for pool in self._parts.pools):
                await self._wake(control)
        elif control is not None and await self._check_health(control) is False:
            return
        if replica.phase is Phase.READY:
            await self._keep_ready()
        elif replica.phase is not Phase.SLEEPING:
            await self._probe()

    async def _check_sleep(self, control: ReplicaControl | None) -> None:
        is_asleep = self._parts.is_sleeping()
        if is_asleep is None and control is not None:
            is_asleep = await control.check_sleep()
        if is_asleep is not None:
            self._replica.note_sleep(self._parts.clock.now(), is_asleep=is_asleep)

    async def _check_health(self, control: ReplicaControl) -> bool | None:
        is_well = await control.check_health()
        now = self._parts.clock.now()
        if is_well:
            self._replica.note_listening(now)
        elif is_well is False:
            self._replica.note_refused(now, "its health endpoint refuses or answers 503")
        return is_well

    async def _wake(self, control: ReplicaControl | None) -> None:
        sent_at = self._parts.clock.now()
        if control is not None and self._replica.config.wake and await control.wake():
            self._replica.note_woken(sent_at)
            await self._probe()

    async def _keep_ready(self) -> None:
        """Probe a ready one that failed many times, or would unload when idle; compare its times with its siblings'."""
        replica, now = self._replica, self._parts.clock.now()
        idle_s = replica.config.idle_unload_s / 2
        if not self._member.is_proven or (idle_s and now - replica.last_token_at >= idle_s - replica.config.check_s):
            await self._probe()
        siblings = {id(one): one for pool in self._parts.pools for one in pool.replicas.values()
                    if one is not replica and one.is_ready}
        replica.compare([p50_s for one in siblings.values() if (p50_s := one.ttft_p50_s) is not None])

    async def _probe(self) -> None:
        result: ProbeResult = await self._parts.prober.probe(self._member, self._model)
        is_refused = result.code in _REFUSALS or result.upstream_status == _UNAVAILABLE
        self._n_failed = self._n_failed + 1 if result.code and not is_refused else 0
        if is_refused:
            why = f"it answered {result.upstream_status}" if result.upstream_status else "it refuses connections"
            self._replica.note_refused(self._parts.clock.now(), why)
