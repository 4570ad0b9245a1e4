"""The replicas of one route as a pool: how many are ready, and what a request does while none is."""

import asyncio
from collections.abc import Mapping, Sequence

from stayfast.policy.warm.cold_start import may_wait
from stayfast.policy.warm.config import ReplicaPoolConfig
from stayfast.policy.warm.phases import Phase, Replica


class RoutePool:
    """Belongs to one loop. Replicas may be in several pools."""

    __slots__ = ("_changed", "config", "n_held", "replicas", "route")

    def __init__(self, route: str, config: ReplicaPoolConfig, replicas: Mapping[str, Replica]) -> None:
        self.route = route
        self.config = config
        self.replicas = replicas  # by upstream
        self.n_held = 0  # requests that wait for a replica
        self._changed: asyncio.Future[None] | None = None

    @property
    def n_ready(self) -> int:
        return sum(replica.is_ready for replica in self.replicas.values())

    @property
    def n_missing(self) -> int:
        """Replicas that `min_warm` wants, and that neither are ready nor start."""
        replicas = self.replicas.values()
        return self.config.min_warm - sum(replica.is_ready or replica.is_starting for replica in replicas)

    def needs(self, sought: Replica) -> bool:
        """Whether this sleeping replica is one of those to wake now."""
        asleep = [replica for replica in self.replicas.values() if replica.phase is Phase.SLEEPING and replica.config.wake]
        return any(replica is sought for replica in asleep[:max(0, self.n_missing)])

    def wake_one(self) -> None:
        """A request finds none ready: wake one that sleeps, unless another starts already."""
        if not any(replica.is_starting for replica in self.replicas.values()):
            for replica in self.replicas.values():
                if replica.phase is Phase.SLEEPING and replica.config.wake:
                    replica.request_wake()
                    return

    def hold_s(self, names: Sequence[str], ttft_s: float, time_left_s: float, now: float) -> float | None:
        """For how long a request may wait for one of these upstreams to become ready. None: it goes elsewhere at once.
        ttft_s: of a ready one. time_left_s: until the request needs the time for its fallback or its end.
        """
        starts_s = [left_s for name in names if (replica := self.replicas.get(name)) is not None
                    and (left_s := replica.left_s(now)) is not None]
        if not starts_s or not may_wait(min(starts_s), ttft_s, time_left_s, self.config.max_hold_s):
            return None
        return min(self.config.max_hold_s, time_left_s - ttft_s)

    async def wait_changed(self, until: float) -> bool:
        """Wait until the phase of a replica changes; False if it did not by then."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(until):
                await asyncio.shield(self._changed)
        except TimeoutError:
            return False
        return True

    def note_change(self) -> None:
        """The phase of a replica changed."""
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    def __repr__(self) -> str:
        return f"<RoutePool {self.route}: {self.n_ready} of {len(self.replicas)} ready, {self.n_held} held>"
