"""Samples of ended requests: shapes of prompts, and rate-limit headers of upstreams."""

import asyncio
from itertools import pairwise

import msgspec
import pytest

from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.samples import PromptSampled, QuotaReported
from stayfast.lab.simulated import ProviderConfig, Simulated, VendorQuota
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.request_sampler import HEADERS_EVERY_S, PROMPT_EVERY_S
from stayfast.testing import Script, SendText, SimLoop, Wait, run
from tests.flow.rig import Rig, chat, read

ANSWER: Script = [Wait(0.2), SendText("a"), Wait(0.1), SendText("b")]
SECRET = "Xylophone"


def test_sampler_many_requests_at_most_two_prompts_a_second() -> None:
    async def main(loop: SimLoop) -> list[float]:
        rig = Rig(loop, [ANSWER])
        for _ in range(40):
            await read(await rig.serve())
            await asyncio.sleep(0.1 - 0.3 % 0.1)
        return [sample.at for sample in rig.sink.facts_of(PromptSampled)]

    instants = run(main)
    assert len(instants) > 10
    assert all(later - before >= PROMPT_EVERY_S - 1e-9 for before, later in pairwise(instants))


def test_sampler_streamed_request_has_its_times_and_no_text() -> None:
    async def main(loop: SimLoop) -> PromptSampled:
        rig = Rig(loop, [ANSWER])
        await read(await rig.serve(chat(max_tokens=7, logit_bias={"5": 1}, messages=[
            {"role": "system", "content": SECRET * 100}, {"role": "user", "content": SECRET}])))
        (sample,) = rig.sink.facts_of(PromptSampled)
        return sample

    sample = run(main)
    assert (sample.ttft_s, sample.e2e_s) == pytest.approx((0.2, 0.3))
    assert (sample.n_running, sample.max_tokens, sample.n_messages, sample.shared_prefix_ratio) == (1, 7, 1, None)
    assert sample.bias_digest is not None
    assert 0.9 < sample.system_tokens / sample.input_tokens < 1
    assert sample.retrieved_tokens == 0
    assert SECRET.encode() not in msgspec.json.encode(sample)


def test_sampler_long_last_message_counts_as_retrieved() -> None:
    async def main(loop: SimLoop) -> PromptSampled:
        rig = Rig(loop, upstreams=[Simulated("sim", ProviderConfig(), loop)])
        await read(await rig.serve(chat(max_tokens=2, messages=[{"role": "user", "content": "context " * 1000}])))
        (sample,) = rig.sink.facts_of(PromptSampled)
        return sample

    sample = run(main)
    assert sample.input_tokens > 1000
    assert sample.retrieved_tokens == pytest.approx(sample.input_tokens, rel=0.05)


def test_sampler_same_prompt_again_shares_its_beginning() -> None:
    async def main(loop: SimLoop) -> list[float | None]:
        rig = Rig(loop, [ANSWER])
        for text in ("long " * 200, "long " * 200, "other " * 200):
            await read(await rig.serve(chat(messages=[{"role": "user", "content": text}])))
            await asyncio.sleep(1)
        return [sample.shared_prefix_ratio for sample in rig.sink.facts_of(PromptSampled)]

    assert run(main) == [None, 1.0, 0.0]


def test_sampler_headers_of_limits_are_reported_once_a_second() -> None:
    async def main(loop: SimLoop) -> list[QuotaReported]:
        upstream = Simulated("sim", ProviderConfig(quota=VendorQuota(requests_per_min=6000)), loop)
        rig = Rig(loop, upstreams=[upstream])
        for _ in range(20):
            await read(await rig.serve(chat(max_tokens=2, ignore_eos=True)))
        return rig.sink.facts_of(QuotaReported)

    reports = run(main)
    assert reports
    assert all(later.at - before.at >= HEADERS_EVERY_S for before, later in pairwise(reports))
    assert all(report.upstream == "sim" and 0.5 < report.left["requests"] < 1 for report in reports)


def test_request_done_sdk_retry_is_marked() -> None:
    async def main(loop: SimLoop) -> list[bool]:
        rig = Rig(loop, [ANSWER])
        for count in ("0", "2"):
            await read(await rig.gateway.serve(chat(), Arrival("r", loop.now(), None,
                                                               (("x-stainless-retry-count", count),))))
        return [done.is_client_retry for done in rig.sink.facts_of(RequestDone)]

    assert run(main) == [False, True]


def test_attempt_done_states_its_content_and_the_calls_that_ran() -> None:
    async def main(loop: SimLoop) -> list[AttemptDone]:
        rig = Rig(loop, [ANSWER])
        first, second = await rig.serve(), asyncio.create_task(rig.serve())
        await read(await second)
        await read(first)
        return rig.sink.facts_of(AttemptDone)

    attempts = run(main)
    assert sorted(one.n_running for one in attempts) == [1, 2]
    assert all(one.n_content == 2 for one in attempts)
    assert attempts[0].last_s == pytest.approx(0.3)
