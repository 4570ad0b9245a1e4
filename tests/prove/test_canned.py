"""The can: what comes out of it is an answer, and its callers count what they got."""

import pytest
import uvloop

from stayfast.lab.harness.load import Load, ask
from stayfast.lab.harness.loopback import keep_busy
from stayfast.lab.harness.processes import Processes, gateway_settings

pytestmark = pytest.mark.sockets


def test_a_gateway_takes_its_answers_for_whole_ones() -> None:
    """And every caller is answered, again and again, until the time is up."""
    async def main() -> None:
        async with Processes() as processes:
            canned = await processes.canned_upstream()
            gateway = await processes.gateway(gateway_settings({"canned": f"{canned.url}/v1"}))
            n_answers, n_failed = await keep_busy(f"{gateway.url}/v1", 0.3, 4)
            assert n_answers > 8
            assert n_failed == 0
            told = (await ask(Load(0.2, n_concurrent=1, stream=False), {"g": f"{gateway.url}/v1"}, 1))["g"]
            assert not any(told.samples.errors)

    uvloop.run(main())


def test_failures_are_counted() -> None:
    """An answer that is no 200 is a failed call."""
    async def main() -> None:
        async with Processes() as processes:
            gateway = await processes.gateway(gateway_settings({"nobody": "http://127.0.0.1:1/v1"}))
            n_answers, n_failed = await keep_busy(f"{gateway.url}/v1", 0.2, 2)
            assert n_failed == n_answers > 0

    uvloop.run(main())
