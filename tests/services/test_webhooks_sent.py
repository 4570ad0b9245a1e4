"""Webhooks from the store to a receiver: signed, filtered, repeated until they are confirmed, listed where they fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import uvloop
from openai import OpenAI

from stayfast.core.events import Fanout
from stayfast.core.setting import Secret
from stayfast.jobs.config import WebhookConfig
from stayfast.jobs.webhooks import MAX_REPORT_ATTEMPTS, WebhookSender
from stayfast.stores.jobs.sqlite import SqliteJobStore
from tests.services.job_store_rig import claim_one, new_job, result_of
from tests.services.sqlite_jobs_rig import MovedClock
from tests.unit.jobs.batch_rig import raise_error

pytestmark = pytest.mark.sockets
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZg=="


class Receiver:
    """An address that records events, and answers with the given statuses, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line]
                headers = {name.lower(): value for name, value in lines}
                self.received.append((headers, await reader.readexactly(int(headers["content-length"]))))
                status = self.statuses.pop(0) if self.statuses else 200
                writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n".encode())
        except asyncio.IncompleteReadError:
            writer.close()

    def types(self) -> list[str]:
        return [msgspec.json.decode(body)["type"] for _, body in self.received]


@asynccontextmanager
async def listening(receiver: Receiver) -> AsyncIterator[Receiver]:
    server = await asyncio.start_server(receiver.answer, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?x=1"
    async with server:
        yield receiver


Scenario = Callable[[Any, Receiver, WebhookSender, MovedClock], Awaitable[None]]


def run_with_sender(folder: Path, statuses: list[int], test: Scenario, **config: Any) -> None:
    """Run a test with a store, a receiver and a sender on a clock that the test moves."""

    async def main() -> None:
        clock = MovedClock()
        store = SqliteJobStore(folder, clock, is_inline=True, reserve_bytes=0)
        async with listening(Receiver(*statuses)) as receiver:
            configs = [WebhookConfig(receiver.url, Secret(SECRET), **config)]
            sender = WebhookSender(store, store, lambda: configs, "host:1:0",
                                   clock=clock, rng=Random(1), sink=Fanout(), report=raise_error)
            await test(store, receiver, sender, clock)
            sender.close()
        await store.close()

    uvloop.run(main())


async def end_job(store: Any, job_id: str, **fields: Any) -> None:
    await store.submit([new_job(job_id, is_reported=True, **fields)])
    await store.finish([result_of(await claim_one(store))])


def test_webhook_of_an_ended_job_is_signed_for_the_official_sdk(tmp_path: Path) -> None:
    async def test(store: Any, receiver: Receiver, sender: WebhookSender, clock: MovedClock) -> None:
        await end_job(store, "job_1", tenant="app")
        assert await sender.send_due() == 1
        ((headers, body),) = receiver.received
        with OpenAI(api_key="none") as client:
            client.webhooks.verify_signature(body, headers, secret=SECRET, tolerance=2**40)
        event = msgspec.json.decode(body)
        assert (event["type"], event["data"]) == ("job.completed", {"id": "job_1"})
        assert headers["webhook-id"] == event["id"]
        assert await sender.send_due() == 0

    run_with_sender(tmp_path, [], test)


def test_webhook_that_is_not_confirmed_is_repeated_later_with_the_same_id(tmp_path: Path) -> None:
    async def test(store: Any, receiver: Receiver, sender: WebhookSender, clock: MovedClock) -> None:
        await end_job(store, "job_1")
        await sender.send_due()
        assert await sender.send_due() == 0
        clock.at += 6.0
        await sender.send_due()
        clock.at += 11.0
        await sender.send_due()
        clock.at += 4000.0
        assert await sender.send_due() == 0
        assert len({headers["webhook-id"] for headers, _ in receiver.received}) == 1
        assert len({headers["webhook-timestamp"] for headers, _ in receiver.received}) == 3

    run_with_sender(tmp_path, [500, 302], test)


def test_webhook_without_any_confirmation_is_listed_as_failed(tmp_path: Path) -> None:
    async def test(store: Any, receiver: Receiver, sender: WebhookSender, clock: MovedClock) -> None:
        await end_job(store, "job_1", keep_s=1e9)
        for _ in range(MAX_REPORT_ATTEMPTS):
            await sender.send_due()
            clock.at += 3601.0
        (failed,) = await store.list_reports(is_failed=True, limit=5)
        assert (failed.subject_id, failed.why) == ("job_1", "status 500")
        n_received = len(receiver.received)
        assert n_received == MAX_REPORT_ATTEMPTS
        assert await sender.send_due() == 0
        await store.retry_report(failed.id)
        await sender.send_due()
        assert len(receiver.received) == n_received + 1

    run_with_sender(tmp_path, [500] * (MAX_REPORT_ATTEMPTS + 5), test)


def test_webhook_is_sent_only_for_its_keys_and_types(tmp_path: Path) -> None:
    async def test(store: Any, receiver: Receiver, sender: WebhookSender, clock: MovedClock) -> None:
        await end_job(store, "a", tenant="app")
        await end_job(store, "b", tenant="other")
        await store.submit([new_job("c", tenant="app", is_reported=True)])
        await store.cancel("c")
        await sender.send_due()
        assert receiver.types() == ["job.completed"]
        assert await sender.send_due() == 0

    run_with_sender(tmp_path, [], test, tenants=("app",), events=("job.completed",))


def test_webhook_to_an_unreachable_address_fails_with_a_code(tmp_path: Path) -> None:
    async def main() -> None:
        clock = MovedClock()
        store = SqliteJobStore(tmp_path, clock, is_inline=True, reserve_bytes=0)
        configs = [WebhookConfig("http://127.0.0.1:9/", Secret("s"))]
        sender = WebhookSender(store, store, lambda: configs, "host:1:0", clock=clock,
                               rng=Random(1), sink=Fanout(), report=raise_error)
        await end_job(store, "a")
        await sender.send_due()
        (report,) = await store.list_reports(is_failed=False, limit=5)
        assert (report.n_attempts, report.why) == (1, "upstream_connect")
        await store.close()

    uvloop.run(main())


def test_webhook_of_a_reload_is_used_without_a_restart(tmp_path: Path) -> None:
    """The sender runs from the start, and uses the receivers that are in force."""
    async def main() -> None:
        clock, configs = MovedClock(), list[WebhookConfig]()
        store = SqliteJobStore(tmp_path, clock, is_inline=True, reserve_bytes=0)
        async with listening(Receiver()) as first, listening(Receiver()) as second:
            sender = WebhookSender(store, store, lambda: tuple(configs), "host:1:0", clock=clock, rng=Random(1),
                                   sink=Fanout(), report=raise_error)
            for n, receiver in enumerate((first, second)):
                configs[:] = [WebhookConfig(receiver.url, Secret(SECRET))]
                await end_job(store, f"j{n}")
                await sender.send_due()
            sender.close()
            assert first.types() == second.types() == ["job.completed"]
        await store.close()

    uvloop.run(main())
