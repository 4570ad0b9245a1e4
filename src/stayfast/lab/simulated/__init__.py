"""Upstreams that are played: by a script (`Scripted`), or by a model of a provider (`Provider`, `Simulated`).

The model is jagged as providers are: heavy tails, bad minutes, stalls, cold starts, quotas that refill, engines that slow
down under load, and every way to fail. It waits only by asyncio and draws only by seed, so the same model stands behind
`stayfast sim` over HTTP, behind the gateway's `simulated` upstreams, and in virtual time.
"""

from stayfast.lab.simulated.call import Answering, Head
from stayfast.lab.simulated.config import PRESETS, ColdStart, Lengths, Preset, ProviderConfig, Sag, Stalls, Tariff
from stayfast.lab.simulated.engine import EngineModel
from stayfast.lab.simulated.faults import Broke, FaultRule, Kind
from stayfast.lab.simulated.latency import Gaps, Mixture
from stayfast.lab.simulated.prompt_cache import PromptCacheModel
from stayfast.lab.simulated.provider import Provider
from stayfast.lab.simulated.provider_state import Counts
from stayfast.lab.simulated.quota import Quota
from stayfast.lab.simulated.regimes import Regime, Regimes, Weather
from stayfast.lab.simulated.request import Ask, ask_of
from stayfast.lab.simulated.upstream import Simulated
from stayfast.lab.simulated.vendor import Vendor
from stayfast.upstreams.scripted import NAMED_SCRIPTS, Cut, Fail, Raw, Say, Script, Scripted, Step, Wait

__all__ = [
    "NAMED_SCRIPTS", "PRESETS", "Answering", "Ask", "Broke", "ColdStart", "Counts", "Cut", "EngineModel", "Fail",
    "FaultRule", "Gaps", "Head", "Kind", "Lengths", "Mixture", "Preset", "PromptCacheModel", "Provider",
    "ProviderConfig", "Quota", "Raw", "Regime", "Regimes", "Sag", "Say", "Script", "Scripted",
    "Simulated", "Stalls", "Step", "Tariff", "Vendor", "Wait", "Weather", "ask_of",
]
