"""One simulator for all tests of this folder, as new for each of them."""

from collections.abc import Iterator

import pytest

from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig, VendorQuota
from tests.sim.running import Sim, running_sim

PROVIDERS = {
    "openai": ProviderConfig("instant"),
    "anthropic": ProviderConfig("instant", vendor="anthropic"),
    "tight": ProviderConfig("instant", quota=VendorQuota(requests_per_min=2, tokens_per_min=100_000)),
    "tight-anthropic": ProviderConfig("instant", vendor="anthropic", quota=VendorQuota(requests_per_min=2)),
    "slow": ProviderConfig("instant", ttft=Mixture(0.02), gaps=GapConfig(0.02, 0.0)),
}


@pytest.fixture(scope="session")
def running() -> Iterator[Sim]:
    """A simulator with PROVIDERS."""
    with running_sim(PROVIDERS) as sim:
        yield sim


@pytest.fixture
def sim(running: Sim) -> Sim:
    """The same, as after a start."""
    assert running.control("POST", "reset")[0] == 200
    return running
