"""The places of running requests, and the queue for them: one, or one for each lane. The decisions are made in
`policy.admission`; here are the futures and the timer.
"""

import asyncio
from collections.abc import Callable, Iterator

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.types import Word
from stayfast.policy.admission.fair_share import FairShares, TenantShare
from stayfast.policy.admission.lanes import LEAST_PLACES, Lane, Lanes
from stayfast.policy.admission.overload import AdmissionConfig, OverloadSignals
from stayfast.policy.admission.priority import HoldBack
from stayfast.policy.admission.queue import Queue, QueueEntry
from stayfast.policy.resilience.cross_process import POLL_EVERY_S, SharedLimit, describe_occupancy

_LEARNS = 0.05
UNLIMITED = 1_000_000_000


class Why(Word):
    QUEUE_FULL = "queue_full"  # too many requests wait, and this one deserves a place least
    PREDICTED_WAIT = "predicted_wait"  # it would wait longer than it can
    WAITED = "queue_timeout"  # it has waited for max_wait_s
    OVERLOADED = "overloaded"  # several signs of overload, and its band is shed first


REJECT_REASONS = {Why.QUEUE_FULL: "the queue is full", Why.PREDICTED_WAIT: "the predicted wait is too long",
            Why.WAITED: "it waited too long", Why.OVERLOADED: "several signs of overload"}


class AdmissionRequest(msgspec.Struct, gc=False):
    """The estimated size of a request that wants a place, and when it must end."""

    band: int
    tokens: float  # weighted
    n_input: float  # estimated prompt tokens, of which the upstream computes about `n_read`
    n_read: float
    n_output: float  # usual tokens of an answer
    ends_at: float  # of the wait
    deadline_at: float  # of the request
    model: str = ""  # as the client names it
    lane: "Lane[QueuedRequest] | None" = None  # None: there are no lanes
    is_prefilling: bool = False  # it has a place, and no first token yet


class QueuedRequest:
    """A waiting request."""

    __slots__ = ("decision", "is_in", "is_out", "request")

    def __init__(self, request: AdmissionRequest) -> None:
        self.request = request
        self.is_in = False
        self.is_out = False  # of the queue, without a place
        self.decision: asyncio.Future[Why | None] = asyncio.get_running_loop().create_future()  # None: it has a place


class AdmissionRejected(Exception):
    """No place, and no wait for one. wait_s: when a place may be free."""

    def __init__(self, why: Why, wait_s: float) -> None:
        super().__init__(why.value)
        self.why = why
        self.wait_s = wait_s


class QueueOutlook(msgspec.Struct, frozen=True):
    """What the queue knows about the upstreams and about other processes."""

    predict_ttft_s: Callable[[AdmissionRequest], float | None] | None = None  # of one request; returns None if not known
    n_held: Callable[[], int] | None = None  # admitted requests that wait at the limits of their upstreams
    common: SharedLimit | None = None  # places that are shared with other processes


class AdmissionController:
    """All places of one gateway. Belongs to one loop; only `wait` awaits; a place is given back without awaiting."""

    __slots__ = ("_clock", "_config", "_first_s", "_hold", "_sharing", "_timer", "_timer_at", "lanes", "n_taken", "outlook",
                 "overload_signals", "queue")

    def __init__(self, config: AdmissionConfig, clock: Clock, outlook: QueueOutlook | None = None) -> None:
        self._clock = clock
        self._sharing = FairShares()
        self.outlook = outlook or QueueOutlook()
        self.n_taken = 0
        self._first_s = 0.0  # mean time to the first token of admitted requests
        self.overload_signals = OverloadSignals()
        self._timer: asyncio.TimerHandle | None = None  # set while requests wait
        self._timer_at = 0.0
        self.queue: Queue[QueuedRequest] = Queue(config.queue)
        self.lanes: Lanes[QueuedRequest] | None = None  # with lanes, `queue` is the short lane's
        self.configure(config)

    @property
    def common(self) -> SharedLimit | None:
        return self.outlook.common

    def configure(self, config: AdmissionConfig, outlook: QueueOutlook | None = None) -> None:
        """Take new settings; waiting requests go on waiting. outlook: None: as before."""
        self._config = config
        self.outlook = outlook or self.outlook
        self._hold = HoldBack(config.max_in_flight or UNLIMITED, config.reserved_share)
        before, self.lanes = self.lanes, None
        if config.lanes is not None:
            n_here = self.n_places // (1 if self.common is None else self.common.n_processes)
            terms = (config.lanes, config.queue, max(LEAST_PLACES, n_here), config.reserved_share)
            if before is None:
                self.lanes = Lanes(*terms)
            else:
                before.configure(*terms)
                self.lanes = before
        if (before is None) is not (self.lanes is None):
            self._requeue(before)
        self.queue.config = config.queue

    def _requeue(self, before: Lanes[QueuedRequest] | None) -> None:
        """Lanes were added or removed: move the waiting requests to their new queues."""
        queues = [self.queue] if before is None else [lane.queue for lane in before.all]
        self.queue = Queue(self._config.queue) if self.lanes is None else self.lanes.short.queue
        for queue in queues:
            while (waiting := queue.pop(lambda _: True)) is not None:
                request = waiting.item.request
                request.lane = self.lanes.lane_for(request.band, request.n_read,
                                             request.n_output) if self.lanes is not None else None
                gone = self._queue_of(request).push(waiting)
                if gone is not None:
                    self._turn_away(gone, Why.QUEUE_FULL)

    @property
    def n_places(self) -> int:
        return self._hold.n_places

    def describe_occupancy(self, verb: str = "") -> str:
        """How many places are taken, in words; those of other workers included."""
        return describe_occupancy(self.n_taken, self.n_places, self.common, verb)

    @property
    def n_waiting(self) -> int:
        return self.queue.n if self.lanes is None else self.lanes.n_waiting

    def enter(self, share: TenantShare, request: AdmissionRequest, now: float) -> QueueEntry[QueuedRequest] | None:
        """Take a place (None), or an entry in the queue, for `wait`. Raises AdmissionRejected."""
        queue, lanes, lane, band = self.queue, self.lanes, None, request.band
        least = None
        if lanes is None:
            if queue.n and not share.n_waiting:
                least = queue.least_served()
        else:
            request.lane = lane = lanes.lane_for(band, request.n_read, request.n_output)
            queue = lane.queue
            if self._timer is not None and lanes.n_waiting and not share.n_waiting:
                least = lanes.least_served()
            lane.hold_back.seen_at[band] = now
        self._sharing.add_request(share, now, least)
        self._hold.seen_at[band] = now
        has_room = self._has_room(lane, band, self._sharing.n_reserved(share, self._hold.n_places, now), now)
        if has_room and not queue.n:
            self._take(share, request, now)
            return None
        if not has_room:
            self._check_worth(queue, share, request, now)
        waiting = QueueEntry(QueuedRequest(request), band, share, now, request.deadline_at)
        gone = queue.push(waiting)
        if gone is waiting:
            raise AdmissionRejected(Why.QUEUE_FULL, self._predicted_s(request, share))
        if gone is not None:
            self._turn_away(gone, Why.QUEUE_FULL)
        self._let_in(now)
        if self._timer is None and self.n_waiting:
            self.overload_signals.reset(now, self._clock.cpu())
            self._arm(now)
        if self.common is not None and self.n_waiting and not self.common.is_polling:
            self._poll_other_processes(self.common)
        return waiting

    async def wait(self, waiting: QueueEntry[QueuedRequest]) -> None:
        """Wait for a place. Raises AdmissionRejected. If cancelled, it holds neither a place nor an entry."""
        call = waiting.item
        try:
            why = await call.decision
        except asyncio.CancelledError:
            if call.is_in:
                self.give_back(waiting.share, call.request, 0.0, None, self._clock.now())
            elif not call.is_out:
                self._queue_of(call.request).remove(waiting)
            raise
        if why is not None:
            raise AdmissionRejected(why, self._predicted_s(call.request, waiting.share))

    def give_back(self, share: TenantShare, request: AdmissionRequest, tokens: float, took_s: float | None, now: float, *,
                  has_left: bool = False) -> None:
        """A place is free again, after `took_s` (None: it was not used) and so many weighted tokens. `has_left`: its client
        went before there was an answer.
        """
        self.n_taken -= 1
        if self.common is not None:
            self.common.set_taken(self.n_taken)
        self._sharing.end_request(share, request.tokens, tokens)
        lane, lanes = request.lane, self.lanes
        if lane is not None and lanes is not None:
            if request.is_prefilling:
                request.is_prefilling = False
                lanes.end_prefill(lane)
            lanes.end_request(lane, now)
        if took_s is not None:
            (self.queue if lane is None else lane.queue).record_service_time(took_s, has_left=has_left)
        if self._timer is not None and self.n_waiting:
            self._let_in(now)

    def note_first_token(self, request: AdmissionRequest) -> None:
        """A request in a lane has its first token; only the first call counts."""
        if request.is_prefilling and self.lanes is not None and request.lane is not None:
            request.is_prefilling = False
            self.lanes.end_prefill(request.lane)
            if self._timer is not None and self.lanes.n_waiting:
                self._let_in(self._clock.now())

    def learn_ttft(self, seconds: float) -> None:
        """A first token arrived `seconds` after its call began."""
        self._first_s += (seconds - self._first_s) * _LEARNS

    def queue_depths(self) -> Iterator[tuple[str, int]]:
        """Waiting requests by band, or by lane and band."""
        return self.queue.depths() if self.lanes is None else self.lanes.depths()

    def _queue_of(self, request: AdmissionRequest) -> Queue[QueuedRequest]:
        return self.queue if request.lane is None else request.lane.queue

    def _has_room(self, lane: Lane[QueuedRequest] | None, band: int, n_reserved: int, now: float) -> bool:
        hold, lanes = self._hold, self.lanes
        n_places = hold.n_places
        n_taken = self.n_taken if self.common is None else self.common.n_effective(self.n_taken, n_places)
        n_taken += n_reserved
        if lane is None or lanes is None:
            return n_taken < hold.guaranteed[band] or n_taken < hold.ceiling(band, now)
        if n_taken < n_places and lanes.has_guaranteed_room(lane, band):
            return True
        return lanes.has_room(lane, band, n_places - n_taken, n_places - hold.ceiling(band, now), now)

    def _poll_other_processes(self, common: SharedLimit) -> None:
        """While requests wait here: other processes do not report the places that they free."""
        self._let_in(self._clock.now())
        common.set_waiting(self.n_waiting)
        common.is_polling = self.n_waiting > 0
        if common.is_polling:
            asyncio.get_running_loop().call_later(POLL_EVERY_S, self._poll_other_processes, common)

    def _predicted_s(self, request: AdmissionRequest, share: TenantShare) -> float:
        """How long a new request would wait, in its lane if there are lanes."""
        lane = request.lane
        if lane is not None:
            n_served = max(lane.n_running, lane.n_entitled)
        else:  # places that serve this queue: those taken here, or this process's part of all
            n_served = self.n_taken if self.common is None else max(self.n_taken,
                                                                    self._hold.n_places // self.common.n_processes)
        return self._queue_of(request).predict_wait_s(request.band, share, n_served)

    def _check_worth(self, queue: Queue[QueuedRequest], share: TenantShare, request: AdmissionRequest, now: float) -> None:
        """Raises AdmissionRejected if the predicted wait is too long, and under overload for the bands that are shed."""
        wait_s = self._predicted_s(request, share)
        predict, n_held = self.outlook.predict_ttft_s, self.outlook.n_held
        first_s = predict(request) if predict is not None else None
        latest_at = min(request.ends_at, request.deadline_at - (self._first_s if first_s is None else first_s))
        if wait_s > queue.config.max_wait_s or now + wait_s > latest_at:
            raise AdmissionRejected(Why.PREDICTED_WAIT, wait_s)
        held_share = n_held() / self.n_taken if n_held is not None and self.n_taken else 0.0
        if not self._config.may_queue(request.band, queue.config, queue.n, wait_s, self.overload_signals,
                                      held_share=held_share):
            raise AdmissionRejected(Why.OVERLOADED, wait_s)

    def _let_in(self, now: float) -> None:
        for lane in (None,) if self.lanes is None else self.lanes.all:
            queue = self.queue if lane is None else lane.queue
            while self.n_taken < self._hold.n_places and queue.n:
                waiting = self._next(queue, lane, now)
                if waiting is None:
                    break
                call = waiting.item
                call.is_in = True  # also if it is being cancelled: its `wait` gives the place back
                self._take(waiting.share, call.request, now)
                if not call.decision.done():
                    call.decision.set_result(None)

    def _next(self, queue: Queue[QueuedRequest], lane: Lane[QueuedRequest] | None,
              now: float) -> QueueEntry[QueuedRequest] | None:
        n_reserved = self._sharing.n_reserved_from_greedy(self._hold.n_places, now)
        return queue.pop(lambda band: self._has_room(lane, band, n_reserved, now))

    def _take(self, share: TenantShare, request: AdmissionRequest, now: float) -> None:
        self.n_taken += 1
        if self.common is not None:
            self.common.set_taken(self.n_taken)
        self._sharing.start_request(share, request.tokens)
        if request.lane is not None and self.lanes is not None:
            request.is_prefilling = True
            self.lanes.start_request(request.lane, now)

    def _turn_away(self, waiting: QueueEntry[QueuedRequest], why: Why) -> None:
        waiting.item.is_out = True
        if not waiting.item.decision.done():
            waiting.item.decision.set_result(why)

    def _arm(self, now: float) -> None:
        target_s = self._config.queue.target_wait_s if self.lanes is None else self.lanes.target_wait_s
        self._timer_at = now + target_s / 2
        self._timer = asyncio.get_running_loop().call_at(self._timer_at, self._poll)

    def _poll(self) -> None:
        """Reject requests that waited too long; admit those whose ceiling has risen."""
        now = self._clock.now()
        self.overload_signals.add_sample(self._timer_at, now, self._clock.cpu())
        self._timer = None
        queues = (self.queue,) if self.lanes is None else [lane.queue for lane in self.lanes.all]
        for queue in queues:
            for waiting in queue.pop_overdue(now):
                self._turn_away(waiting, Why.WAITED)
        self._let_in(now)
        if self.n_waiting:
            self._arm(now)

    def __repr__(self) -> str:
        most = str(self.n_places) if self.n_places < UNLIMITED else "any number"
        return f"<AdmissionController {self.n_taken} of {most} taken, {self.queue if self.lanes is None else self.lanes!r}>"
