"""The order in which tenants are served when they want more than there is.

Problem: first come, first served favours the tenant that sends most; taking turns by request favours long requests. Rule:
each tenant has a counter of the service it received, in weighted tokens, and the tenant with the least goes next.

    due     = (1 * input tokens + 2 * output tokens) / weight      estimated, from the start of a request to its end
    served += the same for the tokens really used                  at its end
    next    = the waiting tenant with the least `served + due`

An idle tenant must not save up service: when a tenant without waiting requests sends one, its `served` is raised to the
least `served` of the waiting tenants, or, if none waits, to that of the tenant that started last. Between tenants that
always want more, the service per weight then differs by at most what runs at a time.

A tenant that rarely sends is next in line, but a burst of another tenant may hold all places for an answer's time. So if
others have traffic, a *greedy* tenant leaves open the places that they recently used, up to their entitlement:

    greedy:  n_waiting > 0   or   n_running >= entitled,     entitled = n_places * weight / (sum of weights with traffic)
    reserved = sum over the other, not greedy tenants of  max(0, min(entitled, peak of the last 15 to 30 s) - n_running)

Source: Virtual Token Counter, "Fairness in Serving Large Language Models" (OSDI'24, arXiv 2401.00588): the weights 1 and 2
and the raise. The separate estimates and the reserved places are ours.
When wrong: the cost of a token differs by model and cache; a tenant of expensive tokens gets more than its share.
"""

from stayfast.policy.admission.priority import WITH_TRAFFIC_S

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
_RECOMPUTE_EVERY_S = 1.0
_PEAK_SLOT_S = WITH_TRAFFIC_S / 2


def weighted_tokens(n_input: float, n_output: float) -> float:
    return INPUT_WEIGHT * n_input + OUTPUT_WEIGHT * n_output


class RunningPeak:
    """The number of running requests, and its peak in the last 15 to 30 s. `n_running` is changed by the owner."""

    __slots__ = ("n_running", "peak_before", "peak_now", "slot_ends_at")

    def __init__(self) -> None:
        self.n_running = 0
        self.peak_now = self.peak_before = 0  # peaks of the present slot of 15 s and of the one before it
        self.slot_ends_at = float("-inf")  # when the present slot ends

    def recent_peak(self, now: float) -> int:
        if now >= self.slot_ends_at:
            self.peak_before = self.peak_now if now < self.slot_ends_at + _PEAK_SLOT_S else self.n_running
            self.peak_now, self.slot_ends_at = self.n_running, now + _PEAK_SLOT_S
        return max(self.peak_now, self.peak_before)


class TenantShare(RunningPeak):
    """One tenant's state. Changed by `FairShares`, and by the queues that hold its requests."""

    __slots__ = ("due", "n_waiting", "name", "seen_at", "served", "unqueued", "weight")

    def __init__(self, name: str, weight: float = 1.0) -> None:
        super().__init__()
        self.name = name
        self.weight = weight
        self.served = 0.0  # weighted tokens per unit of weight
        self.due = 0.0  # the same for running requests, estimated
        self.n_waiting = 0
        self.seen_at = float("-inf")
        self.unqueued: dict[TenantShare, None] = {}  # all tenants without waiting requests; shared with `FairShares`

    def enter_queue(self) -> None:
        self.n_waiting += 1
        self.unqueued.pop(self, None)

    def leave_queue(self) -> None:
        self.n_waiting -= 1
        if not self.n_waiting:
            self.unqueued[self] = None

    @property
    def claim(self) -> float:
        return self.served + self.due

    def __repr__(self) -> str:
        return (f"<TenantShare {self.name!r} x{self.weight:g}: {self.served:.0f} served, {self.n_running} running, "
                f"{self.n_waiting} waiting>")


class FairShares:
    """The shares of all tenants. Pure state; instants never go back."""

    __slots__ = ("_present", "_recompute_at", "_unqueued", "_weights", "started_last")

    def __init__(self) -> None:
        self.started_last = 0.0  # `served` of the tenant that started last
        self._present: dict[TenantShare, None] = {}  # tenants with traffic
        self._unqueued: dict[TenantShare, None] = {}  # the ones among them without waiting requests
        self._weights = 0.0  # the sum of their weights
        self._recompute_at = float("-inf")

    @property
    def tenants_with_traffic(self) -> tuple[TenantShare, ...]:
        return tuple(self._present)

    def add_request(self, share: TenantShare, now: float, least_waiting: float | None) -> None:
        """A tenant's request arrives. `least_waiting`: the least `served` of the waiting tenants; None: none waits."""
        if not share.n_waiting:
            floor = self.started_last if least_waiting is None else least_waiting
            share.served = max(share.served, floor)
        share.seen_at = now
        if now >= share.slot_ends_at:
            share.recent_peak(now)
        if share not in self._present:
            self._present[share] = None
            self._weights += share.weight
            share.unqueued = self._unqueued
            if not share.n_waiting:
                self._unqueued[share] = None
        if now >= self._recompute_at:
            self._drop_absent(now)

    def start_request(self, share: TenantShare, estimated: float) -> None:
        """A request starts. `estimated`: its weighted tokens, estimated."""
        self.started_last = share.served
        share.n_running = n = share.n_running + 1
        if n > share.peak_now:
            share.peak_now += 1
        share.due += estimated / share.weight

    def end_request(self, share: TenantShare, estimated: float, used: float) -> None:
        """A request ended. `estimated`: as given to `start_request`; `used`: the weighted tokens really used."""
        share.n_running -= 1
        share.due = share.due - estimated / share.weight if share.n_running else 0.0
        share.served += used / share.weight

    def n_reserved(self, share: TenantShare, n_places: int, now: float) -> int:
        """The places that a request of this tenant must leave open for other tenants."""
        weights = self._weights
        if weights <= share.weight or not (share.n_waiting or share.n_running * weights >= n_places * share.weight):
            return 0
        return self.n_reserved_from_greedy(n_places, now)

    def n_reserved_from_greedy(self, n_places: int, now: float) -> int:
        """The same for any greedy tenant, and so for all that wait: no places are reserved for greedy tenants."""
        n_reserved, weights = 0, self._weights
        for share in self._unqueued:
            n_running, due = share.n_running, n_places * share.weight
            if n_running * weights >= due:
                continue
            if now >= share.slot_ends_at:
                share.recent_peak(now)
            entitled = int(due / weights)
            if entitled > n_running:
                n_reserved += max(0, min(entitled, max(share.peak_now, share.peak_before)) - n_running)
        return n_reserved

    def _drop_absent(self, now: float) -> None:
        self._recompute_at = now + _RECOMPUTE_EVERY_S
        gone = [share for share in self._present
                if share.seen_at <= now - WITH_TRAFFIC_S and not share.n_running and not share.n_waiting]
        for share in gone:
            del self._present[share]
            self._unqueued.pop(share, None)
        self._weights = sum(share.weight for share in self._present)
