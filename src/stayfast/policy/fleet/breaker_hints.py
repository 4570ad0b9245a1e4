"""Breakers of several gateways: an open breaker is a hint to the others, and only a quorum opens them.

Problem: each gateway that calls an upstream pays for its outage: 5 failures, or 20 slow calls. But a gateway with a broken
cable finds every upstream failing, and if the others adopted its breakers, one broken cable would close the service for all.
Rule: each gateway publishes its open breakers, and whether it has called the upstream recently. For each
upstream and model, a gateway with a closed breaker then

    lowers its thresholds  if another gateway's breaker is open by its own evidence: half of `consecutive_failures` and of
                           `min_calls`, rounded up; its next calls decide
    opens                  if there is a quorum:  n_open >= 2  and  2 n_open >= n_with_traffic

`n_open` counts the breakers of other gateways that are open by their own evidence: one opened by a quorum is no vote, so
votes do not multiply. `n_with_traffic` counts all gateways, including this one, that called the upstream recently or whose
breaker is open by their own evidence. A breaker opened by a quorum is probed by the next request, not after `open_s`: if the
quorum is wrong about this gateway's way to the upstream, two good answers close it. The votes of these gateways then do not
count here until they were well again: own evidence is stronger.

Upstreams are the same if a digest of their kind, base URL and model is the same; names are local. Views carry durations, not
instants, and expire after VIEW_TTL_S, so clocks of different machines need not agree. A record that was sent before a hint
of the same gateway, and arrives after it, is ignored.
Source: Polly's discussion of distributed breakers (App-vNext/Polly #287): the cause may be the node or its network.
When wrong: if half of the gateways share a broken path, the others open once, probe, and close. Two gateways cannot form a
quorum against each other: with two, hints only halve the thresholds.
"""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

import msgspec

from stayfast.policy.resilience.breaker import BreakerConfig

VIEW_TTL_S = 5.0  # of a gateway's views; it publishes them every second
MIN_VOTES = 2
LOWERED = 0.5


class BreakerView(msgspec.Struct, frozen=True, array_like=True):
    """One gateway's breaker of one upstream and model. `is_open`: by its own evidence. `change`: how many changes of
    state it had. `left_s`: until its first probe. `n_failed`: failures in a row.
    """

    has_traffic: bool
    is_open: bool = False
    change: int = 0
    left_s: float = 0.0
    n_failed: int = 0
    cause: str = ""


class BreakerVerdict(NamedTuple):
    """What the other gateways' views mean for this gateway's breaker of one upstream. `votes`: the gateways whose breakers
    are open; `well`: the ones with traffic and a closed breaker.
    """

    votes: frozenset[str]
    well: frozenset[str]
    n_with_traffic: int
    cause: str

    @property
    def is_lowered(self) -> bool:
        """Whether there are hints, which lower the thresholds."""
        return bool(self.votes)

    def has_quorum(self, ignored: frozenset[str] = frozenset()) -> bool:
        """Whether the votes, without the ignored gateways', open this gateway's breaker."""
        return is_quorum(len(self.votes - ignored), self.n_with_traffic)


NO_VERDICT = BreakerVerdict(frozenset(), frozenset(), 0, "")


def is_quorum(n_open: int, n_with_traffic: int) -> bool:
    """Whether so many open breakers, of so many gateways with traffic, open the others'."""
    return n_open >= MIN_VOTES and 2 * n_open >= n_with_traffic


def lower_thresholds(config: BreakerConfig) -> BreakerConfig:
    """The settings of a breaker while another gateway's breaker of the same upstream is open."""
    return replace(config, consecutive_failures=_halve(config.consecutive_failures), min_calls=_halve(config.min_calls))


def _halve(n: int) -> int:
    return int(n * LOWERED + 0.5) or 1


def upstream_digest(kind: str, base_url: str, model: str) -> str:
    """Identifies an upstream and a model in all gateways: 16 hexadecimal digits."""
    return sha256(f"{kind}\n{base_url.rstrip('/')}\n{model}".encode()).hexdigest()[:16]


class _GatewayViews(NamedTuple):
    views: dict[str, BreakerView]  # by digest
    sent_at: float
    expires_at: float


class BreakerBoard:
    """The views of the other gateways. Pure state; instants are seconds of this gateway and never go back."""

    __slots__ = ("_views",)

    def __init__(self) -> None:
        self._views: dict[str, _GatewayViews] = {}

    def receive(self, gateway: str, views: Mapping[str, BreakerView], sent_at: float, now: float) -> None:
        """Replace all views of one gateway. sent_at: by its own clock; older than what is known: ignored."""
        known = self._views.get(gateway)
        if known is None or sent_at >= known.sent_at:
            self._views[gateway] = _GatewayViews(dict(views), sent_at, now + VIEW_TTL_S)

    def receive_one(self, gateway: str, digest: str, view: BreakerView, sent_at: float, now: float) -> None:
        """Replace one view of a gateway; its others stay."""
        known = self._views.get(gateway)
        self.receive(gateway, (known.views if known is not None else {}) | {digest: view}, sent_at, now)

    def keep_only(self, gateways: frozenset[str]) -> None:
        """Drop the views of all other gateways: they have left."""
        for gateway in self._views.keys() - gateways:
            del self._views[gateway]

    def judge(self, digest: str, now: float, *, has_traffic: bool) -> BreakerVerdict:
        """The verdict for this gateway's breaker. `has_traffic`: this gateway has called the upstream recently."""
        votes, well, causes = set[str](), set[str](), dict[str, None]()
        for gateway, known in self._views.items():
            view = known.views.get(digest)
            if view is None or now >= known.expires_at:
                continue
            if view.is_open:
                votes.add(gateway)
                causes[view.cause] = None
            elif view.has_traffic:
                well.add(gateway)
        return BreakerVerdict(frozenset(votes), frozenset(well), len(votes) + len(well) + has_traffic, ", ".join(causes))

    def __repr__(self) -> str:
        n_open = sum(view.is_open for known in self._views.values() for view in known.views.values())
        return f"<BreakerBoard of {len(self._views)} gateways, {n_open} open>"
