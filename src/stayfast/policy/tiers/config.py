"""The settings of a route's tiers, and of the choice among them."""

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, get_args

from stayfast.core.setting import SettingDoc, check_bounds

ServiceTier = Literal["", "flex", "standard", "fast", "ultrafast"]
STANDARD: Final = "standard"
SPEEDS: Final[tuple[str, ...]] = get_args(ServiceTier)[1:]  # slow and cheap first
_SERVED: Final = {"batch": "flex", "on_demand_flex": "flex", "default": STANDARD, "on_demand": STANDARD, "priority": "fast",
                  "on_demand_priority": "fast", "performance": "fast", "optimized": "fast"} | {name: name for name in SPEEDS}


def read_served(word: str) -> str:
    """The service tier that a provider reports, as one of SPEEDS; empty for an unknown word."""
    return _SERVED.get(word.lower(), "")


@dataclass(frozen=True, slots=True)
class TierEntry:
    """One tier of a route: a model at some upstreams, perhaps at another speed and price of the provider."""

    name: Annotated[str, SettingDoc(
        "Name of the tier, for `tier.start`, logs and metrics.", pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}",
        form="1 to 40 letters, digits, dots, hyphens or underscores")]
    upstreams: Annotated[tuple[str, ...], SettingDoc("Upstreams of this tier, by name.")]
    model: Annotated[str | None, SettingDoc(
        "Model name at these upstreams. null: as for a route without tiers. Tiers with the same model have the same skill."
    )] = None
    service_tier: Annotated[ServiceTier, SettingDoc(
        "Speed and price that are requested from the provider. Empty: none is requested.")] = ""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.upstreams:
            raise ValueError("upstreams must name at least one upstream")
        if len(set(self.upstreams)) < len(self.upstreams):
            raise ValueError("upstreams must name each upstream once")


@dataclass(frozen=True, slots=True)
class TierConfig:
    """How a tier is chosen for a request."""

    start: Annotated[str, SettingDoc(
        "Tier that is enough for a request of which nothing else is known. Empty: the first tier with the last model."
    )] = ""
    down: Annotated[bool, SettingDoc(
        "Use a tier with a smaller model where no other one answers in time, or can be called.")] = True
    percentile: Annotated[float, SettingDoc(
        "Share of recent answers that were as fast as a prediction, or faster.", minimum=0.5, maximum=0.99)] = 0.9
    hedge_up: Annotated[bool, SettingDoc(
        "Send hedges to a faster service tier or a larger model, instead of the same tier again.")] = False
    replace_service_tier: Annotated[bool, SettingDoc(
        "Send the tier's service_tier even if the client's request has one.")] = False
    hold_streams: Annotated[bool, SettingDoc(
        "Hold a streamed answer back until it is verified. Otherwise only whole answers are verified.")] = False

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class TierLadder:
    """The tiers of one route, small to large, and how they are chosen. Raises ValueError for a contradiction."""

    entries: tuple[TierEntry, ...] = ()
    config: TierConfig = field(default_factory=TierConfig)

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"tiers must have different names, but two are named {twice!r}")
        if self.config.start and self.config.start not in names:
            known = ", ".join(names) if names else "there are no tiers"
            raise ValueError(f"tier.start must be the name of a tier ({known}), not {self.config.start!r}")
        if not names and self.config != TierConfig():
            raise ValueError("tier has no effect without tiers: add tiers, or remove it")
        wanted = [(name, entry.model, entry.service_tier or STANDARD) for entry in self.entries for name in entry.upstreams]
        if len(set(wanted)) < len(wanted):
            raise ValueError("tiers must differ in their upstreams, model or service_tier")
