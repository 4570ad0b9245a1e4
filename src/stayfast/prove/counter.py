"""The desk's visitors over sockets: a gateway and its providers as processes, and the bench in front of them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stayfast.bench.arrivals import Gamma
from stayfast.bench.asking import AskingConfig
from stayfast.bench.client import HttpConfig, HttpTarget
from stayfast.bench.lengths import Constant
from stayfast.bench.perform import Origin, Plan, perform
from stayfast.bench.result import Result, Subject
from stayfast.bench.schedule import Limit, Prompts, Shot, Workload
from stayfast.core.clock import SystemClock
from stayfast.core.types import Api
from stayfast.prove.answered import ROUTE
from stayfast.prove.desk import Visit
from stayfast.prove.rig import Rig, Server
from stayfast.prove.shop import MODEL, N_MOST, NAMES, Said

TIMEOUT_S = 30.0


class Served(NamedTuple):
    """What came of the visits that count, and what the providers charged for them."""

    result: Result
    n: int
    usd: float


class _Questions(Prompts):
    """Visits as the bench's prompts, the first shot with the `first` of them."""

    def __init__(self, said: Said, visits: Sequence[Visit], first: int) -> None:
        self.system = said.system
        self._said = said
        self._visits = visits
        self._first = first

    def dialogue(self, shot: Shot) -> list[tuple[str, str]]:
        """See `Prompts`."""
        return [("user", self._said.by(self._visits[(self._first + shot.number) % len(self._visits)]))]


async def over_sockets(visits: Sequence[Visit], route: Mapping[str, Any], rate_rps: float, times_s: tuple[float, float],
                       seed: int) -> Served:
    """Ask a gateway with this route, for the first of two times unmeasured. Raises SetUpFailed."""
    warm_s, seconds = times_s
    said = Said(seed)
    async with Rig() as rig:
        articles = rig.written({visit.text: visit.article for visit in visits})
        shop = await rig.start("-m", "stayfast.prove.shop", articles, str(seed))
        gateway = await rig.gateway({
            "upstreams": {name: {"kind": "anthropic", "base_url": f"{shop.url}/{name}", "key": "none", "probe": False}
                          for name in NAMES},
            "routes": {ROUTE: {"upstreams": list(NAMES), "model": MODEL, **route}}})
        warm = await _ask(gateway, _Questions(said, visits, 0), rate_rps, warm_s, seed)
        before_usd, n_before = await _usd(shop), len(warm.samples)
        result = await _ask(gateway, _Questions(said, visits, n_before), rate_rps, seconds, seed + 1)
        return Served(result, len(result.samples), await _usd(shop) - before_usd)


async def _ask(gateway: Server, questions: _Questions, rate_rps: float, seconds: float, seed: int) -> Result:
    workload = Workload(input=Constant(1), output=Constant(N_MOST), arrivals=Gamma(rate_rps))
    clock = SystemClock()
    config = HttpConfig(gateway.url, AskingConfig(Api.MESSAGES, ROUTE, extra={"temperature": 0}))
    target = HttpTarget("gateway", config, questions, clock)
    [found] = await perform(Plan(workload, Limit(seconds), seed, timeout_s=TIMEOUT_S),
                            [(Subject("gateway", gateway.url, "messages", ROUTE), target)], clock, Origin())
    return found


async def _usd(shop: Server) -> float:
    """What all providers have charged so far."""
    counts = await shop.get("/_sim/counts")
    return sum([float(its["cost_usd"]) for its in counts["providers"].values()])
