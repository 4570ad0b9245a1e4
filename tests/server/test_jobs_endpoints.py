"""`/v1/jobs` over a real socket: submission, states, results, events, isolation between keys, bad input."""

import asyncio
import json
import time
from typing import Any

import pytest
import uvloop

from stayfast.core.jobs import JobEvent, JobResult, JobState
from stayfast.jobs.config import JobsConfig
from tests.server.fakes import eventually, get, post, serving
from tests.server.memory_jobs import ANSWER, BODY, MINE, OTHER, fetch, serving_jobs, submission, submit

pytestmark = pytest.mark.sockets


def test_submission_is_accepted_with_place_and_location() -> None:
    """202 after the store has it; the second job has place 2; a HEAD has no body; the answer appears under `result`."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client = await running.connect()
            status, headers, job = await submit(client, metadata={"case": "7"})
            assert (status, headers["location"], job["status"]) == (202, f"/v1/jobs/{job['id']}", "queued")
            assert (headers["retry-after"], job["estimate_s"]) == ("3", 3.0)
            assert (job["place"], job["metadata"], job["endpoint"]) == (1, {"case": "7"}, "/v1/chat/completions")
            assert store.new[job["id"]].body == json.dumps(BODY).encode()
            _, headers, second = await submit(client)
            assert (second["place"], second["estimate_s"], headers["retry-after"]) == (2, 6.0, "6")
            assert (await fetch(client, f"/v1/jobs/{job['id']}/result"))[0] == 409
            await store.claim("w", {}, 1)
            await store.finish([JobResult(job["id"], 1, JobState.COMPLETED, body=ANSWER, upstream="up")])
            shown = (await fetch(client, f"/v1/jobs/{job['id']}"))[2]
            assert (shown["status"], shown["result"]["body"], shown["place"]) == ("completed", json.loads(ANSWER), None)
            client.send(get(f"/v1/jobs/{job['id']}/result", MINE))
            status, headers, body = await client.answer()
            assert (status, headers["x-stayfast-upstream"], body) == (200, "up", ANSWER)

    uvloop.run(main())


def test_job_of_a_model_without_a_completed_job_has_no_estimate() -> None:
    """Its client looks again soon."""

    async def main() -> None:
        async with serving_jobs() as (running, _):
            client = await running.connect()
            _, headers, job = await submit(client, body=BODY | {"model": "r"})
            assert (job["estimate_s"], headers["retry-after"]) == (None, "1")

    uvloop.run(main())


def test_job_without_answer_has_a_reason() -> None:
    """Cancelled, expired and dead jobs say why there is no answer; a failed one has the upstream's error and status."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client = await running.connect()
            for state in (JobState.CANCELLED, JobState.EXPIRED, JobState.DEAD):
                job = (await submit(client))[2]
                store.change(job["id"], state=state)
                status, _, error = await fetch(client, f"/v1/jobs/{job['id']}/result")
                assert (status, error["error"]["code"]) == (409, f"job_{state.value}")
                assert (await fetch(client, f"/v1/jobs/{job['id']}"))[2]["error"]["code"] == state.value
            job = (await submit(client))[2]
            failure = b'{"error":{"message":"no such model"}}'
            await store.finish([JobResult(job["id"], 1, JobState.FAILED, 404, failure, why="model_not_found")])
            assert (await fetch(client, f"/v1/jobs/{job['id']}/result"))[::2] == (404, json.loads(failure))
            assert (await fetch(client, f"/v1/jobs/{job['id']}"))[2]["error"]["code"] == "model_not_found"

    uvloop.run(main())


@pytest.mark.parametrize(("fields", "status", "code", "param"), [
    ({"body": {"model": "m"}}, 400, "missing_field", "body.messages"),
    ({"body": BODY | {"model": "none"}}, 404, "model_not_found", "body.model"),
    ({"endpoint": "/v1/files"}, 400, "bad_endpoint", "endpoint"),
    ({"endpoint": None}, 400, "bad_endpoint", "endpoint"),
    ({"url": "/v1/chat/completions"}, 400, "bad_endpoint", "endpoint"),
    ({"deadline": 0}, 400, "invalid_type", "deadline"),
    ({"deadline": 5, "run_at": 99_000_000_000}, 400, "bad_run_at", "run_at"),
    ({"run_at": time.time() + 31 * 86_400}, 400, "bad_run_at", "run_at"),
    ({"deadline": 5, "run_at": time.time() + 29 * 86_400}, 400, "bad_deadline", "deadline"),
    ({"priority": "urgent"}, 400, "bad_priority", "priority"),
    ({"window": "at night"}, 400, "bad_window", "window"),
    ({"metadata": {"k": "v" * 600}}, 400, "invalid_type", None),
    ({"surprise": 1}, 400, "invalid_type", None),
])
def test_bad_submission_is_refused_at_once(fields: dict[str, Any], status: int, code: str, param: str | None) -> None:
    """With the field's path, and nothing is stored."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            found = await submit(await running.connect(), **fields)
            assert found[0] == status, found
            assert found[2]["error"]["code"] == code, found
            assert param is None or found[2]["error"]["param"] == param
            assert not store.jobs

    uvloop.run(main())


def test_window_sets_the_start_of_a_job() -> None:
    """The next opening after `run_at`, in the zone's wall time."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client, at = await running.connect(), (time.time() // 86_400 + 2) * 86_400  # 00:00 UTC
            job = (await submit(client, run_at=at, window="22:00-23:00"))[2]
            assert store.new[job["id"]].run_at == at + 22 * 3600
            assert (await submit(client, run_at=at, window="22:00-23:00", deadline=60))[2]["error"]["code"] == "bad_deadline"

    uvloop.run(main())


def test_idempotency_key_makes_the_same_job_and_refuses_another_body() -> None:
    """Also after the job's end; another body is a 409; another key's same idempotency key is another job."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client, key = await running.connect(), "idempotency-key: once"
            first = (await submit(client, key))[2]
            assert (await submit(client, key))[2]["id"] == first["id"]
            await store.finish([JobResult(first["id"], 1, JobState.COMPLETED, body=ANSWER)])
            status, _, again = await submit(client, key)
            assert (status, again["id"], again["status"]) == (200, first["id"], "completed")
            status, _, error = await submit(client, key, body=BODY | {"n": 2})
            assert (status, error["error"]["code"]) == (409, "idempotency_conflict")
            client.send(post(submission(), "/v1/jobs", OTHER, key))
            assert json.loads((await client.answer())[2])["id"] != first["id"]

    uvloop.run(main())


def test_another_keys_job_is_unknown() -> None:
    """Every endpoint of a job answers 404 to another key, and its list leaves the job out."""

    async def main() -> None:
        async with serving_jobs() as (running, _):
            client = await running.connect()
            job = (await submit(client, body=BODY | {"stream": True}))[2]
            for path, method in (("", "GET"), ("", "DELETE"), ("/result", "GET"), ("/events", "GET"), ("/cancel", "POST")):
                status, _, error = await fetch(client, f"/v1/jobs/{job['id']}{path}", method=method, key=OTHER)
                assert (status, error["error"]["code"]) == (404, "job_not_found")
            assert (await fetch(client, "/v1/jobs", key=OTHER))[2]["data"] == []
            assert len((await fetch(client, "/v1/jobs"))[2]["data"]) == 1

    uvloop.run(main())


def test_list_pages_through_all_jobs_newest_first() -> None:
    """`after` and `has_more`; a filter of states; bad parameters are refused."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client = await running.connect()
            ids = [(await submit(client))[2]["id"] for _ in range(5)]
            page = (await fetch(client, "/v1/jobs?limit=2"))[2]
            assert ([job["id"] for job in page["data"]], page["has_more"]) == (ids[:2:-1], True)
            page = (await fetch(client, f"/v1/jobs?limit=3&after={page['last_id']}"))[2]
            assert ([job["id"] for job in page["data"]], page["has_more"]) == (ids[2::-1], False)
            store.change(ids[1], state=JobState.DEAD)
            page = (await fetch(client, "/v1/jobs?state=dead,expired"))[2]
            assert [job["id"] for job in page["data"]] == [ids[1]]
            for bad in ("state=gone", "limit=0", "limit=101", "limit=x", "page=2"):
                assert (await fetch(client, f"/v1/jobs?{bad}"))[0] == 400
            status, _, error = await fetch(client, "/v1/jobs?after=job_gone")
            assert (status, error["error"]["code"]) == (404, "job_not_found")
            assert (await fetch(client, f"/v1/jobs?after={ids[0]}", key=OTHER))[0] == 404

    uvloop.run(main())


def test_cancel_and_delete_end_a_job() -> None:
    """A second cancel changes nothing; only an ended job can be deleted, and is then unknown."""

    async def main() -> None:
        async with serving_jobs() as (running, _):
            client = await running.connect()
            path = f"/v1/jobs/{(await submit(client))[2]['id']}"
            assert (await fetch(client, path, method="DELETE"))[0] == 409
            for _ in range(2):
                status, _, job = await fetch(client, f"{path}/cancel", method="POST")
                assert (status, job["status"]) == (200, "cancelled")
            assert (await fetch(client, path, method="DELETE"))[2]["deleted"] is True
            assert (await fetch(client, path))[0] == 404

    uvloop.run(main())


def test_events_go_on_after_the_last_one_received() -> None:
    """From any position by header or query, while the job runs; 410 with the result's address for events that are gone."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client = await running.connect()
            job = (await submit(client, body=BODY | {"stream": True}))[2]
            events = [JobEvent(n, 1, b"data: %d\n\n" % n, n == 3) for n in range(4)]
            await store.append_events(job["id"], 1, events[:2])
            reader = await running.connect()
            reader.send(get(f"/v1/jobs/{job['id']}/events", MINE, "connection: close"))
            await reader.until(b"id: 1-1\ndata: 1\n\n")
            store.change(job["id"], state=JobState.COMPLETED)
            await store.append_events(job["id"], 1, events[2:])
            assert b"id: 1-3\ndata: 3\n\n" in await reader.rest()
            for after in range(-1, 4):
                other = await running.connect()
                line = f"last-event-id: 1-{after}" if after >= 0 else "accept: */*"
                other.send(get(f"/v1/jobs/{job['id']}/events", MINE, line, "connection: close"))
                _, _, body = (await other.rest()).partition(b"\r\n\r\n")
                assert body.count(b"data:") == 3 - after
            status, _, error = await fetch(client, f"/v1/jobs/{job['id']}/events?after=7")  # it never had that one
            assert (status, error["error"]["code"]) == (410, "stream_gone")
            store.first_n = 2
            status, _, error = await fetch(client, f"/v1/jobs/{job['id']}/events?after=0")
            assert (status, error["error"]["code"]) == (410, "stream_gone")
            assert f"/v1/jobs/{job['id']}" in error["error"]["message"]
            assert (await fetch(client, f"/v1/jobs/{job['id']}/events?after=x"))[0] == 400

    uvloop.run(main())


def test_events_of_a_job_that_ends_in_the_queue_end_with_an_error() -> None:
    """A waiting reader of a cancelled job gets an error event, not an endless silence."""

    async def main() -> None:
        async with serving_jobs() as (running, _):
            client, reader = await running.connect(), await running.connect()
            job = (await submit(client, body=BODY | {"stream": True}))[2]
            plain = (await submit(client))[2]
            assert (await fetch(client, f"/v1/jobs/{plain['id']}/events"))[2]["error"]["code"] == "job_not_streamed"
            await fetch(client, f"/v1/jobs/{job['id']}/cancel", method="POST")
            reader.send(get(f"/v1/jobs/{job['id']}/events", MINE, "connection: close"))
            assert b"job_cancelled" in await reader.rest()

    uvloop.run(main())


def test_reader_of_events_that_leaves_is_noticed() -> None:
    """The request's Task ends with the connection."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client, reader = await running.connect(), await running.connect()
            job = (await submit(client, body=BODY | {"stream": True}))[2]
            await store.append_events(job["id"], 1, [JobEvent(0, 1, b"data: 0\n\n")])
            reader.send(get(f"/v1/jobs/{job['id']}/events", MINE))
            await reader.until(b"data: 0\n\n")
            reader.reset()
            await eventually(lambda: len(running.server.app.tasks) == 0)

    uvloop.run(main())


def test_too_many_queued_jobs_are_refused_with_retry_after() -> None:
    """429 beyond `max_queued` of one key."""

    async def main() -> None:
        async with serving_jobs(JobsConfig(max_queued=1)) as (running, _):
            client = await running.connect()
            assert (await submit(client))[0] == 202
            status, headers, error = await submit(client)
            assert (status, error["error"]["code"]) == (429, "too_many_jobs")
            assert int(headers["retry-after"]) > 0

    uvloop.run(main())


def test_jobs_that_end_make_room_at_once_and_counts_are_read_rarely() -> None:
    """The count of a key is read once a second, and whenever it seems to be used up."""

    async def main() -> None:
        async with serving_jobs(JobsConfig(max_queued=20)) as (running, store):
            client = await running.connect()
            ids = [(await submit(client))[2]["id"] for _ in range(15)]
            assert store.n_counted < 15
            for job_id in ids[:10]:
                store.change(job_id, state=JobState.COMPLETED)
            assert [(await submit(client))[0] for _ in range(16)] == [202] * 15 + [429]

    uvloop.run(main())


def test_gateway_without_store_answers_503_and_wrong_methods_405() -> None:
    """The paths exist; an unknown path below them is a 404; the reason is stated."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(get("/v1/jobs/x"))
            status, headers, body = await client.answer()
            assert (status, json.loads(body)["error"]["code"]) == (503, "jobs_unavailable")
            assert "retry-after" in headers
            client.send(get("/v1/jobs", method="PUT"))
            status, headers, _ = await client.answer()
            assert (status, headers["allow"]) == (405, "GET, HEAD, POST")
            client.send(get("/v1/jobs/x/y"))
            assert (await client.answer())[0] == 404
            client.send(get("/anthropic/v1/messages/batches/x"))
            assert json.loads((await client.answer())[2])["type"] == "error"

    uvloop.run(main())


def test_submission_during_shutdown_is_refused_and_reading_goes_on() -> None:
    """A draining gateway takes no new work."""

    async def main() -> None:
        async with serving_jobs() as (running, _):
            client = await running.connect()
            job = (await submit(client))[2]
            other = await running.connect()
            await asyncio.sleep(0)
            running.server.http.reject_new_requests()
            other.send(get(f"/v1/jobs/{job['id']}", MINE))
            assert (await other.answer())[0] == 200
            client.send(post(submission(), "/v1/jobs", MINE))
            assert (await client.answer())[0] == 503

    uvloop.run(main())
