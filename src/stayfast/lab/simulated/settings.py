"""A simulated provider in a settings file: upstreams of `kind: simulated`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from stayfast.core.clock import Clock
from stayfast.core.setting import About
from stayfast.lab.simulated.config import ProviderConfig
from stayfast.lab.simulated.upstream import Simulated
from stayfast.policy.admission.price import Prices
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings.upstreams import BREAKER, LIMIT, MODELS, PRICES, PROBE, AddedUpstream, nothing
from stayfast.upstreams.base import Upstream
from stayfast.upstreams.scripted import NAMED_SCRIPTS, Scripted


@dataclass(frozen=True, slots=True)
class SimulatedUpstream(AddedUpstream):
    """A provider that is played, by a script or by a model of a real one: no network, no key."""

    kind: Annotated[Literal["simulated"], About("A provider that is played.")] = "simulated"
    script: Annotated[Literal["jagged", "steady"], About(
        "Played where no setting of the model is given. jagged: mostly quick, sometimes slow to start, sometimes halting. "
        "steady: always quick.")] = "jagged"
    provider: Annotated[ProviderConfig, About("The model's own settings.", is_inline=True)] = field(
        default_factory=ProviderConfig)
    models: Annotated[Mapping[str, str], MODELS] = field(default_factory=nothing)
    prices: Annotated[Prices, PRICES] = field(default_factory=nothing)
    probe: Annotated[bool, PROBE] = True
    limit: Annotated[LimitConfig, LIMIT] = field(default_factory=LimitConfig)
    breaker: Annotated[BreakerConfig, BREAKER] = field(default_factory=BreakerConfig)

    def make(self, name: str, clock: Clock) -> Upstream:
        """A simulated provider where a setting of the model is given, else the script."""
        if self.provider != ProviderConfig():
            return Simulated(name, self.provider, clock)
        return Scripted(name, NAMED_SCRIPTS[self.script], clock)


KINDS = (SimulatedUpstream,)
