"""The breakers of one gateway, as it publishes them, and what the breakers of others change in them.

One process of a gateway does this for all its workers: its breakers evaluate the calls of all workers, and the workers
follow its changes (`workers.sync`), so lower thresholds in this process are enough.
"""

from collections.abc import Iterable, Iterator

from stayfast.policy.fleet.breaker_hints import BreakerBoard, BreakerVerdict, BreakerView, lower_thresholds
from stayfast.policy.resilience.breaker import BreakerState
from stayfast.upstreams.state.upstream_state import MAX_NAME, ModelHealth
from stayfast.workers.fleet.records import BreakerHint

MAX_VIEWS = 512  # in one record; further ones are not published
_CLOSED = BreakerState.CLOSED


class HintedBreaker:
    """One breaker. `name`: of its upstream, here."""

    __slots__ = ("_base", "_foreign_mark", "_ignored", "_was_closed", "digest", "health", "name")

    def __init__(self, digest: str, name: str, health: ModelHealth) -> None:
        self.digest = digest
        self.name = name
        self.health = health
        self._base = health.breaker.config
        # the change that was not by own evidence; an open breaker of unknown origin counts as such
        self._foreign_mark = health.breaker.mark if health.breaker.state is not _CLOSED else -1
        self._ignored: frozenset[str] = frozenset()
        self._was_closed = health.breaker.state is _CLOSED

    @property
    def is_by_quorum(self) -> bool:
        """Whether its last change was made by a quorum."""
        return self.health.breaker.mark == self._foreign_mark

    @property
    def is_closed(self) -> bool:
        return self.health.breaker.state is _CLOSED

    @property
    def label(self) -> str:
        """Its upstream and model, for people."""
        return self.name if self.health.model is None else f"{self.name} ({self.health.model[:MAX_NAME]})"

    def view(self, now: float) -> BreakerView:
        """As others see it. After its time it is no vote: without traffic it would stay open, unprobed, for hours."""
        breaker = self.health.breaker
        left_s = breaker.open_left_s(now)
        is_open = left_s > 0 and not self.is_by_quorum
        return BreakerView(breaker.has_traffic(now), is_open, breaker.mark, round(left_s, 1),
                           breaker.n_failed_in_row, breaker.why if is_open else "")

    def consider(self, verdict: BreakerVerdict, now: float) -> bool:
        """Apply the verdict of the other gateways; returns whether it opened the breaker."""
        breaker = self.health.breaker
        is_closed = breaker.state is _CLOSED
        if is_closed and not self._was_closed:
            self._ignored = verdict.votes  # good answers here are stronger than these votes
        self._ignored -= verdict.well
        breaker.configure(lower_thresholds(self._base) if verdict.is_lowered else self._base)
        is_opened = is_closed and breaker.is_enabled and verdict.has_quorum(self._ignored)
        if is_opened:
            why = f"open at {len(verdict.votes)} of {verdict.n_with_traffic} gateways: {verdict.cause}"
            breaker.open_for_probe(why, now)
            self._foreign_mark = breaker.mark
            self.health.report_changes()
        self._was_closed = breaker.state is _CLOSED
        return is_opened

    def release(self) -> None:
        """Use its own thresholds again."""
        self.health.breaker.configure(self._base)

    def __repr__(self) -> str:
        return f"<HintedBreaker {self.name} {self.digest}: {self.health!r}>"


class BreakerExchange:
    """All breakers of one gateway that others may share. Belongs to one loop."""

    __slots__ = ("_breakers", "_published", "board", "n_opened", "n_received", "n_sent")

    def __init__(self) -> None:
        self.board = BreakerBoard()
        self._breakers: dict[ModelHealth, HintedBreaker] = {}
        self._published: dict[str, int] = {}
        self.n_sent = self.n_received = self.n_opened = 0  # hints; breakers opened by a quorum

    def attach(self, breakers: Iterable[tuple[str, str, ModelHealth]]) -> None:
        """Share these breakers, and no others: the digest and name of the upstream, and its health."""
        before, self._breakers = self._breakers, {}
        for digest, name, health in breakers:
            found = before.pop(health, None)
            self._breakers[health] = found if found is not None and found.digest == digest else HintedBreaker(
                digest, name, health)
        for left in before.values():
            left.release()

    def views(self, now: float) -> dict[str, BreakerView]:
        """By digest: the breakers with traffic, or open."""
        found: dict[str, BreakerView] = {}
        for hinted in self._breakers.values():
            view = hinted.view(now)
            if not (view.has_traffic or view.is_open):
                continue
            other = found.get(hinted.digest)  # two upstreams of the same address, with two keys
            if (other is None and len(found) < MAX_VIEWS) or (other is not None and other.is_open and not view.is_open):
                found[hinted.digest] = view
        return found

    def take_news(self, now: float) -> dict[str, BreakerView]:
        """The views that opened or closed since the last call."""
        views = self.views(now)
        states = {digest: view.change for digest, view in views.items() if view.is_open}
        news = {digest: views[digest] for digest, change in states.items() if self._published.get(digest) != change}
        for digest in self._published.keys() - states.keys():
            news[digest] = views.get(digest, BreakerView(has_traffic=False))
        self._published = states
        self.n_sent += len(news)
        return news

    def receive(self, hint: BreakerHint, now: float) -> None:
        """A hint from another gateway."""
        self.n_received += 1
        self.board.receive_one(hint.gateway, hint.digest, hint.view, hint.sent_at, now)

    def consider(self, now: float) -> None:
        """Apply the verdicts of the other gateways to all breakers."""
        for hinted in self._breakers.values():
            verdict = self.board.judge(hinted.digest, now, has_traffic=hinted.health.breaker.has_traffic(now))
            self.n_opened += hinted.consider(verdict, now)

    def release(self) -> None:
        """Another process speaks for the gateway now: use all thresholds as set."""
        for hinted in self._breakers.values():
            hinted.release()

    def __iter__(self) -> Iterator[HintedBreaker]:
        return iter(self._breakers.values())

    def __repr__(self) -> str:
        return f"<BreakerExchange of {len(self._breakers)} breakers, {self.board!r}>"
