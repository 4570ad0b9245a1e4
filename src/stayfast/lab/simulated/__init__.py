"""Simulated upstreams: scripted (`Scripted`), or a model of a provider (`Provider`, `Simulated`).

The model has heavy tails, bad minutes, stalls, cold starts, quotas that refill, engines that slow down under load, and
faults. It waits only by asyncio and draws only from its seed. So one model serves `stayfast sim` over HTTP, the gateway's
`simulated` upstreams, and tests in virtual time.
"""

from stayfast.lab.simulated.config import (
    PRESETS,
    ColdStart,
    GapConfig,
    OutputLengths,
    Mixture,
    Preset,
    ProviderConfig,
    SlowdownConfig,
    StallConfig,
    Tariff,
)
from stayfast.lab.simulated.engine import EngineModel
from stayfast.lab.simulated.faults import ConnectionBroken, FaultKind, FaultRule, Regime, Regimes, RegimeState
from stayfast.lab.simulated.prompt_cache import PromptCacheModel
from stayfast.lab.simulated.provider import SimulatedCall, Provider, SimulatedHead
from stayfast.lab.simulated.provider_state import ProviderCounts
from stayfast.lab.simulated.request import SimulatedRequest, to_simulated_request
from stayfast.lab.simulated.settings import Simulated
from stayfast.lab.simulated.vendor import Vendor, VendorQuota
from stayfast.upstreams.scripted import NAMED_SCRIPTS, Cut, Fail, SendBytes, SendText, Script, ScriptedUpstream, Step, Wait

__all__ = ["NAMED_SCRIPTS", "PRESETS", "SimulatedCall", "ConnectionBroken", "ColdStart", "Cut", "EngineModel", "Fail", "FaultKind",
           "FaultRule", "GapConfig", "OutputLengths", "Mixture", "Preset", "PromptCacheModel", "Provider", "ProviderConfig",
           "ProviderCounts", "SendBytes", "Regime", "RegimeState", "Regimes", "SlowdownConfig", "SendText", "Script", "ScriptedUpstream", "Simulated",
           "SimulatedHead", "SimulatedRequest", "StallConfig", "Step", "Tariff", "Vendor", "VendorQuota", "Wait", "to_simulated_request"]
