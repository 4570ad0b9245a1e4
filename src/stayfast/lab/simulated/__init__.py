"""Upstreams that are played: by a script (`Scripted`), or by a model of a provider (`Provider`, `Simulated`).

The model is jagged as providers are: heavy tails, bad minutes, stalls, cold starts, quotas that refill, engines that slow
down under load, and every way to fail. It waits only by asyncio and draws only by seed, so the same model stands behind
`stayfast sim` over HTTP, behind the gateway's `simulated` upstreams, and in virtual time.
"""

from stayfast.lab.simulated.config import (
    PRESETS,
    ColdStart,
    Gaps,
    Lengths,
    Mixture,
    Preset,
    ProviderConfig,
    Sag,
    Stalls,
    Tariff,
)
from stayfast.lab.simulated.engine import EngineModel
from stayfast.lab.simulated.faults import Broke, FaultRule, Kind, Regime, Regimes, Weather
from stayfast.lab.simulated.prompt_cache import PromptCacheModel
from stayfast.lab.simulated.provider import Answering, Head, Provider
from stayfast.lab.simulated.provider_state import Counts
from stayfast.lab.simulated.request import Ask, ask_of
from stayfast.lab.simulated.settings import Simulated
from stayfast.lab.simulated.vendor import Quota, Vendor
from stayfast.upstreams.scripted import NAMED_SCRIPTS, Cut, Fail, Raw, Say, Script, Scripted, Step, Wait

__all__ = [
    "NAMED_SCRIPTS", "PRESETS", "Answering", "Ask", "Broke", "ColdStart", "Counts", "Cut", "EngineModel", "Fail",
    "FaultRule", "Gaps", "Head", "Kind", "Lengths", "Mixture", "Preset", "PromptCacheModel", "Provider",
    "ProviderConfig", "Quota", "Raw", "Regime", "Regimes", "Sag", "Say", "Script", "Scripted",
    "Simulated", "Stalls", "Step", "Tariff", "Vendor", "Wait", "Weather", "ask_of",
]
