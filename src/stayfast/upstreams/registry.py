"""Every upstream by name, with what is known of it now: who has a place there and who waits for one, how quick it is, what
its limit and its breaker say, whether it ever answered.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from math import inf
from random import Random

from stayfast.core.errors import Shed
from stayfast.core.events import BreakerChanged, Fanout, Sink
from stayfast.core.types import Outcome
from stayfast.policy.balance import Load, Pace
from stayfast.policy.breaker import Breaker, BreakerConfig
from stayfast.policy.limits import Limit, LimitConfig
from stayfast.policy.usual import Norm, Usual
from stayfast.upstreams.base import Upstream

_DROPPED = Outcome.DROPPED
N_FAILED_IN_ROW_UNPROVEN = 10
QUICKEST_GROWS = 1.02  # with every answer: an upstream that has become slow for good is known as such after some dozens
LOOK_EVERY_S = 0.1  # at the running calls, for those that are late
HELD_WEIGHT = 0.1  # of the newest in the mean time that a place is held
MAX_RETRY_AFTER_S = 60.0
LOST_IS_SLOW = 1.5  # times its usual time, after which a call is given up for a quicker one: few are, unless most are slow


class Place:
    """One attempt's place at one upstream, from its start to its one end. Nothing here awaits."""

    __slots__ = ("_is_left", "_mark", "_member", "_norm", "began_at", "slow_at")

    def __init__(self, member: "Member", norm: Norm, mark: int, now: float, slow_at: float) -> None:
        self._member = member
        self._norm = norm
        self._mark: int | None = mark  # None: the breaker has been told
        self._is_left = False
        self.began_at = now
        self.slow_at = slow_at

    def is_late(self, now: float) -> bool:
        """Whether its first token has been waited for as long as for a slow one; yes where nobody knows how long that is."""
        return now >= self.slow_at or self.slow_at == inf

    def answered(self, now: float, norm: Norm | None = None) -> None:
        """The first token came; `norm` is of the prompt's real size where that has come to be known."""
        mark = self._mark
        if mark is None:
            return
        self._mark = None
        member = self._member
        del member.pending[self]
        member.answered(norm or self._norm, mark, now - self.began_at, now)

    def outlasted(self, now: float) -> None:
        """Another attempt was quicker, and this one is given up: it took at least so long."""
        mark = self._mark
        if mark is None:
            return
        ratio = self._norm.ratio(now - self.began_at)
        if ratio is None:
            return
        is_slow = ratio >= LOST_IS_SLOW
        if is_slow:
            self._mark = None
        self._member.outlasted(ratio, mark if is_slow else None, now)

    def leave(self, outcome: Outcome, now: float, *, is_endpoint: bool = True, retry_after_s: float | None = None) -> None:
        """Give it back, with what came of the attempt; only the first call counts. `is_endpoint`: a drop was by the
        endpoint's fault, and not a refusal for a quota."""
        if self._is_left:
            return
        self._is_left = True
        member, mark = self._member, self._mark
        member.pending.pop(self, None)
        if outcome is _DROPPED:
            member.dropped(mark, now, is_endpoint=is_endpoint, retry_after_s=retry_after_s)
        elif mark is not None:
            member.breaker.forgotten(mark)
        member.left(now - self.began_at)


class Member:
    """One upstream and its live state. Changed only on the event loop; only `room` awaits."""

    __slots__ = ("_held_s", "_is_alone_until", "_looked_at", "_n_promised", "_pace", "_sink", "_slow_factor", "_told",
                 "_waiting", "breaker", "is_proven", "limit", "max_waiting", "n_in_flight", "pending", "quickest_s",
                 "upstream", "usual")

    def __init__(self, upstream: Upstream, limit: LimitConfig | None = None, breaker: BreakerConfig | None = None,
                 rng: Random | None = None, sink: Sink | None = None) -> None:
        limit, breaker = limit or LimitConfig(), breaker or BreakerConfig()
        self.upstream = upstream
        self.usual = Usual()
        self.limit = Limit(limit)
        self.breaker = Breaker(breaker, rng or Random(upstream.name))
        self.max_waiting = limit.max_waiting
        self.n_in_flight = 0
        self.is_proven = False  # it answered with a real token, and has not failed many times in a row since
        self.quickest_s = 0.0  # about the shortest of its recent times to a first token; 0: none is known
        self.pending: dict[Place, None] = {}  # without a first token, oldest first
        self._sink = sink or Fanout()
        self._slow_factor = breaker.slow_factor
        self._pace = Pace()
        self._told = self.breaker.state
        self._looked_at = float("-inf")
        self._is_alone_until = float("-inf")  # it asked to be left alone (Retry-After)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._n_promised = 0  # places of those who waited and have not been told yet
        self._held_s = 0.0  # how long a place is held, about; 0: not known

    @property
    def n_failed_in_row(self) -> int:
        """Attempts that failed since the last first token."""
        return self.breaker.n_failed_in_row

    @property
    def n_waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether an attempt may begin at once."""
        return not self._waiting and self.limit.has_room(self.n_in_flight + self._n_promised)

    def load(self, now: float) -> Load:
        """What `policy.balance` wants to know."""
        if now - self._looked_at >= LOOK_EVERY_S:
            self._look(now)
        breaker = self.breaker
        share = 0.0 if now < self._is_alone_until else breaker.share(now)
        seconds = self._pace.load_s(self.n_in_flight, self.usual.all.usual_s, now)
        return Load(seconds, share, share == 0.0 and breaker.wants_probe(now))

    def is_well(self, now: float) -> bool:
        """Whether it is to be preferred to one that is not."""
        return now >= self._is_alone_until and self.breaker.share(now) > 0

    def enter(self, norm: Norm, now: float) -> Place:
        """An attempt begins, of this class of `usual`. Whether there is room is asked before."""
        self.n_in_flight += 1
        place = Place(self, norm, self.breaker.began(), now, now + norm.after_s(self._slow_factor))
        self.pending[place] = None
        return place

    async def room(self, within_s: float) -> None:
        """Wait, in turn, until there is a place; then `enter` before anything else is awaited.

        Raises Shed at once where that would take longer than `within_s`, or too many wait already.
        """
        if self.has_room:
            return
        wait_s = (len(self._waiting) + 1) * self._held_s / max(1.0, self.limit.value)
        if len(self._waiting) >= self.max_waiting or wait_s > within_s:
            raise Shed(f"upstream {self.upstream.name} has as many requests as it takes, and {len(self._waiting)} wait",
                       reason="upstream_busy", code="upstream_busy", retry_after_s=min(MAX_RETRY_AFTER_S, max(1.0, wait_s)))
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the place came with the cancellation
                self._n_promised -= 1
                self._call_up()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise
        self._n_promised -= 1

    def succeeded(self) -> None:
        """It works: a real token came."""
        self.is_proven = True

    def answered(self, norm: Norm, mark: int, ttft_s: float, now: float) -> None:
        """A first token came, `ttft_s` after it was asked for."""
        usual, limit = self.usual, self.limit
        ratio = norm.ratio(ttft_s)
        if not self._waiting or ratio is None:  # else what its limit has not mended yet would become usual
            usual.learn(norm, ttft_s)
        self.is_proven = True
        forgiven_s = self.quickest_s * QUICKEST_GROWS
        self.quickest_s = ttft_s if ttft_s < forgiven_s or not forgiven_s else forgiven_s
        self.breaker.succeeded(mark, now, is_slow=ratio is not None and ratio > self._slow_factor)
        usual_s = usual.all.usual_s
        self._pace.took(ratio * usual_s if ratio is not None else ttft_s, usual_s, now)
        if limit.learns:
            sample = ttft_s if limit.learns_seconds else ratio
            if sample is not None:
                limit.succeeded(sample, self.n_in_flight, now)
        self._tell()

    def outlasted(self, ratio: float, mark: int | None, now: float) -> None:
        """An attempt was given up for a quicker one, after so many times its usual time; `mark` where that is slow."""
        usual_s = self.usual.all.usual_s
        self._pace.outlasted(ratio * usual_s, usual_s, now)
        if mark is not None:
            self.breaker.outlasted(mark, now)
            self._tell()

    def dropped(self, mark: int | None, now: float, *, is_endpoint: bool, retry_after_s: float | None) -> None:
        """An attempt was refused, or failed by the endpoint's fault; `mark` is None where its first token had come."""
        breaker = self.breaker
        if is_endpoint:
            breaker.failed(breaker.began() if mark is None else mark, now)
            if breaker.n_failed_in_row >= N_FAILED_IN_ROW_UNPROVEN:
                self.is_proven = False
        else:
            if mark is not None:
                breaker.forgotten(mark)
            self._is_alone_until = max(self._is_alone_until, now + min(retry_after_s or 0.0, MAX_RETRY_AFTER_S))
        self._pace.failed(self.usual.all.usual_s, now)
        if self.limit.learns:
            self.limit.dropped(self.n_in_flight, now)
        self._tell()

    def left(self, held_s: float) -> None:
        """A place is free again."""
        self.n_in_flight -= 1
        self._held_s += (held_s - self._held_s) * HELD_WEIGHT if self._held_s else held_s
        if self._waiting:
            self._call_up()

    def _call_up(self) -> None:
        """Promise free places to those who have waited longest."""
        waiting = self._waiting
        while waiting and self.limit.has_room(self.n_in_flight + self._n_promised):
            turn = waiting.popleft()
            if not turn.done():  # else whoever waited has left, and does not know it yet
                self._n_promised += 1
                turn.set_result(None)

    def _look(self, now: float) -> None:
        """Tell the breaker how many of the newer calls are late: of a stuck upstream no answer would tell it."""
        self._looked_at = now
        since, n_late = self.breaker.since(now), 0
        for place in reversed(self.pending):
            if place.began_at < since:
                break
            n_late += now >= place.slow_at
        if n_late:
            self.breaker.overdue(n_late, now)
            self._tell()

    def _tell(self) -> None:
        breaker = self.breaker
        if breaker.state is not self._told:
            self._told = breaker.state
            self._sink.emit(BreakerChanged(self.upstream.name, breaker.state.value, breaker.why))

    def __repr__(self) -> str:
        state = "proven" if self.is_proven else "unproven"
        return (f"<Member {self.upstream.name}: {self.n_in_flight} in flight, {len(self._waiting)} waiting, {state}; "
                f"{self.limit!r} {self.breaker!r} {self.usual!r} {self._pace!r}>")


class Registry:
    """Name to member; fixed for the life of one set of settings. A reload hands on the members that did not change."""

    __slots__ = ("_members",)

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = {member.upstream.name: member for member in members}

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    @property
    def has_proven(self) -> bool:
        """Whether at least one upstream answered with a real token: what readiness means."""
        return any(member.is_proven for member in self._members.values())

    def close(self, kept: "Registry | None" = None) -> None:
        """Close what is idle, but for the members that `kept` goes on with; what is in use closes with its stream."""
        for name, member in self._members.items():
            if kept is None or kept._members.get(name) is not member:
                member.upstream.close()
