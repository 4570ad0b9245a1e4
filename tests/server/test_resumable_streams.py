"""Streams of a resumable route over a real socket: live events, reconnects at another gateway, never a second generation."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

import pytest
import uvloop

from stayfast.core.errors import Fault, Shed, UpstreamFailed
from stayfast.core.jobs import JobEvent, JobState, NewJob, Submitted
from stayfast.jobs.config import JobsConfig
from stayfast.stores.base import StoreUnavailable
from tests.server.fakes import FakeGateway, Step, eventually, get, post
from tests.server.keys import ADMIN, KEY
from tests.server.memory_jobs import MemoryJobs, serving_jobs, submit

pytestmark = pytest.mark.sockets
MINE, OTHER, CLOSE = f"authorization: Bearer {KEY}", f"authorization: Bearer {ADMIN}", "connection: close"
STREAM = b'{"model":"r","messages":[{"role":"user","content":"hi"}],"stream":true}'
PLAIN = STREAM.replace(b'"r"', b'"m"')
CHUNK = (b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"r","choices":[{"index":0,'
         b'"delta":{"content":"%d "},"finish_reason":%b}]}\n\n')
BLOCKS = [*(CHUNK % (n, b'"stop"' if n == 4 else b"null") for n in range(5)), b"data: [DONE]\n\n"]


def until(event: asyncio.Event) -> Callable[[], Awaitable[None]]:
    """A step that waits for an event."""

    async def wait() -> None:
        await event.wait()

    return wait


def generate(*steps: Step) -> FakeGateway:
    """A gateway that answers every request with these steps."""
    return FakeGateway(lambda request: steps or BLOCKS)


def ask(body: bytes = STREAM, *lines: str) -> bytes:
    """A streaming request of this client."""
    return post(body, "/v1/chat/completions", MINE, CLOSE, *lines)


def body_of(answer: bytes) -> bytes:
    """The body of an answer in chunks."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[:int(size, 16)], rest[int(size, 16) + 2:]
    return body


def whole(first: int = 0) -> bytes:
    """The stream's bytes from event number `first` on."""
    return b"".join(b"id: 1-%d\n%b" % (n, block) for n, block in enumerate(BLOCKS) if n >= first)


def test_live_stream_has_ids_and_is_stored_with_its_result() -> None:
    """The job's address is in the head; its result is the whole answer."""

    async def main() -> None:
        async with serving_jobs(gateway=generate()) as (running, store):
            client = await running.connect()
            answer = await running.ask(ask())
            assert body_of(answer) == whole()
            (job_id,) = store.jobs
            assert f"x-stayfast-job: {job_id}".encode() in answer
            assert b"x-stayfast-upstream: fake" in answer
            await eventually(lambda: store.jobs[job_id].state is JobState.COMPLETED)
            client.send(get(f"/v1/jobs/{job_id}/result", MINE))
            content = json.loads((await client.answer())[2])["choices"][0]["message"]["content"]
            assert content == "0 1 2 3 4 "

    uvloop.run(main())


def test_reconnect_at_another_gateway_goes_on_after_every_event() -> None:
    """By the request's id or the job's, during the generation and after it; the upstream is called once."""

    async def main() -> None:
        go_on = asyncio.Event()
        store, gateway = MemoryJobs(), generate(*BLOCKS[:3], until(go_on), *BLOCKS[3:])
        async with (serving_jobs(gateway=gateway, store=store) as (first, _), serving_jobs(store=store) as (second, _)):
            client = await first.connect()
            client.send(ask(STREAM, "x-request-id: mine"))
            await client.until(b"id: 1-2\n")
            client.reset()
            (job_id,) = store.jobs
            early = await second.connect()
            early.send(ask(STREAM, "x-request-id: mine", "last-event-id: 1-0"))
            await early.until(b"id: 1-2\n")
            go_on.set()
            assert (await early.rest()).count(b"id: ") == 3
            for last in range(len(BLOCKS)):
                for named in ("x-request-id: mine", f"x-stayfast-job: {job_id}"):
                    answer = await second.ask(ask(STREAM, named, f"last-event-id: 1-{last}"))
                    assert body_of(answer) == whole(last + 1)
            assert body_of(await second.ask(ask(STREAM, "x-request-id: mine"))) == whole()
            assert len(gateway.seen) == 1
            assert not second.backend.gateway.seen

    uvloop.run(main())


def test_reconnect_after_an_event_that_was_lost_gets_the_next_epoch() -> None:
    """The client had events 3 and 4 of epoch 1, which the store never got; epoch 2 begins at number 3 with a reset."""

    async def main() -> None:
        async with serving_jobs(gateway=generate(*BLOCKS[:3], until(asyncio.Event()))) as (running, store):
            client = await running.connect()
            client.send(ask(STREAM, "x-request-id: mine"))
            await client.until(b"id: 1-2\n")
            (job_id,) = store.jobs
            await eventually(lambda: len(store.stored_events.get(job_id, ())) == 3)
            await store.play(job_id, [b"event: reset\ndata: {}\n\n", *BLOCKS], b"{}", epoch=2)
            for last in range(6):
                answer = body_of(await running.ask(ask(STREAM, "x-request-id: mine", f"last-event-id: 1-{last}")))
                assert answer.count(b"event: reset") == 1
                assert answer.startswith(b"id: 1-%d\n" % (last + 1) if last < 2 else b"id: 2-3\nevent: reset")
            answer = body_of(await running.ask(ask(STREAM, "x-request-id: mine", "last-event-id: 2-4")))
            assert answer.startswith(b"id: 2-5\n")

    uvloop.run(main())


def test_reader_that_waits_for_a_lost_event_gets_the_next_epoch_from_its_start() -> None:
    """It comes back before another worker has the job: events of epoch 2 with smaller numbers are not skipped."""

    async def main() -> None:
        gateway = generate(*BLOCKS[:3], until(asyncio.Event()))
        async with serving_jobs(gateway=gateway) as (running, store):
            client, reader = await running.connect(), await running.connect()
            client.send(ask(STREAM, "x-request-id: mine"))
            await client.until(b"id: 1-2\n")
            (job_id,) = store.jobs
            await eventually(lambda: len(store.stored_events.get(job_id, ())) == 3)
            reader.send(ask(STREAM, "x-request-id: mine", "last-event-id: 1-4"))
            await eventually(lambda: len(running.server.app.tasks) == 2)
            await asyncio.sleep(0.05)
            await store.play(job_id, [b"event: reset\ndata: {}\n\n", *BLOCKS], b"{}", epoch=2)
            assert body_of(await reader.rest()).startswith(b"id: 2-3\nevent: reset")

    uvloop.run(main())


@pytest.mark.parametrize(("body", "lines", "status", "code"), [
    (PLAIN, ("x-request-id: mine", "last-event-id: 4"), 410, "not_resumable"),
    (STREAM, ("x-request-id: mine", "last-event-id: 1-4"), 410, "stream_gone"),
    (STREAM, ("x-stayfast-job: job_none",), 410, "stream_gone"),
    (STREAM, ("last-event-id: 1-4",), 410, "stream_gone"),
])
def test_reconnect_without_a_stored_stream_generates_nothing(body: bytes, lines: Sequence[str], status: int, code: str
                                                             ) -> None:
    """A clear error instead of another answer; the hint says how to get one."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            answer = await running.ask(ask(body, *lines))
            assert int(answer.split(b" ")[1]) == status
            error = json.loads(body_of(answer))["error"]
            assert error["code"] == code
            assert "without last-event-id" in error["message"]
            assert not running.backend.gateway.seen
            assert not store.jobs

    uvloop.run(main())


def test_reconnect_of_another_key_or_body_is_refused() -> None:
    """Another key's stream is gone for this one; another body under the same id is a conflict."""

    async def main() -> None:
        async with serving_jobs(gateway=generate()) as (running, store):
            await running.ask(ask(STREAM, "x-request-id: mine"))
            (job_id,) = store.jobs
            await eventually(lambda: store.jobs[job_id].state.is_final)
            answer = await running.ask(post(STREAM, "/v1/chat/completions", OTHER, CLOSE, f"x-stayfast-job: {job_id}"))
            assert b" 410 " in answer
            other = STREAM.replace(b"hi", b"ho")
            assert b"stream_conflict" in await running.ask(ask(other, "x-request-id: mine", "last-event-id: 1-1"))
            assert body_of(await running.ask(ask(other, "x-request-id: mine"))) == whole()
            assert len(store.jobs) == len(running.backend.gateway.seen) == 2

    uvloop.run(main())


def test_gone_part_of_a_stream_is_410_with_the_address_of_the_result() -> None:
    """Never a second generation."""

    async def main() -> None:
        async with serving_jobs(gateway=generate()) as (running, store):
            await running.ask(ask(STREAM, "x-request-id: mine"))
            (job_id,) = store.jobs
            await eventually(lambda: store.jobs[job_id].state.is_final)
            store.first_n = 4
            answer = await running.ask(ask(STREAM, "x-request-id: mine", "last-event-id: 1-1"))
            assert b" 410 " in answer
            assert f"/v1/jobs/{job_id}".encode() in body_of(answer)
            assert len(running.backend.gateway.seen) == 1

    uvloop.run(main())


def test_generation_goes_on_without_its_client_until_it_is_cancelled() -> None:
    """A disconnect ends nothing; a cancellation of the job closes the upstream and is the stream's last event."""

    async def main() -> None:
        gateway = generate(*BLOCKS[:2], until(asyncio.Event()))
        async with serving_jobs(gateway=gateway) as (running, store):
            client, admin = await running.connect(), await running.connect()
            client.send(ask())
            await client.until(b"id: 1-1\n")
            client.reset()
            await eventually(lambda: len(running.server.app.tasks) == 0)
            (job_id,) = store.jobs
            await eventually(lambda: len(store.stored_events.get(job_id, ())) == 2)
            assert [reply.is_closed for reply in gateway.replies] == [False]
            admin.send(get(f"/v1/jobs/{job_id}/cancel", MINE, "content-length: 0", method="POST"))
            await admin.answer()
            await eventually(lambda: store.jobs[job_id].state is JobState.CANCELLED)
            assert [reply.is_closed for reply in gateway.replies] == [True]
            events = store.stored_events[job_id]
            assert events[-1].is_last
            assert b"cancelled" in events[-1].data

    uvloop.run(main())


def test_failure_before_the_first_token_is_an_ordinary_error() -> None:
    """With its status; the job has failed, and a later failure is the stream's last event."""

    async def main() -> None:
        failure = UpstreamFailed("up", Fault.RESET, "the upstream broke off")

        async def refuse(request: object) -> None:
            raise Shed("Full.", retry_after_s=3)

        async with serving_jobs(gateway=FakeGateway(before=refuse)) as (running, store):
            answer = await running.ask(ask())
            assert b" 503 " in answer
            assert b"retry-after: 3" in answer
            await eventually(lambda: [job.state for job in store.jobs.values()] == [JobState.FAILED])
        async with serving_jobs(gateway=generate(BLOCKS[0], failure)) as (running, store):
            answer = await running.ask(ask())
            assert b"id: 1-1\ndata: {" in answer
            assert not answer.endswith(b"0\r\n\r\n")
            await eventually(lambda: [job.state for job in store.jobs.values()] == [JobState.FAILED])
            assert next(iter(store.stored_events.values()))[-1].is_last

    uvloop.run(main())


def test_live_stream_of_a_key_with_too_many_jobs_is_stored() -> None:
    """It is served, so its job exists; nothing is reported as unexpected; it counts, so a further job is refused."""

    async def main() -> None:
        go_on = asyncio.Event()
        gateway = generate(*BLOCKS[:3], until(go_on), *BLOCKS[3:])
        async with serving_jobs(JobsConfig(max_queued=1), gateway) as (running, store):
            client = await running.connect()
            assert (await submit(client))[0] == 202
            reader = await running.connect()
            reader.send(ask(STREAM, "x-request-id: mine"))
            head = await reader.until(b"id: 1-2\n")
            await eventually(lambda: len(store.jobs) == 2)
            job_id = list(store.jobs)[1]
            assert f"x-stayfast-job: {job_id}".encode() in head
            assert (await submit(client))[0] == 429
            go_on.set()
            await reader.rest()
            await eventually(lambda: store.jobs[job_id].state is JobState.COMPLETED)
            assert not running.errors

    uvloop.run(main())


class HeldStore(MemoryJobs):
    """A store whose disk does not answer, or which is down."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = asyncio.Event()

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        await self.is_free.wait()
        return await super().submit(jobs)

    async def append_events(self, job_id: str, token: int, events: Sequence[JobEvent]) -> bool:
        await self.is_free.wait()
        return await super().append_events(job_id, token, events)


def test_live_stream_does_not_wait_for_the_store() -> None:
    """The client has the whole answer before the store has its first event."""

    async def main() -> None:
        store = HeldStore()
        async with serving_jobs(gateway=generate(), store=store) as (running, _):
            assert body_of(await running.ask(ask())) == whole()
            assert not store.jobs
            store.is_free.set()
            await eventually(lambda: [job.state for job in store.jobs.values()] == [JobState.COMPLETED])
            assert [len(events) for events in store.stored_events.values()] == [len(BLOCKS)]

    uvloop.run(main())


class DownStore(MemoryJobs):
    """A store that is unavailable."""

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        raise StoreUnavailable("no disk")


def test_live_stream_without_store_is_an_ordinary_stream() -> None:
    """The client gets its answer; a reconnect is told that nothing is stored."""

    async def main() -> None:
        async with serving_jobs(gateway=generate(), store=DownStore()) as (running, _):
            assert body_of(await running.ask(ask())) == whole()
            assert b"stream_gone" in await running.ask(ask(STREAM, "x-request-id: mine", "last-event-id: 1-1"))
            running.errors.clear()

    uvloop.run(main())


def test_same_request_twice_at_once_is_generated_once() -> None:
    """Also before the first one is stored. Another body under the same id is another stream."""

    async def main() -> None:
        go_on = asyncio.Event()
        async with serving_jobs(gateway=generate(*BLOCKS[:2], until(go_on), *BLOCKS[2:]), store=SlowStore()) as (running, _):
            clients = [await running.connect() for _ in range(3)]
            for client in clients[:2]:
                client.send(ask(STREAM, "x-request-id: mine"))
                await client.until(b"id: 1-1\n")
            clients[2].send(ask(STREAM.replace(b"hi", b"ho"), "x-request-id: mine"))
            await clients[2].until(b"id: 1-1\n")
            assert len(running.backend.gateway.seen) == 2
            go_on.set()
            for client in clients:
                assert (await client.rest()).count(b"id: ") == len(BLOCKS) - 2

    uvloop.run(main())


class SlowStore(MemoryJobs):
    """A store that takes a while to accept a job."""

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        await asyncio.sleep(0.5)
        return await super().submit(jobs)


def test_stream_that_another_gateway_stored_first_is_not_mixed_with_it() -> None:
    """The client gets its own stream; the stored one stays as it is."""

    async def main() -> None:
        async with serving_jobs(gateway=generate(), store=OtherGatewaysStore()) as (running, store):
            assert body_of(await running.ask(ask(STREAM, "x-request-id: mine"))) == whole()
            await asyncio.sleep(0.2)
            assert not any(store.stored_events.values())
            assert not store.results

    uvloop.run(main())


class OtherGatewaysStore(MemoryJobs):
    """A store that got each job from another gateway a moment before."""

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return [Submitted(one.job, is_new=False) for one in await super().submit(jobs)]
