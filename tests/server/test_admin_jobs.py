"""/admin/jobs and `stayfast jobs`: all tenants' jobs for an admin, retry and cancel, and what they print."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from stayfast.cli import main as command_line
from stayfast.cli.jobs import format_age, format_instant, format_job, format_jobs
from stayfast.core.jobs import JobState, Report
from tests.server.fakes import Client, Running, get
from tests.server.keys import ADMIN, KEY
from tests.server.memory_jobs import MemoryJobs, fetch, serving_jobs, submit

MINE, OPS = f"authorization: Bearer {KEY}", f"authorization: Bearer {ADMIN}"
NOW = 1_800_000_000.0


def with_jobs(check: Callable[[Running, Client, MemoryJobs, list[str]], Any]) -> None:
    """Run a check on a server with three jobs of a client: queued, dead, completed."""

    async def main() -> None:
        async with serving_jobs() as (running, store):
            client = await running.connect()
            ids = [(await submit(client))[2]["id"] for _ in range(3)]
            store.change(ids[1], state=JobState.DEAD, why="worker_died", token=3)
            store.change(ids[2], state=JobState.COMPLETED)
            await check(running, client, store, ids)

    uvloop.run(main())


@pytest.mark.sockets
def test_admin_jobs_without_an_admin_key_are_refused() -> None:
    async def check(running: Running, client: Client, store: MemoryJobs, ids: list[str]) -> None:
        for path, method in (("/admin/jobs", "GET"), (f"/admin/jobs/{ids[0]}", "GET"),
                             (f"/admin/jobs/{ids[1]}/retry", "POST"), (f"/admin/jobs/{ids[0]}/cancel", "POST")):
            status, _headers, body = await fetch(client, path, method=method)
            assert (status, body["error"]["code"]) == (403, "admins_only")
            client.send(get(path, "content-length: 0", method=method))
            assert (await client.answer())[0] == 401
        assert [job.state for job in store.jobs.values()] == [JobState.QUEUED, JobState.DEAD, JobState.COMPLETED]

    with_jobs(check)


@pytest.mark.sockets
def test_admin_jobs_by_state_and_page_are_listed_with_their_queues() -> None:
    async def check(running: Running, client: Client, store: MemoryJobs, ids: list[str]) -> None:
        listing = (await fetch(client, "/admin/jobs?state=dead,queued&limit=1", key=OPS))[2]
        assert ([job["id"] for job in listing["data"]], listing["has_more"]) == ([ids[1]], True)
        assert listing["data"][0]["tenant"] == "app"
        rest = (await fetch(client, f"/admin/jobs?state=dead,queued&limit=5&after={ids[1]}&tenant=app", key=OPS))[2]
        assert ([job["id"] for job in rest["data"]], rest["has_more"]) == ([ids[0]], False)
        assert [(queue["model"], queue["n_queued"]) for queue in rest["queues"]] == [("m", 1)]
        assert (await fetch(client, "/admin/jobs?tenant=nobody", key=OPS))[2]["data"] == []
        assert (await fetch(client, f"/admin/jobs/{ids[0]}", key=OPS))[2]["n_ahead"] == 0

    with_jobs(check)


@pytest.mark.sockets
@pytest.mark.parametrize(("query", "param"), [("limit=0", "limit"), ("limit=x", "limit"), ("state=gone", "state"),
                                              ("sort=up", "sort")])
def test_admin_jobs_with_a_bad_query_name_the_parameter(query: str, param: str) -> None:
    async def check(running: Running, client: Client, store: MemoryJobs, ___: list[str]) -> None:
        status, _headers, body = await fetch(client, f"/admin/jobs?{query}", key=OPS)
        assert (status, body["error"]["param"]) == (400, param)

    with_jobs(check)


@pytest.mark.sockets
def test_admin_job_that_is_dead_can_be_retried_and_cancelled() -> None:
    async def check(running: Running, client: Client, store: MemoryJobs, ids: list[str]) -> None:
        status, _headers, job = await fetch(client, f"/admin/jobs/{ids[1]}/retry", method="POST", key=OPS)
        assert (status, job["state"]) == (200, "queued")
        assert (await fetch(client, f"/admin/jobs/{ids[1]}/cancel", method="POST", key=OPS))[2]["state"] == "cancelled"
        status, _headers, body = await fetch(client, f"/admin/jobs/{ids[2]}/retry", method="POST", key=OPS)
        assert (status, body["error"]["code"]) == (409, "job_not_retryable")
        for action in ("retry", "cancel"):
            status, _headers, body = await fetch(client, f"/admin/jobs/job_none/{action}", method="POST", key=OPS)
            assert (status, body["error"]["code"]) == (404, "job_not_found")
        assert store.jobs[ids[1]].state is JobState.CANCELLED

    with_jobs(check)


@pytest.mark.sockets
def test_jobs_command_lists_shows_and_retries(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(running: Running, _: Client, __: MemoryJobs, ids: list[str]) -> None:
        monkeypatch.setenv("OPS_KEY", ADMIN)
        where = ["--url", f"http://127.0.0.1:{running.port}", "--key-env", "OPS_KEY"]

        async def run(*words: str) -> tuple[int, str]:
            status = await asyncio.to_thread(command_line, ["jobs", *words, *where])
            return status, capsys.readouterr().out

        status, text = await run("list")
        assert status == 0
        assert text.split("\n\n")[0].split()[-6:] == ["m", "1", "0", "0", "0", "s"]
        assert all(job in text for job in ids)
        status, text = await run("dead")
        assert ids[1] in text
        assert ids[0] not in text
        assert "worker_died" in text
        assert "worker_died" in (await run("show", ids[1]))[1]
        assert await run("retry", ids[1]) == (0, f"{ids[1]} is queued\n")
        assert (await run("retry", ids[2]))[0] == 1
        assert await run("cancel", ids[0]) == (0, f"{ids[0]} is cancelled\n")
        listing = json.loads((await run("list", "--json", "--state", "cancelled"))[1])
        assert [job["id"] for job in listing["data"]] == [ids[0]]

    with_jobs(check)


@pytest.mark.sockets
def test_webhooks_that_failed_are_listed_and_sent_again(capsys: pytest.CaptureFixture[str],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(running: Running, client: Client, store: MemoryJobs, ids: list[str]) -> None:
        monkeypatch.setenv("OPS_KEY", ADMIN)
        where = ["--url", f"http://127.0.0.1:{running.port}", "--key-env", "OPS_KEY"]

        async def run(*words: str) -> tuple[int, str]:
            status = await asyncio.to_thread(command_line, ["jobs", "webhooks", *words, *where])
            return status, capsys.readouterr().out

        assert await run() == (0, "All webhooks are confirmed.\n")
        store.reports += [Report("evt_1", ids[0], is_batch=False, created_at=NOW, is_failed=True, why="status 500"),
                          Report("evt_2", ids[1], is_batch=False, created_at=NOW, n_attempts=3, why="timeout")]
        lines = (await run())[1].splitlines()
        assert [line.split()[:3] for line in lines[1:]] == [["evt_1", "failed", ids[0]], ["evt_2", "waiting", ids[1]]]
        assert "failed" not in (await run("--retry", "evt_1"))[1]
        assert (await run("--retry", "evt_1"))[0] == 1
        assert (await fetch(client, "/admin/webhooks"))[0] == 403

    with_jobs(check)


def test_format_jobs_of_an_empty_queue_is_one_line() -> None:
    assert format_jobs({"queues": [], "data": [], "has_more": False}, NOW) == "No matching jobs.\n"


def test_format_jobs_replaces_control_characters_of_names() -> None:
    job = {"id": "job_1", "state": "queued", "model": "a\x1b[31m", "created_at": NOW}
    assert "\x1b" not in format_jobs({"queues": [], "data": [job], "has_more": True}, NOW)


@pytest.mark.parametrize(("age_s", "text"), [(0, "0 s"), (119, "119 s"), (600, "10 min"), (9000, "2.5 h"),
                                             (200_000, "2.3 d")])
def test_format_age_has_a_fitting_unit(age_s: float, text: str) -> None:
    assert format_age(NOW - age_s, NOW) == text
    assert format_age(None, NOW) == "-"
    assert text in format_instant(NOW - age_s, NOW)
    assert text in format_instant(NOW + age_s, NOW)


def test_a_job_is_printed_without_empty_fields_and_with_its_request() -> None:
    text = format_job({"id": "job_1", "created_at": NOW - 60, "token": 2, "cost_usd": None, "why": "",
                       "usage": {"input_total": 10, "output": 15, "reasoning": 0}, "request_id": "job_1-2"}, NOW)
    names = [line.split()[0] for line in text.splitlines() if line]
    assert names == ["id", "created_at", "claims", "usage", "request_id", "Where"]
    assert "input_total 10, output 15\n" in text
    assert text.endswith("stayfast explain job_1-2\n")
