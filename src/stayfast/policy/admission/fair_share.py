"""Whose turn it is among tenants that want more than there is.

Problem: first come, first served gives the gateway to whoever sends most; turns by request give it to whoever sends the
longest. Rule: each tenant has a counter of the service it got, in weighted tokens, and the one with the least goes next.

    due     = (1 * input tokens + 2 * output tokens) / weight      an estimate, from the start of a request to its end
    served += the same of what it really took                      at its end
    next    = the tenant with the least `served + due` among those that wait

A tenant that comes back from idleness must not have saved up: when nothing of its own waits, its `served` is lifted to the
least of those that wait; where nobody waits, to that of whoever started last. (Estimates are no part of that: one that was
too high would leave the newcomer behind.) Between tenants that always want more, the service that each got for its weight
then differs by no more than what runs at a time.

A tenant that seldom asks is thus next in line whenever it does. But a burst that finds all places free takes them all, and
they become free again together, an answer's time later. So who is *greedy*, while others have traffic,

    n_waiting > 0   or   n_running >= entitled,     entitled = n_places * weight / (sum of the weights of those with traffic)

leaves open what the others have lately used at a time and do not use now, as far as that is theirs:

    kept = sum over the others that are not greedy of  max(0, min(entitled, most running in the last 15 to 30 s) - n_running)

Among the greedy, turns decide alone, and nothing is kept.
Source: Virtual Token Counter, "Fairness in Serving Large Language Models" (OSDI'24, arXiv 2401.00588): weights 1 and 2, and
the lift. That estimates and service are kept apart, and the open places, are ours.
When wrong: what a token costs differs (cached or not, model by model); a tenant of expensive tokens gets more than it looks.
"""

from stayfast.policy.admission.priority import WITH_TRAFFIC_S

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
_LOOK_EVERY_S = 1.0
_TURNS_EVERY_S = WITH_TRAFFIC_S / 2


def weighted(n_input: float, n_output: float) -> float:
    """Tokens by what they take."""
    return INPUT_WEIGHT * n_input + OUTPUT_WEIGHT * n_output


class TenantShare:
    """One tenant's part. Changed by `Sharing`, and by the queue that its requests wait in."""

    __slots__ = ("due", "n_most_before", "n_most_now", "n_running", "n_waiting", "name", "seen_at", "served", "turns_at",
                 "unqueued", "weight")

    def __init__(self, name: str, weight: float = 1.0) -> None:
        self.name = name
        self.weight = weight
        self.served = 0.0  # weighted tokens for each unit of weight
        self.due = 0.0  # the same, of what runs, as estimated
        self.n_waiting = 0
        self.n_running = 0
        self.seen_at = float("-inf")
        self.n_most_now = self.n_most_before = 0  # running at a time, in the half of the time that ends next; before it
        self.turns_at = float("-inf")  # when that ends
        self.unqueued: dict[TenantShare, None] = {}  # all for whom nothing waits, this one among them while that is so

    def queued(self) -> None:
        self.n_waiting += 1
        self.unqueued.pop(self, None)

    def left_queue(self) -> None:
        self.n_waiting -= 1
        if not self.n_waiting:
            self.unqueued[self] = None

    def n_most(self, now: float) -> int:
        """The most that it has run at a time of late."""
        if now >= self.turns_at:
            self.n_most_before = self.n_most_now if now < self.turns_at + _TURNS_EVERY_S else self.n_running
            self.n_most_now, self.turns_at = self.n_running, now + _TURNS_EVERY_S
        return max(self.n_most_now, self.n_most_before)

    @property
    def claim(self) -> float:
        """The tenant with the least goes next."""
        return self.served + self.due

    def __repr__(self) -> str:
        return (f"<TenantShare {self.name!r} x{self.weight:g}: {self.served:.0f} served, {self.n_running} running, "
                f"{self.n_waiting} waiting>")


class Sharing:
    """The turns of all tenants. Pure state; instants never go back."""

    __slots__ = ("_present", "_recompute_at", "_unqueued", "_weights", "started_last")

    def __init__(self) -> None:
        self.started_last = 0.0  # `served` of the tenant that started last
        self._present: dict[TenantShare, None] = {}  # those with traffic
        self._unqueued: dict[TenantShare, None] = {}  # of those: for whom nothing waits
        self._weights = 0.0  # of them, in sum
        self._recompute_at = float("-inf")

    def arrive(self, share: TenantShare, now: float, least_waiting: float | None) -> None:
        """A request of a tenant came. `least_waiting` is the least `served` among the tenants that wait; None: none does."""
        if not share.n_waiting:
            floor = self.started_last if least_waiting is None else least_waiting
            share.served = max(share.served, floor)
        share.seen_at = now
        if now >= share.turns_at:
            share.n_most(now)
        if share not in self._present:
            self._present[share] = None
            self._weights += share.weight
            share.unqueued = self._unqueued
            if not share.n_waiting:
                self._unqueued[share] = None
        if now >= self._recompute_at:
            self._forget(now)

    def start(self, share: TenantShare, thought: float) -> None:
        """One of its requests goes on; it is thought to take so much (`weighted`)."""
        self.started_last = share.served
        share.n_running = n = share.n_running + 1
        if n > share.n_most_now:
            share.n_most_now += 1
        share.due += thought / share.weight

    def end(self, share: TenantShare, thought: float, took: float) -> None:
        """It is over: what it was thought to take, and what it took."""
        share.n_running -= 1
        share.due = share.due - thought / share.weight if share.n_running else 0.0
        share.served += took / share.weight

    def n_reserved(self, share: TenantShare, n_places: int, now: float) -> int:
        """The places that one of this tenant's requests must leave open for the others."""
        weights = self._weights
        if weights <= share.weight or not (share.n_waiting or share.n_running * weights >= n_places * share.weight):
            return 0
        return self.n_reserved_from_greedy(n_places, now)

    def n_reserved_from_greedy(self, n_places: int, now: float) -> int:
        """The same for every greedy tenant, and so for all that wait: they are none of those that something is kept for."""
        n_reserved, weights = 0, self._weights
        for share in self._unqueued:
            n_running, due = share.n_running, n_places * share.weight
            if n_running * weights >= due:
                continue
            if now >= share.turns_at:
                share.n_most(now)
            entitled = int(due / weights)
            if entitled > n_running:
                n_reserved += max(0, min(entitled, max(share.n_most_now, share.n_most_before)) - n_running)
        return n_reserved

    def _forget(self, now: float) -> None:
        self._recompute_at = now + _LOOK_EVERY_S
        gone = [share for share in self._present
                if share.seen_at <= now - WITH_TRAFFIC_S and not share.n_running and not share.n_waiting]
        for share in gone:
            del self._present[share]
            self._unqueued.pop(share, None)
        self._weights = sum(share.weight for share in self._present)

    def __repr__(self) -> str:
        return f"<Sharing among {len(self._present)} tenants>"
