"""The way to an upstream."""

from typing import Any

import pytest

from stayfast.core.snapshot import Snapshot, UpstreamRow
from tests.unit.policy.findings.check_rig import find, find_one, prompts, snapshot, spread, traffic


def line(name: str = "north", *, settings: dict[str, Any] | None = None, answer: float = 150.0, **fields: Any) -> Snapshot:
    row = UpstreamRow(name, "openai", **{
        "n_attempts": 500, "ttft_s": spread(0.4), "handshake_s": spread(0.02, 0.04, 0.05, 60), "n_opened": 10,
        "n_reused": 490, "connect_s": spread(0.005, 0.008, 0.01, 60), "n_tls_resumed": 8, "clumped_ratio": 0.0, **fields})
    return snapshot(settings, upstreams=(row,), prompts=(prompts(output_tokens=spread(answer)),),
                    traffic=(traffic(upstream=name), traffic()))


OFTEN: dict[str, Any] = {"n_opened": 300, "n_reused": 200, "handshake_s": spread(0.15, 0.3, 0.4, 300), "n_tls_resumed": 250}
FAULTS = {
    "network.handshakes": line(**OFTEN),
    "network.tls_not_resumed": line(**{**OFTEN, "n_tls_resumed": 3}),
    "network.far_region": line(connect_s=spread(0.14, 0.16, 0.2, 60)),
    "network.slow_handshake": line(handshake_s=spread(0.2, 0.9, 1.2, 60)),
    "network.buffering_proxy": line(clumped_ratio=0.97),
}


@pytest.mark.parametrize("check", FAULTS)
def test_costly_line_is_found(check: str) -> None:
    assert find_one(check, FAULTS[check]).where.upstream == "north"


@pytest.mark.parametrize("check", FAULTS)
def test_good_line_is_not_found(check: str) -> None:
    assert find(check, line()) == []


@pytest.mark.parametrize(("check", "observed"), [
    ("network.handshakes", line(n_opened=300, n_reused=200, handshake_s=spread(0.001, n=300))),  # the same machine
    ("network.handshakes", line(**{**OFTEN, "ttft_s": spread(8.0)})),  # the model takes far longer
    ("network.handshakes", line(**{**OFTEN, "n_opened": 10, "n_reused": 5})),
    ("network.tls_not_resumed", line(n_tls_resumed=0)),  # rare, so of no weight
    ("network.tls_not_resumed", line("gpu", **{**OFTEN, "n_tls_resumed": 0})),  # no TLS
    ("network.far_region", line(connect_s=spread(0.03, 0.3, 0.5, 60))),  # near, with some lost packets
    ("network.far_region", line(connect_s=spread(0.14, n=3))),
    ("network.slow_handshake", line(handshake_s=spread(0.5, 0.6, 0.7, 60), connect_s=spread(0.2, 0.2, 0.2, 60))),  # far
    ("network.slow_handshake", line(handshake_s=spread(0.2, 0.9, 1.2, 10))),
    ("network.buffering_proxy", line(clumped_ratio=0.97, answer=5.0)),  # answers of one chunk
    ("network.buffering_proxy", line(clumped_ratio=0.1)),
])
def test_look_alike_is_not_found(check: str, observed: Snapshot) -> None:
    assert find(check, observed) == []


@pytest.mark.parametrize(("tcp_s", "cause"), [(0.6, "lost packets"), (0.01, "DNS or TLS")])
def test_slow_handshake_names_its_part(tcp_s: float, cause: str) -> None:
    observed = line(handshake_s=spread(0.2, 0.9, 1.2, 60), connect_s=spread(0.01, tcp_s, tcp_s, 60))
    assert cause in find_one("network.slow_handshake", observed).because
