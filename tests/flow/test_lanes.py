"""Lanes in the gateway: short prompts do not wait for long ones, waits are told, and nothing is left behind."""

import asyncio
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Shed, StayfastError
from stayfast.core.events import RequestDone
from stayfast.core.types import Request
from stayfast.pipeline.admission.controller import QueueOutlook
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.policy.admission.lanes import LanesConfig
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.admission.queue import QueueConfig
from stayfast.policy.resilience.ttft import TtftPredictor
from stayfast.testing import SendText, SimLoop, Wait, run
from tests.flow.admission_rig import AdmissionRig
from tests.flow.rig import Rig, chat

QUEUE = QueueConfig(max_wait_s=30, target_wait_s=30)
LANES = LanesConfig(long_input_tokens=1000, max_prefills=1)
N_LONG = 5000  # bytes


def long() -> Request:
    """A prompt of more than a thousand tokens."""
    return chat(messages=[{"role": "user", "content": "x" * N_LONG}])


class LanesRig(AdmissionRig):
    """Eight places: five short, two long, one batch. Answers take two times half a second."""

    def __init__(self, loop: SimLoop, lanes: LanesConfig = LANES) -> None:
        super().__init__(loop)
        self.admission = Admission(AdmissionConfig(8, QUEUE, reserved_share=0.0, lanes=lanes), {}, loop, Random(3))
        self.gateway_rig = Rig(loop, [[Wait(0.5), SendText("hello"), Wait(0.5), SendText("world")]], admit=self.admission)

    def assert_empty(self) -> None:
        """Neither in the lanes."""
        assert (self.admission.places.n_taken, self.gateway_rig.n_in_flight, self.gateway_rig.n_open) == (0, 0, 0)
        assert self.admission.places.lanes is not None
        lanes = self.admission.places.lanes.all
        assert [(lane.n_running, lane.n_prefilling, lane.queue.n) for lane in lanes] == [(0, 0, 0)] * 3


def test_lanes_rig_long_request_is_long() -> None:
    assert len(long().body) > N_LONG


def test_lanes_short_requests_do_not_wait_for_long_ones() -> None:
    """Four long prompts are read one after another, each to its first token; short requests go on at once."""
    async def main(loop: SimLoop) -> None:
        rig = LanesRig(loop)
        asking = [asyncio.ensure_future(rig.outcome(request=long())) for _ in range(4)]
        await asyncio.sleep(0)
        assert await asyncio.gather(*[rig.outcome() for _ in range(5)]) == ["1"] * 5
        assert await asyncio.gather(*asking) == ["1", "1.5", "2", "2.5"]
        rig.assert_empty()
        notes = [fact.notes for fact in rig.gateway_rig.sink.facts_of(RequestDone) if fact.notes]
        assert notes[0] == ("queued 500 ms in lane long, band realtime: 1 of 8 places were taken, 0 others waiting",)

    run(main)


def test_lanes_queue_depths_are_by_lane_and_band() -> None:
    async def main(loop: SimLoop) -> None:
        rig = LanesRig(loop)
        asking = [asyncio.ensure_future(rig.outcome(request=long())) for _ in range(3)]
        asking.append(asyncio.ensure_future(rig.outcome(urgency=Urgency.BATCH)))
        await asyncio.sleep(0.1)
        assert {name: n for name, n in rig.admission.places.queue_depths() if n} == {"long/realtime": 2, "batch/batch": 1}
        await asyncio.gather(*asking)
        rig.assert_empty()

    run(main)


def test_lanes_long_wait_limit_is_separate() -> None:
    async def main(loop: SimLoop) -> None:
        rig = LanesRig(loop, replace(LANES, long_wait_s=0.7))
        asking = [asyncio.ensure_future(rig.outcome(request=long())) for _ in range(3)]
        assert await asyncio.gather(*asking) == ["1", "1.5", "503 queue_timeout at 0.7"]
        rig.assert_empty()

    run(main)


def test_lanes_reload_keeps_waiting_requests() -> None:
    """A reload removes the lanes, another one restores them."""
    async def main(loop: SimLoop) -> None:
        rig = LanesRig(loop)
        config = AdmissionConfig(8, QUEUE, reserved_share=0.0, lanes=LANES)
        asking = [asyncio.ensure_future(rig.outcome(request=long())) for _ in range(3)]
        await asyncio.sleep(0.1)
        rig.admission.configure(replace(config, max_in_flight=3, lanes=None), {})
        assert (rig.admission.places.n_waiting, rig.admission.places.queue.n) == (2, 2)
        asking += [asyncio.ensure_future(rig.outcome()) for _ in range(3)]
        await asyncio.sleep(0.1)
        rig.admission.configure(config, {})
        await asyncio.gather(*asking)
        await asyncio.gather(*[rig.outcome(request=long()) for _ in range(3)])
        rig.assert_empty()

    run(main)


def test_lanes_wait_without_time_for_a_long_prompt_is_refused() -> None:
    """First tokens are predicted: a long prompt is refused at once, a short one is not."""
    async def main(loop: SimLoop) -> None:
        predictor = TtftPredictor()
        outlook = QueueOutlook(lambda request: predictor.predict_s(request.n_input))
        rig = AdmissionRig(loop, 1, max_wait_s=30, target_wait_s=30, outlook=outlook)
        for n in range(40):
            n_tokens = 100 + n * 100
            predictor.start_call(n_tokens).record_first_token(n_tokens * 1e-3, None)
        await rig.request()
        first = asyncio.ensure_future(rig.outcome())
        await asyncio.sleep(0)
        with pytest.raises(Shed) as shed:
            await rig.request(request=long(), total_s=2.0)  # 1 s for the place, 1.2 s for the prompt
        assert shed.value.reason == "predicted_wait"
        assert await rig.outcome(total_s=2.5) == "3"
        assert await first == "2"
        rig.assert_empty()

    run(main)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(("short", "long", "batch")), st.floats(0, 3), st.floats(0, 4)), max_size=25),
       st.booleans())
def test_lanes_random_clients_leave_nothing_held(asks: list[tuple[str, float, float]], apart: bool) -> None:
    async def main(loop: SimLoop) -> None:
        rig = LanesRig(loop, replace(LANES, isolate_short=apart))

        async def one(kind: str, comes_at: float, leaves_after: float) -> None:
            await asyncio.sleep(comes_at)
            try:
                async with asyncio.timeout(leaves_after + 0.01):
                    await rig.request(request=long() if kind == "long" else None,
                                 urgency=Urgency.BATCH if kind == "batch" else None)
            except (StayfastError, TimeoutError):
                pass

        await asyncio.gather(*[one(*ask) for ask in asks])
        rig.assert_empty()

    run(main)
