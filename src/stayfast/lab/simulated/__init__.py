"""Simulated upstreams: scripted (`Scripted`), or a model of a provider (`Provider`, `Simulated`).

The model has heavy tails, bad minutes, stalls, cold starts, quotas that refill, engines that slow down under load, and
faults. It waits only by asyncio and draws only from its seed. So one model serves `stayfast sim` over HTTP, the gateway's
`simulated` upstreams, and tests in virtual time.
"""

from stayfast.lab.simulated.config import (
    PRESETS,
    ColdStart,
    GapConfig,
    Lengths,
    Mixture,
    Preset,
    ProviderConfig,
    Sag,
    StallConfig,
    Tariff,
)
from stayfast.lab.simulated.engine import EngineModel
from stayfast.lab.simulated.faults import Broke, FaultKind, FaultRule, Regime, Regimes, RegimeState
from stayfast.lab.simulated.prompt_cache import PromptCacheModel
from stayfast.lab.simulated.provider import Answering, Provider, SimulatedHead
from stayfast.lab.simulated.provider_state import ProviderCounts
from stayfast.lab.simulated.request import SimulatedRequest, ask_of
from stayfast.lab.simulated.settings import Simulated
from stayfast.lab.simulated.vendor import Vendor, VendorQuota
from stayfast.upstreams.scripted import NAMED_SCRIPTS, Cut, Fail, Raw, Say, Script, Scripted, Step, Wait

__all__ = ["NAMED_SCRIPTS", "PRESETS", "Answering", "Broke", "ColdStart", "Cut", "EngineModel", "Fail", "FaultKind",
           "FaultRule", "GapConfig", "Lengths", "Mixture", "Preset", "PromptCacheModel", "Provider", "ProviderConfig",
           "ProviderCounts", "Raw", "Regime", "RegimeState", "Regimes", "Sag", "Say", "Script", "Scripted", "Simulated",
           "SimulatedHead", "SimulatedRequest", "StallConfig", "Step", "Tariff", "Vendor", "VendorQuota", "Wait", "ask_of"]
