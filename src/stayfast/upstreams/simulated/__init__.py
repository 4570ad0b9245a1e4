"""Upstreams that are played: by a script (`Scripted`), or by a model of a provider (`Provider`, `Simulated`).

The model is jagged as providers are: heavy tails, bad minutes, stalls, cold starts, quotas that refill, engines that slow
down under load, and every way to fail. It waits only by asyncio and draws only by seed, so the same model stands behind
`stayfast sim` over HTTP, behind the gateway's `simulated` upstreams, and in virtual time.
"""

from stayfast.upstreams.simulated.answering import Answering, Head
from stayfast.upstreams.simulated.ask import Ask, ask_of
from stayfast.upstreams.simulated.config import (
    PRESETS,
    ColdStart,
    Lengths,
    Preset,
    ProviderConfig,
    Sag,
    Stalls,
    Tariff,
)
from stayfast.upstreams.simulated.counts import Counts
from stayfast.upstreams.simulated.engine import EngineModel
from stayfast.upstreams.simulated.faults import Broke, FaultRule, Kind
from stayfast.upstreams.simulated.latency import Gaps, Mixture
from stayfast.upstreams.simulated.prompt_cache import PromptCacheModel
from stayfast.upstreams.simulated.provider import Provider
from stayfast.upstreams.simulated.quota import Quota
from stayfast.upstreams.simulated.regimes import Regime, Regimes, Weather
from stayfast.upstreams.simulated.scripted import NAMED_SCRIPTS, Cut, Fail, Raw, Say, Script, Scripted, Step, Wait
from stayfast.upstreams.simulated.upstream import Simulated
from stayfast.upstreams.simulated.vendor import Vendor

__all__ = [
    "NAMED_SCRIPTS", "PRESETS", "Answering", "Ask", "Broke", "ColdStart", "Counts", "Cut", "EngineModel", "Fail",
    "FaultRule", "Gaps", "Head", "Kind", "Lengths", "Mixture", "Preset", "PromptCacheModel", "Provider",
    "ProviderConfig", "Quota", "Raw", "Regime", "Regimes", "Sag", "Say", "Script", "Scripted",
    "Simulated", "Stalls", "Step", "Tariff", "Vendor", "Wait", "Weather", "ask_of",
]
