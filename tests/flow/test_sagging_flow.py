"""An upstream whose streams turn slow in their middle gets fewer of the next requests, on routes that ask for nothing."""

import pytest

from stayfast.testing import SimLoop, run
from tests.flow.test_routing import Client, client_of, settings_of

EVEN = ("{kind: simulated, fills_max_tokens: true, ttft: {median_s: 0.1, sigma: 0.05}, "
        "gaps: {median_s: 0.02, sigma: 0.1, tokens_per_chunk: 1}}")
SAGS = EVEN[:-1] + ", sag: {share: 0.8, rate_factor: 0.1}}"


def share_of_a(a: str) -> float:
    """What `a` got of 200 requests, one after the other, beside a twin that never sags."""
    async def main(loop: SimLoop) -> Client:
        client = client_of(settings_of("{upstreams: [a, b]}", a=a, b=EVEN), loop)
        for number in range(200):
            await client.ask(f"question {number}", n=60)
        return client

    by = run(main).by
    return by["a"] / by.total()


def test_who_sags_gets_less() -> None:
    """With a twin that does not sag beside it, its share falls; two even ones share evenly."""
    assert share_of_a(EVEN) == pytest.approx(0.5, abs=0.1)
    assert share_of_a(SAGS) < 0.3
