"""Background responses over a real socket: create, poll, stream, resume at every event, cancel, delete, continue."""

import asyncio
import json
from typing import Any

import pytest
import uvloop

from stayfast.core.jobs import JobState
from tests.server.fakes import ANSWER, Client, FakeGateway, get, post
from tests.server.keys import ADMIN, KEY
from tests.server.memory_jobs import serving_jobs

pytestmark = pytest.mark.sockets
MINE, OTHER = f"authorization: Bearer {KEY}", f"authorization: Bearer {ADMIN}"
REQUEST = {"model": "m", "input": "hi", "background": True}
RESPONSE: dict[str, Any] = {
    "id": "resp_upstream", "object": "response", "created_at": 5, "status": "completed", "model": "m", "tools": [],
    "parallel_tool_calls": True, "tool_choice": "auto",
    "output": [{"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "hello", "annotations": []}]}]}


def blocks() -> list[bytes]:
    """The stored events of one stream."""
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": RESPONSE | {"status": "in_progress", "output": []}},
        *({"type": "response.output_text.delta", "delta": text, "item_id": "msg_1", "output_index": 0, "content_index": 0,
           "logprobs": []} for text in ("he", "llo")),
        {"type": "response.completed", "response": RESPONSE}]
    return [f"event: {event['type']}\ndata: {json.dumps(event | {'sequence_number': n})}\n\n".encode()
            for n, event in enumerate(events)]


async def create(client: Client, **fields: object) -> tuple[int, dict[str, str], Any]:
    """Create a background response."""
    client.send(post(json.dumps(REQUEST | fields).encode(), "/v1/responses", MINE))
    status, headers, body = await client.answer()
    return status, headers, json.loads(body)


async def fetch(client: Client, path: str, *, method: str = "GET", key: str = MINE) -> tuple[int, Any]:
    """One request without a body."""
    client.send(get(f"/v1/responses/{path}", key, "content-length: 0", method=method))
    status, _, body = await client.answer()
    return status, json.loads(body)


def parse_events(body: bytes) -> list[Any]:
    """The events of a whole stream, without chunk sizes."""
    return [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: ")]


def test_background_response_is_queued_then_completed() -> None:
    """The object at once, without a call of the upstream; later the answer under our id."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client = await running.connect()
            status, headers, created = await create(client)
            assert (status, created["status"], created["id"][:7]) == (200, "queued", "resp_sf")
            assert headers["retry-after"] == "3"
            assert not running.backend.gateway.seen
            assert "background" not in json.loads(store.new[created["id"]].body)
            assert store.new[created["id"]].keep_s == 600
            store.change(created["id"], state=JobState.RUNNING)
            assert (await fetch(client, created["id"]))[1]["status"] == "in_progress"
            await store.play(created["id"], [], json.dumps(RESPONSE).encode())
            status, done = await fetch(client, created["id"])
            assert (status, done["status"], done["id"], done["output"]) == (
                200, "completed", created["id"], RESPONSE["output"])
            _, _, stored = await create(client, store=True)
            assert store.new[stored["id"]].keep_s == 86_400

    uvloop.run(main())


def test_background_stream_resumes_after_every_event() -> None:
    """The first client reads it live; a reader after N gets the events from N + 1, and nothing after the last."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            reader, client = await running.connect(), await running.connect()
            reader.send(post(json.dumps(REQUEST | {"stream": True}).encode(), "/v1/responses", MINE, "connection: close"))
            await reader.until(b"response.queued")
            response_id = next(iter(store.jobs))
            await store.play(response_id, blocks()[:2])
            await reader.until(b'"delta":"he"')
            await store.play(response_id, blocks()[2:], json.dumps(RESPONSE).encode())
            assert parse_events(await reader.rest())[-1]["response"]["id"] == response_id
            for after in range(-1, 6):
                client = await running.connect()
                path = f"/v1/responses/{response_id}?stream=true&starting_after={after}"
                client.send(get(path, MINE, "connection: close"))
                events = parse_events(await client.rest())
                assert [event["sequence_number"] for event in events] == list(range(after + 1, 6))

    uvloop.run(main())


def test_stream_of_a_response_created_without_stream_is_refused() -> None:
    """400, as OpenAI; as is a malformed position."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client = await running.connect()
            plain = (await create(client))[2]["id"]
            status, error = await fetch(client, f"{plain}?stream=true")
            assert (status, error["error"]["code"]) == (400, "response_not_streamed")
            store.change(plain, is_stream=True)
            assert (await fetch(client, f"{plain}?stream=true&starting_after=x"))[0] == 400

    uvloop.run(main())


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.EXPIRED, JobState.DEAD])
def test_stream_of_a_response_without_answer_ends_with_its_state(state: JobState) -> None:
    """No silence without end, and the object has the reason."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            reader = await running.connect()
            reader.send(post(json.dumps(REQUEST | {"stream": True}).encode(), "/v1/responses", MINE, "connection: close"))
            await reader.until(b"response.queued")
            store.change(next(iter(store.jobs)), state=state)
            last = parse_events(await reader.rest())[-1]
            assert last["type"] == "response.failed"
            assert last["response"]["status"] == ("cancelled" if state is JobState.CANCELLED else "failed")

    uvloop.run(main())


def test_cancel_is_idempotent_and_delete_removes() -> None:
    """A queued response is cancelled at once; the second cancel returns the same object; a deleted one is a 404."""

    async def main() -> None:
        async with serving_jobs() as (running, _):
            client = await running.connect()
            response_id = (await create(client))[2]["id"]
            for _ in range(2):
                status, cancelled = await fetch(client, f"{response_id}/cancel", method="POST")
                assert (status, cancelled["status"], cancelled["id"]) == (200, "cancelled", response_id)
            assert (await fetch(client, response_id, method="DELETE"))[1]["deleted"] is True
            status, error = await fetch(client, response_id)
            assert (status, error["error"]["type"]) == (404, "invalid_request_error")

    uvloop.run(main())


def test_another_keys_response_is_unknown() -> None:
    """Also as a previous response; so is a job that is no response."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client = await running.connect()
            response_id = (await create(client))[2]["id"]
            await store.play(response_id, [], json.dumps(RESPONSE).encode())
            for path, method in (("", "GET"), ("", "DELETE"), ("/cancel", "POST")):
                assert (await fetch(client, response_id + path, method=method, key=OTHER))[0] == 404
            client.send(post(json.dumps(REQUEST | {"previous_response_id": response_id}).encode(), "/v1/responses", OTHER))
            status, _, error = await client.answer()
            assert (status, json.loads(error)["error"]["code"]) == (400, "previous_response_not_found")

    uvloop.run(main())


@pytest.mark.parametrize("is_background", [False, True])
def test_previous_response_of_ours_is_sent_as_conversation(*, is_background: bool) -> None:
    """In the foreground and in the background; one without an answer is refused."""

    async def main() -> None:
        gateway = FakeGateway(lambda request: [ANSWER])
        async with serving_jobs(gateway=gateway) as (running, store):
            client = await running.connect()
            first = (await create(client))[2]["id"]
            continued = {"input": "more", "previous_response_id": first, "background": is_background}
            status, _, error = await create(client, **continued)
            assert (status, error["error"]["code"]) == (400, "previous_response_not_completed")
            await store.play(first, [], json.dumps(RESPONSE).encode())
            _, _, answer = await create(client, **continued)
            body = json.loads(store.new[answer["id"]].body if is_background else gateway.seen[0][0].body)
            assert [item["content"] for item in body["input"]] == [
                "hi", RESPONSE["output"][0]["content"], "more"]
            assert "previous_response_id" not in body

    uvloop.run(main())


def test_job_may_continue_a_response() -> None:
    """With its conversation in place of the id, as every other door does; an unknown one is refused."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client = await running.connect()
            first = (await create(client))[2]["id"]
            await store.play(first, [], json.dumps(RESPONSE).encode())
            for previous, status in ((first, 202), ("resp_sfunknown", 400)):
                body = {"model": "m", "input": "more", "previous_response_id": previous}
                client.send(post(json.dumps({"endpoint": "/v1/responses", "body": body}).encode(), "/v1/jobs", MINE))
                got, _, answer = await client.answer()
                assert got == status
                if got == 202:
                    stored = json.loads(store.new[json.loads(answer)["id"]].body)
                    assert [item["content"] for item in stored["input"]][-1] == "more"
                    assert "previous_response_id" not in stored

    uvloop.run(main())


async def respond_later(client: Client, prefer: str, *lines: str, body: bytes = b"") -> tuple[int, dict[str, str], Any]:
    """A chat request with a preference."""
    client.send(post(body or b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', "/v1/chat/completions", MINE,
                     f"prefer: {prefer}", *lines))
    status, headers, answer = await client.answer()
    return status, headers, json.loads(answer)


def test_prefer_respond_async_answers_202_with_location() -> None:
    """Only to a client that wants it; other preferences change nothing."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client = await running.connect()
            status, headers, job = await respond_later(client, "respond-async")
            assert (status, headers["location"]) == (202, f"/v1/jobs/{job['id']}")
            assert (headers["preference-applied"], "retry-after" in headers) == ("respond-async", True)
            assert headers["retry-after"] == "3"
            assert not running.backend.gateway.seen
            status, headers, _ = await respond_later(client, "return=minimal, wait=10")
            assert (status, "preference-applied" in headers) == (200, False)
            assert len(store.jobs) == len(running.backend.gateway.seen) == 1
            assert (await respond_later(client, "respond-async", body=b'{"model":"m"}'))[0] == 400

    uvloop.run(main())


def test_prefer_wait_answers_normally_if_done_in_time() -> None:
    """The answer itself with its status; after the wait 202; a repeated idempotency key finds the same job."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client, key = await running.connect(), "idempotency-key: once"
            asking = asyncio.ensure_future(respond_later(client, "respond-async, wait=20", key))
            while not store.jobs:
                await asyncio.sleep(0.001)
            (job_id,) = store.jobs
            await store.play(job_id, [], ANSWER)
            status, headers, answer = await asking
            assert (status, answer, headers["location"]) == (200, json.loads(ANSWER), f"/v1/jobs/{job_id}")
            assert headers["preference-applied"] == "respond-async, wait=20"
            assert (await respond_later(client, "respond-async", key))[2] == json.loads(ANSWER)
            status, _, job = await respond_later(client, "respond-async, wait=1")
            assert (status, job["status"]) == (202, "queued")

    uvloop.run(main())
