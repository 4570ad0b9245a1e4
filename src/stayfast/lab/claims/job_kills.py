"""Accepted jobs survive SIGKILL of any process, at any instant, and their results exist once.

Gateways and a separate worker run jobs, streams among them, and a batch, against an upstream whose answer depends on the
question alone (`harness.answer_upstream`). At random instants one process is killed: a whole gateway, one of its processes,
the worker. A client repeats what got no answer, with the same idempotency key. At the end each accepted job must have the
answer of its question; the files of the batch must be equal, byte for byte, to those of a run without kills; and the batch
must have counted each line once. The upstream's log, and how often each job was claimed, show at which points the kills
came: a run whose kills missed one of them proves less, so each has a goal.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from stayfast.core.clock import SystemClock
from stayfast.lab.harness.answer_upstream import N_CHUNKS, USAGE, AnswerCall, answer_words
from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, Sense
from stayfast.lab.harness.job_fleet import JobFleet, encode_upload
from stayfast.lab.harness.postgres import PostgresServer
from stayfast.lab.harness.processes import MODEL, Processes, gateway_settings

ANSWER_S = 0.4  # how long the upstream takes for one
BETWEEN_KILLS_S = (0.3, 1.5)
N_SUBMITTERS = 4
LEASE_S = 2.0
N_LINES_PER_KILL = 8
END_WITHIN_S = 180.0  # of jobs, after the last kill
BATCH_WITHIN_S = 1800.0  # its lines come after single jobs, which are submitted until the last kill
CLAIMED, STREAMING, ANSWERED = ("between claim and the upstream's first byte", "in mid-stream",
                                "between the answer and its storage")
SQLITE, POSTGRES = "SQLite", "PostgreSQL"


@dataclass(frozen=True, slots=True)
class JobKills:
    """n_kills: of a full and a quick run."""

    n_full: int = 100
    n_quick: int = 12
    jobs: Mapping[str, Any] = field(default_factory=dict)  # settings that differ from this proof's

    name = "jobs"
    statement = ("After SIGKILL of gateways, their processes and workers at 100 random instants, on SQLite and on "
                 "PostgreSQL, no accepted job is lost, no result exists twice, and the files of a batch are equal, byte for "
                 "byte, to those of a run without kills.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        n_kills = conditions.choose(self.n_full, self.n_quick)
        lines = encode_lines(n_kills * N_LINES_PER_KILL)
        on_sqlite = await self._try_store(SQLITE, {}, lines, n_kills, conditions)
        async with PostgresServer() as server:
            on_postgres = await self._try_store(POSTGRES, {"store": server.url}, lines, n_kills, conditions)
        return ClaimResult((*on_sqlite.figures, *on_postgres.figures), (*on_sqlite.notes, *on_postgres.notes))

    async def _try_store(self, name: str, store: Mapping[str, str], lines: bytes, n_kills: int,
                         conditions: Conditions) -> ClaimResult:
        """store: the settings that choose it."""
        with TemporaryDirectory(prefix="stayfast-jobs-") as folder:
            async with Processes() as processes:
                undisturbed = await self._start(processes, {"path": f"{folder}/undisturbed"}, conditions)
                conditions.report_progress(f"{name}: without kills")
                expected = await run_batch(undisturbed, lines)
                await undisturbed.stop()
            async with Processes() as processes:
                upstream = await processes.start("-m", "stayfast.lab.harness.answer_upstream", str(ANSWER_S))
                fleet = await self._start(processes, {"path": f"{folder}/killed", **store}, conditions, upstream.url)
                trial = KillTrial(name, fleet, Random(conditions.seed), n_kills)
                killed = await trial.run(lines, conditions)
                calls = msgspec.convert((await upstream.get("/_calls"))["calls"], list[AnswerCall])
                await fleet.stop()
        return trial.make_finding(expected, killed, calls)

    async def _start(self, processes: Processes, store: Mapping[str, str], conditions: Conditions,
                     url: str = "") -> JobFleet:
        """url: the upstream's; empty: a quick one."""
        if not url:
            url = (await processes.start("-m", "stayfast.lab.harness.answer_upstream", "0.01")).url
        jobs = {"lease_s": LEASE_S, "max_claims": 100, "concurrency": 16, **store, **self.jobs}
        fleet = JobFleet(processes, {**gateway_settings({"up": f"{url}/v1"}), "jobs": jobs, "workers": 2,
                                     "log": {"requests": False}}, Random(conditions.seed))
        await fleet.start(2 if "store" in store else 1, has_worker=True)
        return fleet


class BatchOutcome(msgspec.Struct, frozen=True):
    """A batch at its end, and the bytes of its files."""

    batch: dict[str, Any]
    output: bytes
    errors: bytes


async def run_batch(fleet: JobFleet, lines: bytes) -> BatchOutcome:
    """Upload a file, run it as a batch, and read its results."""
    body, headers = encode_upload("lines.jsonl", lines)
    reply = await fleet.send("POST", "/v1/files", body, headers)
    file = msgspec.json.decode(reply.body)
    batch = await fleet.send_json("POST", "/v1/batches", {
        "input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"},
        (("idempotency-key", "the-batch"),))
    clock = SystemClock()
    until = clock.now() + BATCH_WITHIN_S
    while batch["status"] not in ("completed", "failed", "expired", "cancelled") and clock.now() < until:
        await asyncio.sleep(0.5)
        batch = await fleet.send_json("GET", f"/v1/batches/{batch['id']}")
    files = [(await fleet.send("GET", f"/v1/files/{batch[name]}/content")).body if batch.get(name) else b""
             for name in ("output_file_id", "error_file_id")]
    return BatchOutcome(batch, *files)


def encode_lines(n_lines: int) -> bytes:
    """The input file of a batch."""
    return b"".join(msgspec.json.encode({
        "custom_id": f"line-{n}", "method": "POST", "url": "/v1/chat/completions",
        "body": {"model": MODEL, "messages": [{"role": "user", "content": f"line {n}"}]}}) + b"\n" for n in range(n_lines))


class KillTrial:
    """Submits jobs and a batch while processes are killed, then checks every result."""

    def __init__(self, store: str, fleet: JobFleet, rng: Random, n_kills: int) -> None:
        self._store = store
        self._fleet = fleet
        self._rng = rng
        self._n_kills = n_kills
        self._accepted: dict[str, set[str]] = {}  # ids by question
        self._n_submitted = 0
        self._is_over = False
        self._kinds: Counter[str] = Counter()
        self.claims: dict[str, int] = {}  # of each question's job
        self.problems: Counter[str] = Counter()

    async def run(self, lines: bytes, conditions: Conditions) -> BatchOutcome:
        """Returns the outcome of the batch."""
        async with asyncio.TaskGroup() as tasks:
            batch = tasks.create_task(run_batch(self._fleet, lines))
            for _ in range(N_SUBMITTERS):
                tasks.create_task(self._submit())
            for n in range(self._n_kills):
                await asyncio.sleep(self._rng.uniform(*BETWEEN_KILLS_S))
                self._kinds[await self._fleet.kill_one()] += 1
                conditions.report_progress(f"{self._store}: kill {n + 1} of {self._n_kills}")
            self._is_over = True
        await self._check_jobs()
        return batch.result()

    async def _submit(self) -> None:
        """Submit jobs, one after another, until the last kill; every second one is a stream."""
        while not self._is_over:
            n = self._n_submitted
            self._n_submitted += 1
            question = f"job {n}"
            body = {"endpoint": "/v1/chat/completions", "body": {
                "model": MODEL, "stream": n % 2 == 0, "messages": [{"role": "user", "content": question}]}}
            job = await self._fleet.send_json("POST", "/v1/jobs", body, (("idempotency-key", question),))
            self._accepted.setdefault(question, set()).add(job["id"])

    async def _check_jobs(self) -> None:
        """Compare each job's result with the answer of its question."""
        clock = SystemClock()
        until = clock.now() + END_WITHIN_S
        for question, ids in self._accepted.items():
            if len(ids) != 1:
                self.problems["submissions that became two jobs"] += 1
            for job_id in ids:
                await self._check_job(question, job_id, until, clock)

    async def _check_job(self, question: str, job_id: str, until: float, clock: SystemClock) -> None:
        reply = await self._fleet.send("GET", f"/v1/jobs/{job_id}")
        job = msgspec.json.decode(reply.body)
        while reply.status == HTTPStatus.OK and job["status"] in ("queued", "running") and clock.now() < until:
            await asyncio.sleep(0.2)
            reply = await self._fleet.send("GET", f"/v1/jobs/{job_id}")
            job = msgspec.json.decode(reply.body)
        if reply.status != HTTPStatus.OK or job["status"] != "completed":
            self.problems["accepted jobs without an answer"] += 1
            return
        self.claims[question] = job["attempts"]
        result = msgspec.json.decode((await self._fleet.send("GET", f"/v1/jobs/{job_id}/result")).body)
        text = result["choices"][0]["message"]["content"]
        if text != " ".join(answer_words(question)):
            self.problems["wrong answers"] += 1

    def make_finding(self, expected: BatchOutcome, killed: BatchOutcome, calls: list[AnswerCall]) -> ClaimResult:
        counts, n_lines = killed.batch["request_counts"], expected.batch["request_counts"]["total"]
        usage = killed.batch.get("usage") or {}
        is_counted_once = (counts == {"total": n_lines, "completed": n_lines, "failed": 0}
                           and usage.get("total_tokens") == n_lines * USAGE["total_tokens"])
        store, problems = self._store, self.problems
        figures = [
            Figure.count(f"{store}: kills", sum(self._kinds.values()), None),
            Figure.count(f"{store}: accepted jobs", len(self._accepted), None),
            Figure.count(f"{store}: accepted jobs without an answer", problems["accepted jobs without an answer"]),
            Figure.count(f"{store}: jobs with a wrong answer", problems["wrong answers"]),
            Figure.count(f"{store}: submissions that became two jobs", problems["submissions that became two jobs"]),
            Figure.count(f"{store}: lines of the batch", n_lines, None),
            Figure.count(f"{store}: bytes by which its files differ from a run without kills",
                         n_different(expected.output, killed.output) + n_different(expected.errors, killed.errors)),
            Figure.count(f"{store}: batches that counted a line or its tokens twice, or not at all",
                         int(not is_counted_once)),
        ]
        points = self._points(calls)
        figures += [Figure.exact(f"{store}: jobs whose process was killed {point}", float(points[point]), "", 1.0,
                                 Sense.AT_LEAST) for point in (CLAIMED, STREAMING, ANSWERED)]
        notes = tuple(f"{store}: {n} times a {kind} was killed." for kind, n in self._kinds.most_common())
        return ClaimResult(tuple(figures), (*notes, f"{store}: the batch ended as {killed.batch['status']}."))

    def _points(self, calls: list[AnswerCall]) -> Counter[str]:
        """At which points jobs were interrupted, by the upstream's log and the number of claims."""
        by_question: dict[str, list[AnswerCall]] = {}
        for call in calls:
            by_question.setdefault(call.question, []).append(call)
        points: Counter[str] = Counter()
        for question, n_claims in self.claims.items():
            made = by_question.get(question, [])
            points[CLAIMED] += max(0, n_claims - len(made))
            for call in made[:-1]:
                if call.is_complete:
                    points[ANSWERED] += 1
                elif 0 < call.n_chunks < N_CHUNKS:
                    points[STREAMING] += 1
        return points


def n_different(one: bytes, other: bytes) -> int:
    """At how many positions two contents differ; positions of one alone count."""
    return abs(len(one) - len(other)) + sum(a != b for a, b in zip(one, other, strict=False))
