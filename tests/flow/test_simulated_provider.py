"""A gateway in front of simulated providers, on virtual time: what the model does reaches the client as over HTTP."""

import asyncio
from typing import Any

import pytest

from stayfast.core.errors import DeadlineExceeded, Fault, UpstreamFailed
from stayfast.core.types import CLIENT_APIS, Api
from stayfast.lab.simulated import (
    EngineModel,
    FaultKind,
    FaultRule,
    GapConfig,
    Mixture,
    ProviderConfig,
    Simulated,
    VendorQuota,
)
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import SimLoop, run
from tests.flow.rig import Rig, chat, read, text_of
from tests.unit.upstreams.simulated_rig import request

PACE: dict[str, Any] = {"ttft": Mixture(1.0), "gaps": GapConfig(0.1, 0.0)}


def simulated(loop: SimLoop, *rules: FaultRule, name: str = "sim", **fields: Any) -> Simulated:
    """One provider that takes a second and then a tenth a token."""
    return Simulated(name, ProviderConfig(faults=rules, **(PACE | fields)), loop)


@pytest.mark.parametrize("api", sorted(CLIENT_APIS))
@pytest.mark.parametrize("stream", [True, False])
def test_simulated_provider_answers_every_api(api: Api, stream: bool) -> None:
    """Streamed and whole; the provider counts one completed request."""
    async def main(loop: SimLoop) -> tuple[bytes, Simulated]:
        upstream = simulated(loop)
        rig = Rig(loop, upstreams=[upstream])
        return await read(await rig.serve(request(api, stream=stream and api.can_stream))), upstream

    body, upstream = run(main)
    assert body
    assert upstream.counts.outcomes == {"completed": 1}


def test_simulated_provider_first_token_is_on_time() -> None:
    """At one second, the end four gaps later; usage is known though the request does not have include_usage."""
    async def main(loop: SimLoop) -> tuple[float, float, str, Rig]:
        rig = Rig(loop, upstreams=[simulated(loop)])
        reply = await rig.serve(chat(max_tokens=5, ignore_eos=True))
        first_at = loop.now()
        body = await read(reply)
        assert b'"usage":{' not in body
        return first_at, loop.now(), text_of(body), rig

    first_at, ended_at, text, rig = run(main)
    assert first_at == pytest.approx(1.0)
    assert ended_at == pytest.approx(1.4)
    assert len(text.split()) == 5
    assert rig.n_in_flight == 0


@pytest.mark.parametrize(("kind", "fault"), [
    (FaultKind.REFUSED, Fault.CONNECT), (FaultKind.RESET, Fault.RESET), (FaultKind.STATUS, Fault.STATUS),
    (FaultKind.RESET_MID, Fault.RESET),
    (FaultKind.CUT, Fault.RESET), (FaultKind.TRUNCATED, Fault.TRUNCATED), (FaultKind.IN_BAND, Fault.IN_BAND),
    (FaultKind.MALFORMED, Fault.MALFORMED),
])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", [Api.CHAT, Api.RESPONSES, Api.MESSAGES])
def test_simulated_provider_faults_are_those_of_http(kind: FaultKind, fault: Fault, stream: bool, api: Api) -> None:
    """Each fault is the failure that the same bytes from a real provider would be."""
    async def main(loop: SimLoop) -> tuple[UpstreamFailed, Simulated]:
        upstream = simulated(loop, FaultRule(kind, after_chunks=0))
        rig = Rig(loop, upstreams=[upstream])
        with pytest.raises(UpstreamFailed) as caught:
            await read(await rig.serve(request(api, stream=stream)))
        assert rig.n_in_flight == 0
        return caught.value, upstream

    failed, upstream = run(main)
    if not stream and kind is FaultKind.TRUNCATED:
        assert failed.fault in (Fault.TRUNCATED, Fault.MALFORMED)  # half a JSON body that ends cleanly
    else:
        assert failed.fault is fault
    assert upstream.counts.n_running == 0


def test_simulated_provider_quota_refusal_has_retry_after() -> None:
    """The 429 reaches the gateway; the retry that waits for it succeeds."""
    async def main(loop: SimLoop) -> tuple[float, Simulated]:
        upstream = simulated(loop, quota=VendorQuota(requests_per_min=6, burst_s=10), ttft=Mixture(0.0))
        rig = Rig(loop, upstreams=[upstream], retry=RetryConfig(max_attempts=2, max_retry_after_s=20))
        await read(await rig.serve(chat(max_tokens=1, ignore_eos=True)))
        await read(await rig.serve(chat(max_tokens=1, ignore_eos=True)))
        return loop.now(), upstream

    ended_at, upstream = run(main)
    assert upstream.counts.outcomes == {"completed": 2, "status_429": 1}
    assert 10 <= ended_at <= 11


def test_simulated_provider_hang_ends_at_the_deadline() -> None:
    async def main(loop: SimLoop) -> tuple[float, Simulated]:
        upstream = simulated(loop, FaultRule(FaultKind.HANG))
        rig = Rig(loop, upstreams=[upstream])
        with pytest.raises(DeadlineExceeded):
            await rig.serve(chat(), total_s=2.0)
        return loop.now(), upstream

    ended_at, upstream = run(main)
    assert ended_at == pytest.approx(2.0)
    assert (upstream.counts.outcomes, upstream.counts.n_running) == ({"hang": 1}, 0)


@pytest.mark.parametrize("after_s", [0.5, 1.25])
@pytest.mark.parametrize("stream", [True, False])
def test_simulated_provider_stops_when_the_client_leaves(after_s: float, stream: bool) -> None:
    """Before the first token and in mid-answer: nothing is generated after it; tokens without a reader are counted."""
    async def main(loop: SimLoop) -> Simulated:
        upstream = simulated(loop)
        rig = Rig(loop, upstreams=[upstream])

        async def client() -> None:
            reply = await rig.serve(chat(stream=stream, max_tokens=100, ignore_eos=True))
            try:
                await read(reply)
            finally:
                reply.close()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(client())
            await asyncio.sleep(after_s)
            task.cancel()
        return upstream

    counts = run(main).counts
    assert counts.outcomes == {"cancelled": 1}
    assert counts.n_running == 0
    assert counts.n_tokens_after_hangup == 0
    assert counts.n_tokens_unread == pytest.approx(0 if after_s < 1 else 3, abs=1)


def test_simulated_provider_load_raises_latency() -> None:
    """With an engine, thirty requests at once take longer than one alone."""
    async def main(loop: SimLoop) -> list[float]:
        engine = EngineModel(prefill_tokens_per_s=2000, max_running=8)
        rig = Rig(loop, upstreams=[simulated(loop, engine=engine, ttft=Mixture(0.0))])

        async def took_s() -> float:
            began_at = loop.now()
            await read(await rig.serve(chat(max_tokens=20, ignore_eos=True)))
            return loop.now() - began_at

        alone_s = await took_s()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(took_s()) for _ in range(30)]
        return [alone_s, max(task.result() for task in tasks)]

    alone_s, crowded_s = run(main)
    assert crowded_s > 3 * alone_s
