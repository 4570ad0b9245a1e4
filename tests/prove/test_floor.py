"""The bare proxy: it would be a poor yardstick if it did not do what a proxy must."""

from math import isnan

import pytest
import uvloop

from stayfast.bench.result import Result
from stayfast.lab.harness.load import Load, ask
from stayfast.lab.harness.processes import Processes
from tests.bench.servers import END, FINISH, STREAM_HEAD, Seen, Step, chunk, event, said, serving, whole

pytestmark = pytest.mark.sockets
WHOLE = (whole(b'{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}'),)
STREAM = (STREAM_HEAD + b"\r\n", event(said("a")), 0.02, event(said("b")), event(FINISH), chunk(b"data: [DONE]\n\n"), END)


async def through_the_floor(script: tuple[Step, ...], load: Load) -> tuple[Result, Seen]:
    """The load on a scripted server, by way of the bare proxy."""
    async with serving(script) as (url, seen), Processes() as processes:
        floor = await processes.baseline_proxy(url.removesuffix("/v1"))
        return (await ask(load, {"floor": f"{floor.url}/v1"}, 1))["floor"], seen


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_it_proxies_on_kept_connections(stream: bool) -> None:
    """Every answer comes whole and in as many parts as it was sent; two callers need two connections."""
    script = STREAM if stream else WHOLE
    result, seen = uvloop.run(through_the_floor(script, Load(0.3, n_concurrent=2, stream=stream)))
    samples = result.samples
    assert len(samples) == len(seen.bodies) > 2
    assert not any(samples.errors)
    assert set(samples.ints["n_chunks"]) == {2 if stream else 1}
    assert seen.n_connections <= 2


def test_chunks_pass_as_they_come() -> None:
    """The wait in the middle of a stream is seen behind the proxy."""
    result, _ = uvloop.run(through_the_floor(STREAM, Load(0.2, n_concurrent=1)))
    assert min(result.samples.floats["gap_max_s"]) > 0.01


def test_it_passes_on_what_it_is_given() -> None:
    """Method, path, fields and body are the client's."""
    result, seen = uvloop.run(through_the_floor(WHOLE, Load(0.1, n_concurrent=1, stream=False, model="mine")))
    assert not isnan(result.samples.floats["ended_s"][0])
    assert seen.heads[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"content-type: application/json\r\n" in seen.heads[0].lower()
    assert b'"model":"mine"' in seen.bodies[0]
