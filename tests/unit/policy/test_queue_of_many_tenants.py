"""policy.admission.queue and fair_share: the fast paths agree with the plain rule."""

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.admission.fair_share import FairShares, TenantShare
from stayfast.policy.admission.priority import BANDS, WITH_TRAFFIC_S
from stayfast.policy.admission.queue import Queue, QueueConfig, QueueEntry

N_PLACES = 6
CEILINGS = (6, 6, 5, 4, 3)
N_TENANTS = 5
STEPS = st.tuples(st.sampled_from(["come", "come", "run", "go", "go", "end", "leave", "later"]), st.integers(0, 1000),
                  st.integers(0, len(BANDS) - 1), st.floats(0, 12))


def most_of_late(share: TenantShare, now: float) -> int:
    """What `n_most` will say, changing nothing."""
    if now < share.slot_ends_at:
        return max(share.peak_now, share.peak_before)
    return max(share.n_running, share.peak_now if now < share.slot_ends_at + WITH_TRAFFIC_S / 2 else share.n_running)


class Many:
    """Tenants, a queue and places; each pop and each newcomer is held against the rule as it is written down."""

    def __init__(self, weights: list[float], max_queue: int) -> None:
        self.sharing, self.now = FairShares(), 0.0
        self.queue: Queue[int] = Queue(QueueConfig(max_queue=max_queue))
        self.shares = [TenantShare(str(n), weight) for n, weight in enumerate(weights)]
        self.running: list[tuple[TenantShare, float]] = []
        self.inside: list[QueueEntry[int]] = []
        self.seen: set[TenantShare] = set()

    def do(self, step: str, which: int, band: int, amount: float) -> None:
        """One thing that happens."""
        share = self.shares[which % len(self.shares)]
        if step == "come":
            self.come(share, band, amount)
        elif step == "run" and len(self.running) < N_PLACES:
            self.arrive(share)
            self.start(share, amount)
        elif step == "go":
            self.go(amount)
        elif step == "end" and self.running:
            share, thought = self.running.pop(which % len(self.running))
            self.sharing.end_request(share, thought, amount * which % 7)
        elif step == "leave" and self.inside:
            self.queue.remove(self.inside.pop(which % len(self.inside)))
        elif step == "later":
            self.now += amount

    def arrive(self, share: TenantShare) -> None:
        self.seen.add(share)
        self.sharing.add_request(share, self.now, self.queue.least_served())

    def start(self, share: TenantShare, thought: float) -> None:
        self.sharing.start_request(share, thought)
        self.running.append((share, thought))

    def come(self, share: TenantShare, band: int, amount: float) -> None:
        """Into the queue; who has to go, if anybody, has waited in the longest lane for its weight."""
        self.arrive(share)
        assert self.queue.n_ahead(band, share) == self.n_ahead(band, share)
        waiting = QueueEntry(0, band, share, self.now, self.now + amount)
        self.inside.append(waiting)
        gone = self.queue.push(waiting)
        if gone is not None:
            lowest = max(each.band for each in self.inside)
            lengths = {each.share: 0 for each in self.inside if each.band == lowest}
            for each in self.inside:
                if each.band == lowest:
                    lengths[each.share] += 1
            ranks = {each: (n / each.weight, each.served) for each, n in lengths.items()}
            assert (gone.band, ranks[gone.share]) == (lowest, max(ranks.values()))
            self.inside.remove(gone)

    def go(self, thought: float) -> None:
        """Pop the next request, if there is room for any."""
        candidates = self.next_by_the_rule()
        n_reserved = self.sharing.n_reserved_from_greedy(N_PLACES, self.now)
        popped = self.queue.pop(lambda band: len(self.running) + n_reserved < CEILINGS[band])
        assert popped in candidates if candidates else popped is None
        if popped is not None:
            self.inside.remove(popped)
            self.start(popped.share, thought)

    def next_by_the_rule(self) -> list[QueueEntry[int]]:
        """The first request of each tenant that may go next: several tenants if they have equal claims."""
        for band in range(len(BANDS)):
            first = dict[TenantShare, QueueEntry[int]]()
            for entry in self.inside:
                if entry.band == band and (entry.share not in first or self.key(entry) < self.key(first[entry.share])):
                    first[entry.share] = entry
            able = [share for share in first if len(self.running) + self.n_reserved(share) < CEILINGS[band]]
            if able:
                least = min((share.claim, share.n_running) for share in able)
                return [first[share] for share in able if (share.claim, share.n_running) == least]
        return []

    def key(self, entry: QueueEntry[int]) -> float:
        """The order within a tenant's requests."""
        return min(entry.deadline_at, entry.queued_at + self.queue.config.aging_s)

    def n_reserved(self, share: TenantShare) -> int:
        """By the formula in policy.admission.fair_share."""
        present = self.sharing.tenants_with_traffic
        weights = sum(each.weight for each in present)
        greedy = {each for each in present
                  if each.n_waiting > 0 or each.n_running * weights >= N_PLACES * each.weight}
        if share not in greedy:
            return 0
        return sum(max(0, min(int(N_PLACES * each.weight / weights), most_of_late(each, self.now)) - each.n_running)
                   for each in present if each not in greedy)

    def n_ahead(self, band: int, share: TenantShare) -> float:
        """By counting."""
        higher = sum(each.band < band for each in self.inside)
        own = [each.share for each in self.inside if each.band == band]
        turns = (own.count(share) + 1) / share.weight
        return higher + sum(own.count(each) if each is share else min(own.count(each), turns * each.weight)
                            for each in dict.fromkeys(own))


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=N_TENANTS), st.integers(1, 30),
       st.lists(STEPS, max_size=150))
def test_controller_one_pass_equals_asking_each(weights: list[float], max_queue: int,
                                              steps: list[tuple[str, int, int, float]]) -> None:
    """For any sequence of events: the same request goes next, and the same places are reserved for others."""
    many = Many(weights, max_queue)
    for step in steps:
        many.do(*step)
        for share in many.seen:
            n_reserved = many.n_reserved(share)
            assert many.sharing.n_reserved(share, N_PLACES, many.now) == n_reserved


def test_queue_pop_calls_has_room_once_per_band() -> None:
    """However many tenants wait: when a place is given back, no work is done for each of them but to compare claims."""
    queue: Queue[int] = Queue(QueueConfig())
    for n in range(300):
        queue.push(QueueEntry(n, 2 + n % 2, TenantShare(str(n)), 0.0, 600.0))
    asked: list[int] = []

    def has_room(band: int) -> bool:
        asked.append(band)
        return False

    assert queue.pop(has_room) is None
    assert asked == [2, 3]


def test_sharing_n_reserved_skips_waiting_tenants() -> None:
    """A tenant that begins to wait reserves nothing; once it waits no more, it does."""
    sharing, share, other = FairShares(), TenantShare("a"), TenantShare("b")
    for each in (share, other):
        sharing.add_request(each, 0.0, None)
    sharing.start_request(other, 1.0)
    sharing.end_request(other, 1.0, 1.0)
    assert sharing.n_reserved_from_greedy(10, 0.0) == 1
    other.enter_queue()
    assert sharing.n_reserved_from_greedy(10, 0.0) == 0
    assert list(share.unqueued) == [share]
    other.leave_queue()
    assert sharing.n_reserved_from_greedy(10, 0.0) == 1
    sharing.add_request(share, 100.0, None)
    assert list(share.unqueued) == list(sharing.tenants_with_traffic) == [share]
