"""Simulated upstreams: scripted (`ScriptedUpstream`), or a model of a provider (`Provider`, `Simulated`).

The model has heavy tails, bad minutes, stalls, cold starts, quotas that refill, engines that slow down under load, and
faults. It waits only by asyncio and draws only from its seed. So one model serves `stayfast sim` over HTTP, the gateway's
`simulated` upstreams, and tests in virtual time.
"""

from stayfast.lab.simulated.config import (
    PRESETS,
    ColdStart,
    GapConfig,
    Mixture,
    ModelTiming,
    OutputLengths,
    Preset,
    ProviderConfig,
    SlowdownConfig,
    StallConfig,
    Tariff,
)
from stayfast.lab.simulated.engine import EngineModel
from stayfast.lab.simulated.faults import ConnectionBroken, FaultKind, FaultRule, Regime, Regimes, RegimeState
from stayfast.lab.simulated.prompt_cache import PromptCacheModel
from stayfast.lab.simulated.provider import Provider, SimulatedCall, SimulatedHead
from stayfast.lab.simulated.provider_state import ProviderCounts
from stayfast.lab.simulated.request import SimulatedRequest, to_simulated_request
from stayfast.lab.simulated.settings import Simulated
from stayfast.lab.simulated.vendor import Vendor, VendorQuota
from stayfast.upstreams.scripted import NAMED_SCRIPTS, Cut, Fail, Script, ScriptedUpstream, SendBytes, SendText, Step, Wait

__all__ = ["NAMED_SCRIPTS", "PRESETS", "ColdStart", "ConnectionBroken", "Cut", "EngineModel", "Fail", "FaultKind",
           "FaultRule", "GapConfig", "Mixture", "ModelTiming", "OutputLengths", "Preset", "PromptCacheModel",
           "Provider", "ProviderConfig", "ProviderCounts", "Regime", "RegimeState", "Regimes", "Script",
           "ScriptedUpstream", "SendBytes", "SendText", "Simulated", "SimulatedCall", "SimulatedHead",
           "SimulatedRequest", "SlowdownConfig", "StallConfig", "Step", "Tariff", "Vendor", "VendorQuota", "Wait",
           "to_simulated_request"]
