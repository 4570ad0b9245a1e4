"""The canned upstream, its callers and the bare proxy."""

from math import isnan

import pytest
import uvloop

from stayfast.lab.harness.load import LoadSpec, run_load
from stayfast.lab.harness.loopback import keep_busy
from stayfast.lab.harness.processes import Processes, gateway_settings
from stayfast.lab.load.result import Result
from tests.bench.servers import END, FINISH, STREAM_HEAD, Seen, Step, chunk, delta, event, serving, whole

pytestmark = pytest.mark.sockets
WHOLE = (whole(b'{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}'),)
STREAM = (STREAM_HEAD + b"\r\n", event(delta("a")), 0.02, event(delta("b")), event(FINISH), chunk(b"data: [DONE]\n\n"), END)


def test_canned_upstream_behind_gateway_gives_whole_answers() -> None:
    async def main() -> None:
        async with Processes() as processes:
            canned = await processes.start_canned_upstream()
            gateway = await processes.start_gateway(gateway_settings({"canned": f"{canned.url}/v1"}))
            n_answers, n_failed = await keep_busy(f"{gateway.url}/v1", 0.3, 4)
            assert n_answers > 8
            assert n_failed == 0
            told = await run_load(LoadSpec(0.2, n_concurrent=1, stream=False), f"{gateway.url}/v1", 1)
            assert not any(told.samples.errors)

    uvloop.run(main())


def test_keep_busy_counts_failures() -> None:
    async def main() -> None:
        async with Processes() as processes:
            gateway = await processes.start_gateway(gateway_settings({"nobody": "http://127.0.0.1:1/v1"}))
            n_answers, n_failed = await keep_busy(f"{gateway.url}/v1", 0.2, 2)
            assert n_failed == n_answers > 0

    uvloop.run(main())


async def through_the_proxy(script: tuple[Step, ...], load: LoadSpec) -> tuple[Result, Seen]:
    """Run the load on a scripted server, through the bare proxy."""
    async with serving(script) as (url, seen), Processes() as processes:
        proxy = await processes.start_bare_proxy(url.removesuffix("/v1"))
        return await run_load(load, f"{proxy.url}/v1", 1), seen


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_bare_proxy_reuses_connections(stream: bool) -> None:
    """Two callers need at most two connections."""
    script = STREAM if stream else WHOLE
    result, seen = uvloop.run(through_the_proxy(script, LoadSpec(0.3, n_concurrent=2, stream=stream)))
    samples = result.samples
    assert len(samples) == len(seen.bodies) > 2
    assert not any(samples.errors)
    assert set(samples.ints["n_chunks"]) == {2 if stream else 1}
    assert seen.n_connections <= 2


def test_bare_proxy_forwards_chunks_at_once() -> None:
    """The gap in a stream is visible behind the proxy."""
    result, _ = uvloop.run(through_the_proxy(STREAM, LoadSpec(0.2, n_concurrent=1)))
    assert min(result.samples.floats["gap_max_s"]) > 0.01


def test_bare_proxy_forwards_request_unchanged() -> None:
    result, seen = uvloop.run(through_the_proxy(WHOLE, LoadSpec(0.1, n_concurrent=1, stream=False, model="mine")))
    assert not isnan(result.samples.floats["ended_s"][0])
    assert seen.heads[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"content-type: application/json\r\n" in seen.heads[0].lower()
    assert b'"model":"mine"' in seen.bodies[0]
