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
from stayfast.policy.common import LOOK_ELSEWHERE_S, Common
from stayfast.policy.limits import Limit, LimitConfig
from stayfast.policy.predict import Predictor
from stayfast.policy.stall import Flow
from stayfast.policy.usual import Norm, Usual, log_of
from stayfast.policy.verdicts import UNKNOWN_JUDGED_AFTER_S, Became, Call, Wheel, tally
from stayfast.upstreams.base import Upstream

_DROPPED = Outcome.DROPPED
WAITING, ANSWERED, LOST, FAILED, REFUSED, NOTHING, JUDGED = Became
N_FAILED_IN_ROW_UNPROVEN = 10
QUICKEST_GROWS = 1.02  # with every answer: an upstream that has become slow for good is known as such after some dozens
HELD_WEIGHT = 0.1  # of the newest in the mean time that a place is held
MAX_RETRY_AFTER_S = 60.0
LOST_IS_SLOW = 1.5  # times its usual time, after which a call is given up for a quicker one: few are, unless most are slow


class Place(Call):
    """One attempt's place at one upstream, from its start to its one end. Nothing here awaits."""

    __slots__ = ("_is_left", "_member")

    def __init__(self, member: "Member", norm: Norm, mark: int, n_beside: int, *, began_at: float, slow_at: float) -> None:
        self._member = member
        self.norm = norm
        self.mark = mark
        self.n_beside = n_beside
        self.began_at = began_at
        self.slow_at = slow_at
        self.became = WAITING
        self.took_s = self.real = None
        self._is_left = False

    @property
    def usual_s(self) -> float:
        """What the first token of a prompt of this size usually takes; 0 before that is known."""
        return self.norm.usual_s

    def is_late(self, now: float) -> bool:
        """Whether its first token has been waited for as long as for a slow one; yes where nobody knows how long that is."""
        return now >= self.slow_at or self.slow_at == inf

    def answered(self, now: float, norm: Norm | None = None) -> None:
        """The first token came; `norm` is of the prompt's real size where that has come to be known."""
        if self.took_s is not None:
            return
        self.took_s = now - self.began_at
        del self._member.pending[self]
        self.real = norm
        if self.became is WAITING:
            self.became = ANSWERED
        self._member.answered(self, now)

    def outlasted(self, now: float) -> None:
        """Another attempt was quicker, and this one is given up: it took at least so long."""
        if self.took_s is not None:
            return
        took_s = now - self.began_at
        ratio = self.norm.ratio(took_s)
        if ratio is None:
            return
        is_slow = ratio >= LOST_IS_SLOW
        if is_slow:
            self.took_s = took_s
            if self.became is WAITING:
                self.became = LOST
        self._member.outlasted(ratio, self.mark if is_slow else None, now)

    def leave(self, outcome: Outcome, now: float, *, is_endpoint: bool = True, retry_after_s: float | None = None) -> None:
        """Give it back, with what came of the attempt; only the first call counts. `is_endpoint`: a drop was by the
        endpoint's fault, and not a refusal for a quota."""
        if self._is_left:
            return
        self._is_left = True
        member = self._member
        member.pending.pop(self, None)
        if self.took_s is None and self.slow_at == inf:
            self.norm.n_unknown -= 1
        if outcome is _DROPPED:
            member.dropped(self, now, is_endpoint=is_endpoint, retry_after_s=retry_after_s)
        elif self.took_s is None:
            member.breaker.forgotten(self.mark)
            if self.became is WAITING and now < self.slow_at:
                self.became = NOTHING
        member.left(now - self.began_at)


class Member:
    """One upstream and its live state. Changed only on the event loop; only `room` awaits."""

    __slots__ = ("_held_s", "_is_alone_until", "_judged_after_s", "_n_promised", "_pace", "_sink", "_slow_factor", "_told",
                 "_unjudged", "_waiting", "breaker", "common", "flow", "is_proven", "limit", "max_waiting", "n_in_flight",
                 "pending", "predictor", "quickest_s", "upstream", "usual")

    def __init__(self, upstream: Upstream, limit: LimitConfig | None = None, breaker: BreakerConfig | None = None,
                 rng: Random | None = None, sink: Sink | None = None) -> None:
        limit, breaker = limit or LimitConfig(), breaker or BreakerConfig()
        self.upstream = upstream
        self.usual = Usual()
        self.limit = Limit(limit)
        self.breaker = Breaker(breaker, rng or Random(upstream.name))
        self.common: Common | None = None  # the limit is shared with other processes
        self.max_waiting = limit.max_waiting
        self.flow: Flow | None = None  # how its answers flow, where somebody judges that
        self.n_in_flight = 0
        self.is_proven = False  # it answered with a real token, and has not failed many times in a row since
        self.predictor: Predictor | None = None  # None: nobody asks what a first token will take
        self.quickest_s = 0.0  # about the shortest of its recent times to a first token; 0: none is known
        self._sink = sink or Fanout()
        self._slow_factor = breaker.slow_factor
        self._pace = Pace()
        self._told = self.breaker.state
        self.pending: dict[Place, None] = {}  # without a first token, oldest first
        self._unjudged: Wheel[Place] = Wheel()
        self._judged_after_s = limit.bad_s if limit.mode == "aimd" else 0.0  # at the earliest
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
        return not self._waiting and self._has_place()

    def load(self, now: float) -> Load:
        """What `policy.balance` wants to know."""
        if now >= self._unjudged.next_at:
            self._judge(now)
        breaker = self.breaker
        share = 0.0 if now < self._is_alone_until else breaker.share(now)
        seconds = self._pace.load_s(self.n_in_flight, self.usual.all.usual_s, now)
        if self.flow is not None:
            seconds *= self.flow.load_factor(now)
        return Load(seconds, share, share == 0.0 and breaker.wants_probe(now))

    def is_well(self, now: float) -> bool:
        """Whether it is to be preferred to one that is not."""
        return now >= self._is_alone_until and self.breaker.share(now) > 0

    def is_failing(self, now: float) -> bool:
        """Whether it fails, or asked to be left alone; one that is left alone for being slow may be quick by now."""
        return now < self._is_alone_until or (self.breaker.n_failed_in_row > 0 and self.breaker.share(now) == 0)

    def enter(self, norm: Norm, now: float) -> Place:
        """An attempt begins, of this class of `usual`. Whether there is room is asked before."""
        self.n_in_flight = n = self.n_in_flight + 1
        if self.common is not None:
            self.common.taken(n + self._n_promised)
        slow_at = judged_at = now + norm.after_s(self._slow_factor)
        if slow_at == inf:
            norm.n_unknown += 1
            judged_at = now + UNKNOWN_JUDGED_AFTER_S
        place = Place(self, norm, self.breaker.began(), n, began_at=now, slow_at=slow_at)
        self.pending[place] = None
        unjudged = self._unjudged
        unjudged.add(place, max(judged_at, now + self._judged_after_s) if self._judged_after_s else judged_at)
        if now >= unjudged.next_at:
            self._judge(now)
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
        if self.common is not None and not self.common.is_watched:
            self._look_elsewhere(self.common)
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

    def answered(self, place: Place, now: float) -> None:
        """Its first token came."""
        usual, norm, ttft_s = self.usual, place.real or place.norm, place.took_s or 0.0
        if place.slow_at == inf:
            place.norm.n_unknown -= 1
            log_s = log_of(ttft_s)
            usual.learn(place.norm, log_s)
            if norm is not place.norm:
                norm.learn(log_s)
        self.is_proven = True
        forgiven_s = self.quickest_s * QUICKEST_GROWS
        self.quickest_s = ttft_s if ttft_s < forgiven_s or not forgiven_s else forgiven_s
        self.breaker.succeeded(place.mark, now, is_slow=now >= place.slow_at)
        usual_s, ratio = usual.all.usual_s, norm.ratio(ttft_s)
        self._pace.took(ratio * usual_s if ratio is not None else ttft_s, usual_s, now)
        self._tell()

    def outlasted(self, ratio: float, mark: int | None, now: float) -> None:
        """An attempt was given up for a quicker one, after so many times its usual time; `mark` where that is slow."""
        usual_s = self.usual.all.usual_s
        self._pace.outlasted(ratio * usual_s, usual_s, now)
        if mark is not None:
            self.breaker.outlasted(mark, now)
            self._tell()

    def dropped(self, place: Place, now: float, *, is_endpoint: bool, retry_after_s: float | None) -> None:
        """An attempt was refused, or failed by the endpoint's fault."""
        breaker, is_waiting = self.breaker, place.took_s is None
        if is_endpoint:
            breaker.failed(place.mark if is_waiting else breaker.began(), now)
            if breaker.n_failed_in_row >= N_FAILED_IN_ROW_UNPROVEN:
                self.is_proven = False
        else:
            if is_waiting:
                breaker.forgotten(place.mark)
            self._is_alone_until = max(self._is_alone_until, now + min(retry_after_s or 0.0, MAX_RETRY_AFTER_S))
        self._pace.failed(self.usual.all.usual_s, now)
        if place.became is JUDGED:
            self._unjudged.add(place, now)
        place.became = FAILED if is_endpoint else REFUSED
        self._tell()

    def left(self, held_s: float) -> None:
        """A place is free again."""
        self.n_in_flight -= 1
        if self.common is not None:
            self.common.taken(self.n_in_flight + self._n_promised)
        self._held_s += (held_s - self._held_s) * HELD_WEIGHT if self._held_s else held_s
        if self._waiting:
            self._call_up()

    def _call_up(self) -> None:
        """Promise free places to those who have waited longest."""
        waiting = self._waiting
        while waiting and self._has_place():
            turn = waiting.popleft()
            if not turn.done():  # else whoever waited has left, and does not know it yet
                self._n_promised += 1
                turn.set_result(None)
                if self.common is not None:
                    self.common.taken(self.n_in_flight + self._n_promised)

    def learned(self) -> None:
        """Its breaker or its limit was told something by another process."""
        if self.breaker.said:
            self._tell()
        self._told = self.breaker.state  # what others changed, they have told
        if self._waiting:
            self._call_up()

    def _has_place(self) -> bool:
        n_taken, limit = self.n_in_flight + self._n_promised, self.limit
        return limit.has_room(n_taken if self.common is None else self.common.n_seen(n_taken, limit.value))

    def _look_elsewhere(self, common: Common) -> None:
        """As long as somebody waits here: nobody tells us of places that become free elsewhere."""
        self._call_up()
        common.waiting(len(self._waiting))
        common.is_watched = bool(self._waiting)
        if common.is_watched:
            asyncio.get_running_loop().call_later(LOOK_ELSEWHERE_S, self._look_elsewhere, common)

    def _judge(self, now: float) -> None:
        """Learn from the calls of which it is known by now whether they were slow."""
        usual, limit, breaker = self.usual, self.limit, self.breaker
        for at, places in self._unjudged.due(now):  # while some wait, what the limit has not mended yet would become usual
            judged = tally(places, usual if not self._waiting else None, breaker.mark, wants_seconds=limit.learns_seconds)
            breaker.judged(judged.n_slow, judged.n_quick, now)
            if limit.learns and judged.n:
                samples, n_peak = judged.samples, judged.n_peak
                if self.common is not None:
                    n_elsewhere = self.common.n_elsewhere()
                    samples, n_peak = [(took, n + n_elsewhere) for took, n in samples], n_peak + n_elsewhere
                limit.judged(samples, judged.n, judged.n_dropped, n_peak, at)
        self._tell()
        if self._waiting:
            self._call_up()

    def _tell(self) -> None:
        breaker = self.breaker
        if breaker.state is not self._told:
            self._told = breaker.state
            self._sink.emit(BreakerChanged(self.upstream.name, breaker.state.value, breaker.why))

    def __repr__(self) -> str:
        state = "proven" if self.is_proven else "unproven"
        flow = f" {self.flow!r}" if self.flow is not None else ""
        return (f"<Member {self.upstream.name}: {self.n_in_flight} in flight, {len(self._waiting)} waiting, {state}; "
                f"{self.limit!r} {self.breaker!r} {self.usual!r} {self._pace!r}{flow}>")


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
