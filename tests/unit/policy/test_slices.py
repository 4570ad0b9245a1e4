"""Slices of a limit that several gateways share."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.policy.fleet.slices import EXACT_EVERY_S, IDLE_S, LOW, SLICE_S, TTL_S, US, WAIT_S, CallPace, Lease, LeaseGrant
from tests.unit.policy.lease_rig import ModelGateway, ModelStore, SentCall

CAPACITY, PER_S = 600.0, 10.0
STEPS = st.lists(st.tuples(
    st.sampled_from(["spend", "spend", "spend", "wait", "send", "arrive", "arrive", "lose call", "lose reply", "charge",
                     "return", "die", "forget"]),
    st.integers(0, 3), st.floats(0.01, 40.0)), max_size=250)


def us(now: float) -> int:
    return round(now * US)


class Fleet:
    """Four gateways and a store, with calls and replies on their way."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store = ModelStore()
        self.n_born = 4
        self.gateways = [self.new_gateway(n) for n in range(4)]
        self.calls: list[tuple[ModelGateway, SentCall]] = []
        self.gone = 0.0  # admitted by gateways that died
        self.charged = 0.0  # beyond estimates
        self.returned = 0.0

    def new_gateway(self, n: int) -> ModelGateway:
        return ModelGateway(f"g{n}", CAPACITY, PER_S, self.now)

    def step(self, what: str, n: int, size: float) -> None:
        gateway = self.gateways[n]
        if what == "spend":
            gateway.spend(size, self.now)
        elif what == "wait":
            self.now += size / 10
            for each in self.gateways:
                each.tick(self.now)
        elif what == "send":
            self.calls.append((gateway, gateway.send(self.now)))
        elif what == "charge":  # a request used more than its estimate
            gateway.bucket.charge(size, self.now)
            self.charged += size
        elif what == "return" and gateway.admitted - self.returned > size:
            gateway.bucket.charge(-size, self.now)
            self.returned += size
        elif what == "die":
            self.gone += gateway.admitted
            self.gateways[n] = self.new_gateway(self.n_born)
            self.n_born += 1
        elif what == "forget" and size > 39:  # the store loses its data, rarely
            self.store.lose_data()
        elif self.calls:
            self.deliver(what, n)

    def deliver(self, what: str, n: int) -> None:
        """Calls arrive in any order, and late."""
        gateway, call = self.calls.pop(n % len(self.calls))
        if what == "lose call":
            return
        reply = self.store.call(gateway.name, call.number, call.epoch, call.report, us(self.now))
        if what == "arrive" and gateway in self.gateways and call.number == gateway.number:
            gateway.receive(reply, self.now)

    @property
    def admitted(self) -> float:
        return self.gone + sum(gateway.admitted for gateway in self.gateways)


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_fleet_any_interleaving_admits_at_most_the_limit(steps: list[tuple[str, int, float]]) -> None:
    """Lost calls, lost replies, late calls, deaths and new gateways: never more than the bucket has given out. A store that
    loses its data is the exception: a gateway without a reply since then knows nothing of it.
    """
    fleet = Fleet()
    for what, n, size in steps:
        if what == "forget":
            continue
        fleet.step(what, n, size)
        limit = CAPACITY + (fleet.now - 1000.0) * PER_S
        assert fleet.admitted <= limit + fleet.returned + 1e-3 * len(steps) + 4 * CAPACITY * 1e-6


@settings(max_examples=200, deadline=None)
@given(STEPS, st.floats(1.0, 30.0))
def test_fleet_without_the_store_admits_at_most_the_limit_and_the_slack(steps: list[tuple[str, int, float]],
                                                                        lost_s: float) -> None:
    """After any history of live gateways, the store is lost. All of them continue with all that they can."""
    fleet = Fleet()
    for what, n, size in steps:
        if what in {"spend", "wait", "charge"}:
            fleet.step(what, n, size)
        elif what in {"send", "arrive"}:
            fleet.step("send", n, size)
            fleet.step("arrive", 0, size)
    for n in range(4):  # all have the store's reply: the entitlements are current
        fleet.step("send", n, 1.0)
        fleet.step("arrive", 0, 1.0)
    before, began_at = fleet.admitted, fleet.now
    slack = sum(gateway.slack + gateway.lease.level_alone(4, fleet.now) for gateway in fleet.gateways)
    for gateway in fleet.gateways:
        gateway.lose_store(4, fleet.now)
    while fleet.now < began_at + lost_s:
        fleet.now += 0.1
        for gateway in fleet.gateways:
            gateway.tick(fleet.now)
            while gateway.spend(1.0, fleet.now):
                pass
    assert fleet.admitted - before <= slack + PER_S * (fleet.now - began_at) + 0.01


def test_fleet_back_after_a_loss_is_charged_for_it() -> None:
    """What was admitted without the store becomes a debt of the shared bucket."""
    fleet = Fleet()
    gateway = fleet.gateways[0]
    gateway.spend(1.0, fleet.now)
    fleet.step("send", 0, 0)
    fleet.step("arrive", 0, 0)
    gateway.lose_store(4, fleet.now)
    while gateway.spend(1.0, fleet.now):
        pass
    assert gateway.admitted > 500
    fleet.step("send", 0, 0)
    fleet.step("arrive", 0, 0)
    assert gateway.lease.grant is not None
    assert gateway.lease.grant.level_us / US * PER_S <= CAPACITY - gateway.admitted + 1e-3


def test_fleet_store_that_lost_its_data_gets_the_level_from_the_gateways() -> None:
    """An empty server would give the whole burst again."""
    fleet = Fleet()
    gateway = fleet.gateways[0]
    for _ in range(40):
        while gateway.spend(1.0, fleet.now):
            pass
        fleet.step("wait", 0, 10.0)
        fleet.step("send", 0, 0)
        fleet.step("arrive", 0, 0)
    fleet.store.lose_data()
    for _ in range(10):
        while gateway.spend(1.0, fleet.now):
            pass
        fleet.step("wait", 0, 10.0)
        fleet.step("send", 0, 0)
        fleet.step("arrive", 0, 0)
    assert gateway.admitted <= CAPACITY + (fleet.now - 1000.0) * PER_S


def run_skewed(rates: tuple[float, ...], seconds: float) -> tuple[list[list[float]], list[float]]:
    """Instants of admitted requests and of calls, by gateway."""
    fleet = Fleet()
    admitted: list[list[float]] = [[] for _ in rates]
    calls: list[float] = []
    due = [0.0] * len(rates)
    while fleet.now < 1000.0 + seconds:
        fleet.now += 0.01
        for n, gateway in enumerate(fleet.gateways):
            due[n] += rates[n] * 0.01
            while due[n] >= 1:
                due[n] -= 1
                if gateway.spend(1.0, fleet.now):
                    admitted[n].append(fleet.now)
            gateway.tick(fleet.now)
            if gateway.is_due(fleet.now):
                if n == 0:
                    calls.append(fleet.now)
                fleet.step("send", n, 0)
                fleet.step("arrive", 0, 0)
    return admitted, calls


def test_fleet_skewed_demand_gets_the_limit_over_any_ten_seconds() -> None:
    """Demand 70/20/10/0 of three times the limit: what is admitted is within 2 % of it, with at most two calls a second."""
    admitted, calls = run_skewed((21.0, 6.0, 3.0, 0.0), 120.0)
    every = sorted(at for each in admitted for at in each)
    assert len(every) <= CAPACITY + 120.0 * PER_S
    for n in range(120):  # from second 50, when the burst is used
        begin = 1050.0 + n / 2
        n_admitted = sum(begin <= at < begin + 10.0 for at in every)
        assert n_admitted == pytest.approx(10 * PER_S, rel=0.02, abs=2)
    assert all(later - before > 1.0 for before, later in zip(calls, calls[2:], strict=False))
    assert admitted[3] == []


def test_fleet_large_reservations_are_covered_by_the_slice() -> None:
    """32 clients reserve 50 each, for 0.3 s, and use 0.1: the demand is a thousandth of what is reserved. The level has
    enough, so no request is refused after 50 ms.
    """
    fleet = Fleet()
    fleet.gateways = [ModelGateway("g", 24_000.0, 400.0, fleet.now)]
    gateway, n_refused, n_admitted = fleet.gateways[0], 0, 0
    running: list[int] = []
    waiting: list[int] = []
    calls: list[float] = []
    for tick in range(4600):
        fleet.now += 0.01
        ended = [at for at in running if at <= tick]
        running = [at for at in running if at > tick]
        for _ in ended:
            gateway.bucket.charge(0.1 - 50.0, fleet.now)
        if tick % 230 == 121:  # just idle
            waiting += [tick] * 32
        for began_at in waiting[:]:
            if gateway.bucket.has_room(50.0, fleet.now) if tick > began_at else gateway.bucket.take(50.0, fleet.now):
                if tick > began_at:
                    assert gateway.bucket.take(50.0, fleet.now)
                n_admitted += 1
                running.append(tick + 30)
                waiting.remove(began_at)
            elif tick - began_at >= WAIT_S * 100:
                n_refused += 1
                waiting.remove(began_at)
        gateway.tick(fleet.now)
        if gateway.is_due(fleet.now):
            calls.append(fleet.now)
            fleet.step("send", 0, 0)
            fleet.step("arrive", 0, 0)
    assert n_refused == 0
    assert n_admitted == 32 * 20
    assert all(later - before > 1.0 for before, later in zip(calls, calls[2:], strict=False))


def test_fleet_small_parts_are_given_back_for_a_whole_request() -> None:
    """A request of a third of the limit's minute: parts of it at each gateway would serve nobody."""
    fleet = Fleet()
    n_served = 0
    for at in range(4000):
        fleet.now += 0.1
        for n, gateway in enumerate(fleet.gateways):
            if at % 10 == n:
                n_served += gateway.spend(200.0, fleet.now)
            gateway.tick(fleet.now)
            if gateway.is_due(fleet.now):
                fleet.step("send", n, 0)
                fleet.step("arrive", 0, 0)
    assert n_served >= 0.9 * (CAPACITY + 400 * PER_S) / 200


def test_lease_without_demand_gives_everything_back() -> None:
    fleet = Fleet()
    gateway = fleet.gateways[0]
    for _ in range(3):
        gateway.spend(5.0, fleet.now)
        fleet.step("send", 0, 0)
        fleet.step("arrive", 0, 0)
        fleet.step("wait", 0, 6.0)
    assert gateway.bucket.stock > 0
    fleet.step("wait", 0, 10 * IDLE_S)
    assert gateway.is_due(fleet.now)
    fleet.step("send", 0, 0)
    fleet.step("arrive", 0, 0)
    assert gateway.lease.is_settled(gateway.bucket.stock)
    assert not gateway.is_due(fleet.now + 2.0)


def test_call_pace_allows_two_calls_in_a_second() -> None:
    pace = CallPace()
    assert pace.may_call(10.0)
    pace.note_call(10.0)
    assert pace.may_call(10.1)
    pace.note_call(10.1)
    assert not pace.may_call(11.0)
    assert pace.may_call(11.01)


def test_lease_with_an_expired_record_is_charged_for_what_it_spent() -> None:
    """The store forgets a gateway after TTL_S without a call; its slice stays taken."""
    fleet = Fleet()
    gateway = fleet.gateways[0]
    gateway.spend(50.0, fleet.now)
    fleet.step("send", 0, 0)
    fleet.step("arrive", 0, 0)
    while gateway.spend(10.0, fleet.now):
        pass
    fleet.now += TTL_S + 1.0
    fleet.step("send", 1, 0)  # drops the record
    fleet.step("arrive", 0, 0)
    fleet.step("send", 0, 0)
    fleet.step("arrive", 0, 0)
    assert gateway.admitted == 400.0
    taken = sum(each.bucket.stock for each in fleet.gateways)
    assert gateway.lease.grant is not None
    assert gateway.lease.grant.level_us / US * PER_S + taken <= CAPACITY - 400.0 + (TTL_S + 1.0) * PER_S + 1e-3


def test_lease_low_stock_is_due_before_it_is_empty() -> None:
    lease, pace = Lease(CAPACITY, PER_S, 0.0), CallPace()
    for n in range(1, 200):
        lease.demand.observe(n * 0.1, n * 0.01)  # 10 a second
    now = 2.0
    pace.note_call(now - 0.5)
    enough = LOW * 10.0 * SLICE_S + 0.5
    assert not lease.is_due(enough, 0.0, pace, now)
    assert lease.is_due(enough - 1.0, 0.0, pace, now)


def test_lease_in_exact_mode_releases_a_slice_evenly() -> None:
    """A level below what all gateways need for two seconds: no burst at the start of a slice."""
    lease = Lease(CAPACITY, PER_S, 0.0)
    lease.demand.observe(0.0, 0.1)
    lease.demand.observe(30.0, 1.0)
    lease.make_report(0.0, 0.0, 1.0, 1.0)
    assert lease.take_grant(LeaseGrant(500_000, 100_000, 0, US, 3 * US, 4), 1.0) == 0.0
    assert lease.is_exact
    half = lease.release(1.0, 1.0 + EXACT_EVERY_S / 2)
    assert half == pytest.approx(2.5)
    assert lease.release(1.0 + EXACT_EVERY_S / 2, 1.0 + EXACT_EVERY_S) == pytest.approx(2.5)
    assert lease.pending == 0.0


def test_lease_entitlement_without_a_recent_reply_is_an_equal_part() -> None:
    lease = Lease(CAPACITY, PER_S, 0.0)
    assert lease.entitlement(4, 1.0) == 0.25
    lease.make_report(0.0, 0.0, 1.0, 1.0)
    lease.take_grant(LeaseGrant(0, US, 0, 700_000, US, 4), 1.0)
    assert lease.entitlement(4, 2.0) == 0.7
    assert lease.entitlement(4, 7.0) == 0.25


def test_lease_alone_refills_its_share_up_to_its_part_of_the_burst() -> None:
    lease = Lease(CAPACITY, PER_S, 0.0)
    assert lease.refill_alone(0.0, 0.25, 2.0) == pytest.approx(5.0)
    assert lease.refill_alone(149.0, 0.25, 2.0) == pytest.approx(1.0)
    assert lease.refill_alone(151.0, 0.25, 2.0) == 0.0
