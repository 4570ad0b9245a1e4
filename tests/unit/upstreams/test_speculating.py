"""upstreams.speculating: the chosen process answers, the plain one instead of a broken one, and each end is counted once."""

import asyncio
from random import Random

import pytest

from stayfast.core.deadline import Deadline
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import AnswerSummary, Api, Chunk, DecodeTimings, Request
from stayfast.policy.speculation.controller import ArmChoice, SpeculationController
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.speculating import SpeculatingUpstream
from tests.unit.http.client.fakes import SetClock


class FixedArm(SpeculationController):
    """Chooses one arm, and remembers the batch of each choice."""

    def __init__(self, arm: str) -> None:
        super().__init__(("off", "draft"), 8, Random(1))
        self.arm = arm
        self.batches: list[int] = []

    def choose(self, route: str, n_in_flight: int, max_output_tokens: int | None, now: float) -> ArmChoice:
        self.batches.append(n_in_flight)
        return super().choose(route, n_in_flight, max_output_tokens, now)._replace(arm=self.arm, why="proven")


class Answer:
    """A complete answer of 100 tokens in 2 s."""

    def __init__(self, *, is_complete: bool = True) -> None:
        self.summary = AnswerSummary()
        self.summary.is_complete = is_complete
        self.summary.decode = DecodeTimings(100, 2.0, 40, 30)
        self.n_closed = 0

    async def next(self) -> Chunk | None:
        return None

    def cut(self) -> Chunk | None:
        return None

    def close(self) -> None:
        self.n_closed += 1


class Process:
    """An engine process as an upstream, and as the engine's state."""

    kind, always_streams, address, slots, n_slots = "embedded", True, ("127.0.0.1", 1), None, None

    def __init__(self, name: str, *, is_ready: bool = True, failure: Exception | None = None,
                 is_complete: bool = True) -> None:
        self.name = name
        self.is_ready = is_ready
        self.failure = failure
        self.is_complete = is_complete
        self.answers: list[Answer] = []

    def can_serve(self, api: Api) -> bool:
        return api is not Api.EMBEDDINGS

    async def wait_ready(self, deadline: Deadline) -> bool:
        return self.is_ready

    async def open(self, call: Call) -> AnswerStream:
        if self.failure is not None:
            raise self.failure
        self.answers.append(Answer(is_complete=self.is_complete))
        return self.answers[-1]

    def close(self) -> None:
        """No connections."""


CRASHED = UpstreamFailed("tiny", Fault.CRASHED, "it crashed")


def upstream_of(plain: Process, draft: Process, controller: SpeculationController) -> SpeculatingUpstream:
    processes = {"off": plain, "draft": draft}
    return SpeculatingUpstream("tiny", processes, processes, controller, SetClock())


def call_of(api: Api = Api.CHAT, route: str = "r", notes: list[str] | None = None) -> Call:
    return Call(Request(api, "m", stream=True, body=b"{}"), "m", "req", Deadline(9.0), 1.0, route=route,
                note=notes.append if notes is not None else None)


def test_speculating_chosen_process_answers_and_is_counted() -> None:
    plain, draft, notes = Process("off"), Process("draft"), list[str]()
    upstream = upstream_of(plain, draft, FixedArm("draft"))
    stream = asyncio.run(upstream.open(call_of(notes=notes)))
    stream.close()
    stream.close()
    assert (len(plain.answers), len(draft.answers), draft.answers[0].n_closed) == (0, 1, 2)
    assert upstream.n_chosen == {("r", "draft", "proven"): 1}
    assert upstream.n_tokens == {("r", "draft"): 100}
    assert upstream.decode_s == {("r", "draft"): 2.0}
    assert (upstream.n_drafted["r", "draft"], upstream.n_accepted["r", "draft"]) == (40, 30)
    assert notes == ["speculation: draft (proven)"]


@pytest.mark.parametrize("draft", [Process("draft", is_ready=False), Process("draft", failure=CRASHED)])
def test_speculating_broken_process_plain_one_answers(draft: Process) -> None:
    """While it restarts, and when it has just crashed."""
    plain = Process("off")
    upstream = upstream_of(plain, draft, FixedArm("draft"))
    asyncio.run(upstream.open(call_of())).close()
    assert len(plain.answers) == 1
    assert upstream.n_chosen == {("r", "off", "unavailable"): 1}


@pytest.mark.parametrize("failure", [CRASHED, UpstreamFailed("tiny", Fault.STATUS, "full", upstream_status=503)])
def test_speculating_failed_call_leaves_no_batch(failure: Exception) -> None:
    """A plain process that fails, fails the call; and what failed is no longer in flight."""
    controller = FixedArm("off")
    upstream = upstream_of(Process("off", failure=failure), Process("draft"), controller)
    for _ in range(3):
        with pytest.raises(UpstreamFailed):
            asyncio.run(upstream.open(call_of()))
    assert controller.batches == [1, 1, 1]
    assert not upstream.n_chosen


def test_speculating_batch_counts_open_answers() -> None:
    async def main() -> None:
        controller = FixedArm("off")
        upstream = upstream_of(Process("off"), Process("draft"), controller)
        streams = [await upstream.open(call_of()) for _ in range(3)]
        streams[0].close()
        streams[0].close()
        await upstream.open(call_of())
        assert controller.batches == [1, 2, 3, 3]

    asyncio.run(main())


def test_speculating_incomplete_answer_teaches_nothing() -> None:
    upstream = upstream_of(Process("off"), Process("draft", is_complete=False), FixedArm("draft"))
    asyncio.run(upstream.open(call_of())).close()
    assert not upstream.n_tokens


@pytest.mark.parametrize("call", [call_of(Api.COUNT_TOKENS), call_of(route="")])
def test_speculating_other_requests_go_to_the_plain_process(call: Call) -> None:
    """Token counts, and the gateway's own probes."""
    plain = Process("off")
    upstream = upstream_of(plain, Process("draft"), FixedArm("draft"))
    asyncio.run(upstream.open(call)).close()
    assert len(plain.answers) == 1
    assert not upstream.n_chosen
