"""A stream that breaks off is picked up at another gateway: no byte is lost, none comes twice, nothing is generated again.

Two gateways share a store. Streams of an ordinary chat route with `resumable: true`, and background responses, are cut after
each of their events, and resumed at the other gateway with the id of that event, while the generation runs and after it. The
joined events must equal, byte for byte, those of an uncut stream; the upstream's log must show one call for each question.

Then the gateway that generates is killed with SIGKILL in mid-stream. The client goes on at the other one, which runs the job
again: its events belong to the next epoch and begin with a `reset`, after which the client drops what it has. The final text
must be whole.

When wrong: both gateways are on one machine, so no packet is lost between them, and the clocks agree.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from stayfast.core.clock import SystemClock
from stayfast.lab.harness.answer_upstream import N_CHUNKS, AnswerCall, answer_words
from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, Sense
from stayfast.lab.harness.event_client import ReceivedEvent, ReceivedStream, read_stream
from stayfast.lab.harness.job_fleet import JobFleet, kill_all
from stayfast.lab.harness.processes import MODEL, Processes, children_of, gateway_settings

ANSWER_S = 0.4
LEASE_S = 2.0
END_WITHIN_S = 60.0
FIRST_EVENT_S = ANSWER_S / N_CHUNKS
KILL_AFTER_S = (0.06, 0.3)  # of the first event
N_GATEWAYS = 2
RETRY_S = 0.2
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
_REPEATED = (0, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class ResumeClaim:
    """n_kills: of a full and a quick run. step: a quick run cuts after every so many events."""

    n_kills: int = 20
    n_kills_quick: int = 3
    step_quick: int = 4

    name = "resume"
    statement = ("A stream that is cut after any of its events and resumed at another gateway has 0 bytes lost and 0 twice, "
                 "without a second generation. After SIGKILL of the gateway that generates, a reset follows and the "
                 "final text is whole.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        rng = Random(conditions.seed)
        with TemporaryDirectory(prefix="stayfast-resume-") as folder:
            async with self._fleet(Path(folder), rng) as (fleet, processes, upstream):
                trial = ResumeTrial(fleet, rng)
                conditions.report_progress("streams that are cut after each event")
                await trial.cut_all(conditions.choose(1, self.step_quick))
                calls = msgspec.convert((await upstream.get("/_calls"))["calls"], list[AnswerCall])
                repeated = sum(n - 1 for n in Counter(call.question for call in calls).values())
                n_kills = conditions.choose(self.n_kills, self.n_kills_quick)
                for n in range(n_kills):
                    conditions.report_progress(f"kill {n + 1} of {n_kills}")
                    await trial.kill(n, processes)
        return trial.make_finding(repeated)

    @asynccontextmanager
    async def _fleet(self, folder: Path, rng: Random) -> AsyncIterator[tuple[JobFleet, Processes, Any]]:
        async with Processes() as processes:
            upstream = await processes.start("-m", "stayfast.lab.harness.answer_upstream", str(ANSWER_S))
            settings = gateway_settings({"up": f"{upstream.url}/v1"}, resumable=True) | {
                "jobs": {"path": str(folder / "jobs"), "lease_s": LEASE_S, "max_claims": 100}, "log": {"requests": False}}
            fleet = JobFleet(processes, settings, rng)
            await fleet.start(N_GATEWAYS, has_worker=False)
            yield fleet, processes, upstream
            await fleet.stop()


class ResumeTrial:
    """Cuts and kills, and what went wrong."""

    def __init__(self, fleet: JobFleet, rng: Random) -> None:
        self._fleet = fleet
        self._rng = rng
        self._clock = SystemClock()
        self._n_cuts: Counter[str] = Counter()
        self._problems: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._n_different_bytes = 0

    async def cut_all(self, step: int) -> None:
        """Cut streams of both kinds after each `step`-th event."""
        for path in (CHAT, RESPONSES):
            whole = await self._read_whole(path, f"{path} uncut")
            first = 0 if path == CHAT else 1  # a response has no id before its first event
            for n_read in range(first, len(whole.events), step):
                for is_running in (True, False):
                    await self._cut(path, f"{path} {n_read} {is_running}", n_read, is_running=is_running)

    async def _cut(self, path: str, question: str, n_read: int, *, is_running: bool) -> None:
        """Read `n_read` events at one gateway, and the rest at the other."""
        first, second = self._fleet.gateways
        before = await read_stream(first.url, "POST", path, make_body(path, question), name_request(question),
                                   n_most=n_read or None) if n_read else await self._open_and_leave(path, question)
        if not is_running:
            await asyncio.sleep(ANSWER_S * 1.5)
        after = await self._go_on(second.url, path, question, before.events)
        again = await self._read_stored(path, question, before.events, after.events)
        self._n_cuts["while the answer was generated" if is_running else "after its end"] += 1
        joined = encode_events([*before.events, *after.events])
        self._n_different_bytes += n_different_bytes(joined, encode_events(again))
        if read_text(path, [*before.events, *after.events]) != " ".join(answer_words(question)):
            self._problems["wrong texts"] += 1

    async def _open_and_leave(self, path: str, question: str) -> ReceivedStream:
        """Send a request and disconnect before its first event."""
        url = self._fleet.gateways[0].url
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read_stream(url, "POST", path, make_body(path, question), name_request(question)))
            await asyncio.sleep(FIRST_EVENT_S / 2)
            reading.cancel()
        return ReceivedStream()

    async def _read_stored(self, path: str, question: str, before: list[ReceivedEvent], after: list[ReceivedEvent]
                           ) -> list[ReceivedEvent]:
        """The whole stream, as the store has it."""
        url = self._fleet.gateways[self._rng.randrange(N_GATEWAYS)].url
        if path == CHAT:
            return (await read_stream(url, "POST", path, make_body(path, question), name_request(question))).events
        response_id = id_of_response([*before, *after])
        return (await read_stream(url, "GET", f"{RESPONSES}/{response_id}?stream=true")).events

    async def kill(self, n: int, processes: Processes) -> None:
        """Kill the gateway that generates, and read the rest at the other one."""
        path = (CHAT, RESPONSES)[n % 2]
        question = f"{path} kill {n}"
        victim, other = self._rng.sample(range(N_GATEWAYS), 2)
        server = self._fleet.gateways[victim]
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(
                read_stream(server.url, "POST", path, make_body(path, question), name_request(question)))
            await asyncio.sleep(FIRST_EVENT_S + self._rng.uniform(*KILL_AFTER_S))
            await kill_all([server.process.pid, *children_of(server.process.pid)], server)
        before = reading.result()
        after = await self._go_on(self._fleet.gateways[other].url, path, question, before.events)
        events = [*before.events, *after.events]
        self._kills[path] += 1
        self._kills["with a reset"] += any(is_reset(path, event, at) for at, event in enumerate(events))
        if after.error is not None:
            self._problems[f"refusals after a kill ({after.error[1]})"] += 1
        elif read_text(path, events) != " ".join(answer_words(question)):
            self._problems["wrong texts after a kill"] += 1
        await self._fleet.restart_gateway(victim)

    async def _read_whole(self, path: str, question: str) -> ReceivedStream:
        url = self._fleet.gateways[0].url
        return await read_stream(url, "POST", path, make_body(path, question), name_request(question))

    async def _go_on(self, url: str, path: str, question: str, before: list[ReceivedEvent]) -> ReceivedStream:
        """The rest of a stream, by as many connections as it takes."""
        received = ReceivedStream()
        until = self._clock.now() + END_WITHIN_S
        while self._clock.now() < until:
            events = [*before, *received.events]
            if events and is_end(path, events[-1]):
                received.is_whole = True
                return received
            if path == CHAT or not events:
                last = [("last-event-id", events[-1].id)] if events else []
                part = await read_stream(url, "POST", path, make_body(path, question), [*name_request(question), *last])
            else:
                number = msgspec.json.decode(events[-1].data)["sequence_number"]
                part = await read_stream(
                    url, "GET", f"{RESPONSES}/{id_of_response(events)}?stream=true&starting_after={number}")
            received.events += part.events
            if part.error is not None and part.error[0] not in _REPEATED:
                received.error = part.error
                return received
            if not part.events:
                await asyncio.sleep(RETRY_S)
        received.error = (0, "no end")
        return received

    def make_finding(self, n_repeated: int) -> ClaimResult:
        n_kills = self._kills[CHAT] + self._kills[RESPONSES]
        figures = [
            *(Figure.count(f"cuts {when}", n, None) for when, n in self._n_cuts.items()),
            Figure.count("bytes by which joined streams differ from the stored ones", self._n_different_bytes),
            Figure.count("cut streams with another text", self._problems["wrong texts"]),
            Figure.count("second generations of cut streams", n_repeated),
            Figure.count("kills of the gateway that generates", n_kills, None),
            Figure.count("streams that began again with a reset", self._kills["with a reset"], 1.0, Sense.AT_LEAST),
            Figure.count("streams whose final text was not whole", self._problems["wrong texts after a kill"]),
            Figure.count("streams that were refused after a kill",
                         sum(n for what, n in self._problems.items() if what.startswith("refusals"))),
        ]
        return ClaimResult(tuple(figures), tuple(f"{n} {what}" for what, n in self._problems.items()))


def make_body(path: str, question: str) -> dict[str, Any]:
    """A streaming request."""
    if path == RESPONSES:
        return {"model": MODEL, "stream": True, "background": True, "input": question}
    return {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": question}]}


def name_request(question: str) -> list[tuple[str, str]]:
    """The headers by which any gateway finds the stream again: of an ordinary stream, of a background response."""
    name = question.replace(" ", "_")
    return [("x-request-id", name), ("idempotency-key", name)]


def id_of_response(events: list[ReceivedEvent]) -> str:
    """The id of a background response."""
    return str(msgspec.json.decode(events[0].data)["response"]["id"])


def is_end(path: str, event: ReceivedEvent) -> bool:
    """Whether an event is the last one."""
    return event.data == "[DONE]" if path == CHAT else event.name in ("response.completed", "response.failed")


def is_reset(path: str, event: ReceivedEvent, at: int) -> bool:
    """Whether the answer starts again here."""
    return event.name == "reset" if path == CHAT else at > 0 and event.name == "response.created"


def read_text(path: str, events: list[ReceivedEvent]) -> str:
    """The text as a client joins it: a reset drops what came before."""
    text = ""
    for at, event in enumerate(events):
        if is_reset(path, event, at):
            text = ""
        elif path == RESPONSES:
            text += msgspec.json.decode(event.data)["delta"] if event.name == "response.output_text.delta" else ""
        elif event.data != "[DONE]":
            chunk = msgspec.json.decode(event.data)
            text += "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ()))
    return text


def encode_events(events: list[ReceivedEvent]) -> bytes:
    """Events as bytes, ids included."""
    return "".join(f"{event.id}|{event.name}|{event.data}\n" for event in events).encode()


def n_different_bytes(one: bytes, other: bytes) -> int:
    """At how many positions two streams differ; positions of one alone count."""
    return abs(len(one) - len(other)) + sum(a != b for a, b in zip(one, other, strict=False))
