"""Small pieces of PromQL, and the metrics that rules and boards ask for before the gateway has them."""

from collections.abc import Mapping
from typing import NamedTuple

from stayfast.policy.slo import DAY_S, HOUR_S

FAILED = "5..|429"  # what a request may end with that its user must not have to see: ours, or the upstreams'
ANSWERED = 'outcome=~"ok|degraded"'  # the requests whose times count; failures are counted by status, and never as quick
COUNTED = "[235]..|429"  # other 4xx, and 499, are the client's own doing: neither good nor bad


class Awaited(NamedTuple):
    """A metric that does not exist yet. A query of it is empty until it does."""

    labels: tuple[str, ...]
    meaning: str


# The one list of what cannot have data. A test fails when one of these has come to be, so it can only become shorter.
AWAITED: Mapping[str, Awaited] = {}


def is_awaited(query: str) -> bool:
    """Whether a query cannot have data yet."""
    return any(name in query for name in AWAITED)


def span(seconds: int) -> str:
    """A duration as Prometheus writes it: 5m, 6h, 30d."""
    for unit, letter in ((DAY_S, "d"), (HOUR_S, "h"), (60, "m")):
        if seconds % unit == 0:
            return f"{seconds // unit}{letter}"
    return f"{seconds}s"


def quoted(text: str) -> str:
    """A label's value."""
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def number(value: float) -> str:
    """A number in a query: short, and never rounded by more than a millionth."""
    return f"{value:.7g}"


def bound(under_s: float) -> str:
    """A histogram's `le` for this bound, as the exposition writes it."""
    return quoted(repr(float(under_s)))


def or_none(query: str) -> str:
    """0 where there is no series yet: a failure that never happened has none."""
    return f"({query} or vector(0))"


def percent(share: float) -> str:
    """A share for people: 14.4 %."""
    return f"{share * 100:.3g} %"


def rate_by(label: str, metric: str, matchers: str = "", window: str = "5m") -> str:
    """A counter's rate, summed by one label."""
    return f"sum by ({label}) (rate({metric}{matchers}[{window}]))"
