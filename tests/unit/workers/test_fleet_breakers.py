"""Breakers of several gateways in front of one upstream, in virtual time."""

from random import Random

from stayfast.policy.fleet.breaker_hints import VIEW_TTL_S, upstream_digest
from stayfast.policy.resilience.breaker import Breaker, BreakerConfig, BreakerState
from stayfast.testing import RecordingSink
from stayfast.upstreams.state.upstream_state import ModelHealth
from stayfast.workers.fleet.breakers import BreakerExchange

UP = upstream_digest("openai", "https://example.com/v1", "m")
STEP_S = 0.2


class FleetRig:
    """Gateways that exchange their breakers every STEP_S; each calls the upstream once a step, first to last."""

    def __init__(self, n: int) -> None:
        self.now = 0.0
        self.sink = RecordingSink()
        self.healths = [ModelHealth("up", None, Breaker(BreakerConfig(), Random(seed)), self.sink) for seed in range(n)]
        self.exchanges = [BreakerExchange() for _ in range(n)]
        self.n_failed = [0] * n
        self.opened: list[int] = []  # the order in which they opened
        for exchange, health in zip(self.exchanges, self.healths, strict=True):
            exchange.attach([(UP, "up", health)])

    def states(self) -> str:
        """The first letters of all states."""
        return "".join(health.breaker.state.value[0] for health in self.healths)

    def n_opened(self, n: int) -> int:
        """How often the breaker of a gateway was opened by a quorum."""
        return self.exchanges[n].n_opened

    def call(self, n: int, *, fails: bool) -> None:
        """One call of one gateway; while the breaker is open only if a probe is due."""
        breaker = self.healths[n].breaker
        if breaker.state is not BreakerState.CLOSED and not breaker.needs_probe(self.now):
            return
        self.n_failed[n] += fails
        (breaker.record_failure if fails else breaker.record_success)(breaker.start_call(), self.now)

    def exchange(self) -> None:
        """All publish, then all receive."""
        views = [exchange.views(self.now) for exchange in self.exchanges]
        for n, exchange in enumerate(self.exchanges):
            for other, of_other in enumerate(views):
                if other != n:
                    exchange.board.receive(f"g{other}", of_other, self.now, self.now)
            exchange.consider(self.now)

    def run(self, seconds: float, *failing: int) -> None:
        """Let time pass; these gateways' calls fail."""
        for _ in range(round(seconds / STEP_S)):
            for n in range(len(self.healths)):
                self.call(n, fails=n in failing)
                self.exchange()
                for gateway, health in enumerate(self.healths):
                    if health.breaker.state is BreakerState.OPEN and gateway not in self.opened:
                        self.opened.append(gateway)
            self.now += STEP_S


def test_sick_gateway_opens_no_breaker_of_others() -> None:
    """One of three has a broken cable for ten minutes; the two others serve on."""
    rig = FleetRig(3)
    rig.run(60, 0)
    assert rig.opened == [0]
    rig.run(540, 0)
    assert rig.opened == [0]
    assert rig.states()[1:] == "cc"
    rig.run(100)
    assert rig.states() == "ccc"


def test_dead_upstream_opens_second_after_half_the_failures_and_third_by_quorum() -> None:
    """5, 3 and 0 failures of its own after the first one opened; each alone needs 5."""
    rig = FleetRig(3)
    rig.run(20)
    for _ in range(5):
        rig.call(0, fails=True)
    rig.exchange()
    assert rig.states() == "occ"
    for _ in range(3):
        rig.call(1, fails=True)
        assert rig.states() in {"occ", "ooc"}
    assert rig.states() == "ooc"
    rig.exchange()
    assert rig.states() == "ooo"
    assert rig.n_failed == [5, 3, 0]
    assert rig.healths[2].breaker.why == "open at 2 of 3 gateways: 5 failures in a row, 3 failures in a row"
    rig.run(200, 0, 1, 2)
    assert set(rig.states()) <= {"o"}
    rig.run(100)
    assert rig.states() == "ccc"


def test_gateway_that_reaches_the_upstream_closes_against_the_quorum() -> None:
    """Two of four are cut off; the two others open once, probe at once, and stay closed while the outage lasts."""
    rig = FleetRig(4)
    rig.run(5)
    rig.run(2, 0, 1)
    assert rig.states()[:2] == "oo"
    assert {2, 3} & set(rig.opened)
    rig.run(1, 0, 1)
    assert rig.states() == "oocc"
    rig.run(600, 0, 1)
    assert rig.states()[2:] == "cc"
    assert rig.n_opened(2) == rig.n_opened(3) == 1
    rig.run(100)
    assert rig.states() == "cccc"
    rig.run(2, 0, 1)
    assert rig.n_opened(2) == 2  # another outage is another vote


def test_two_gateways_never_open_each_other() -> None:
    rig = FleetRig(2)
    rig.run(60, 0)
    assert rig.opened == [0]


def test_hints_lower_thresholds_only_while_they_are_fresh() -> None:
    """Without the shared server views expire, and five failures are needed again."""
    rig = FleetRig(3)
    rig.run(3, 0)
    assert rig.healths[1].breaker.config.consecutive_failures == 3
    rig.now += VIEW_TTL_S
    rig.exchanges[1].consider(rig.now)
    assert rig.healths[1].breaker.config.consecutive_failures == 5
    rig.run(3, 0)
    rig.exchanges[1].release()
    assert rig.healths[1].breaker.config.consecutive_failures == 5


def test_news_are_changes_only() -> None:
    rig = FleetRig(1)
    exchange = rig.exchanges[0]
    rig.run(0.8, 0)
    assert exchange.take_news(rig.now) == {}
    rig.run(0.4, 0)
    news = exchange.take_news(rig.now)
    assert (news[UP].is_open, news[UP].n_failed, news[UP].cause) == (True, 5, "5 failures in a row")
    assert exchange.take_news(rig.now) == {}
    rig.run(80)
    assert [view.is_open for view in exchange.take_news(rig.now).values()] == [False]
    assert exchange.n_sent == 2


def test_two_upstreams_of_one_address_are_open_only_together() -> None:
    """Two names with two keys: one of them in trouble is no outage of the address."""
    rig = FleetRig(2)
    exchange = rig.exchanges[0]
    exchange.attach([(UP, "one", rig.healths[0]), (UP, "two", rig.healths[1])])
    for _ in range(5):
        rig.call(0, fails=True)
    rig.call(1, fails=False)
    assert not exchange.views(rig.now)[UP].is_open
    for _ in range(5):
        rig.call(1, fails=True)
    assert exchange.views(rig.now)[UP].is_open


def test_breaker_open_by_quorum_is_no_vote() -> None:
    rig = FleetRig(3)
    for n in (0, 1):
        for _ in range(5):
            rig.call(n, fails=True)
    rig.exchange()
    assert rig.states() == "ooo"
    assert [exchange.views(rig.now).get(UP) is not None for exchange in rig.exchanges] == [True, True, False]


def test_open_breaker_without_traffic_is_no_vote_after_its_time() -> None:
    """It stays open until a request probes it, perhaps for hours."""
    rig = FleetRig(1)
    for _ in range(5):
        rig.call(0, fails=True)
    assert rig.exchanges[0].views(rig.now)[UP].is_open
    rig.now += 1.2 * BreakerConfig().open_s
    assert rig.states() == "o"
    assert rig.exchanges[0].views(rig.now) == {}


def test_breaker_found_open_is_no_vote() -> None:
    """Whether its own evidence or a quorum opened it is unknown to the process that speaks from now on."""
    rig = FleetRig(1)
    for _ in range(5):
        rig.call(0, fails=True)
    exchange = BreakerExchange()
    exchange.attach([(UP, "up", rig.healths[0])])
    assert exchange.views(rig.now) == {}


def test_breakers_that_left_the_settings_get_their_thresholds_back() -> None:
    rig = FleetRig(2)
    rig.run(3, 0)
    assert rig.healths[1].breaker.config.consecutive_failures == 3
    rig.exchanges[1].attach([])
    assert rig.healths[1].breaker.config.consecutive_failures == 5
    assert list(rig.exchanges[1]) == []
