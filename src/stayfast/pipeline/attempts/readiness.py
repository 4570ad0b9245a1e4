"""Probes that show by a real token that an upstream works: at the start, and after many failures in a row.

A probe is a stream that is closed at its first token: it costs a token or two. Upstreams that traffic has proven are not
probed.
"""

import asyncio
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.errors import Fault, StayfastError, UpstreamFailed
from stayfast.core.events import ProbeFailed, Sink
from stayfast.core.types import Api, Outcome
from stayfast.pipeline.attempts.attempt import Attempt, AttemptTerms
from stayfast.policy.resilience.retry import backoff_s
from stayfast.upstreams.base import Call
from stayfast.upstreams.state.upstream_state import UpstreamState
from stayfast.wire.request_body import decode

PROBE_ROUTE = "(probe)"
NOT_FOR_CHAT = (400, 404)  # statuses for a model without chat, and for an unknown one


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """How upstreams are probed; seconds."""

    timeout_s: float = 20.0
    connect_s: float = 5.0
    base_s: float = 0.25
    cap_s: float = 30.0
    check_every_s: float = 5.0  # between two checks whether a proven upstream has become unproven

    def __post_init__(self) -> None:
        if min(self.timeout_s, self.connect_s, self.base_s, self.check_every_s) <= 0 or self.cap_s < self.base_s:
            raise ValueError("probe times must be more than 0, and cap_s at least base_s")


class ProbeResult(NamedTuple):
    """code, message: why no token came; both empty if one did, after `ttft_s`. api: what answered."""

    code: str = ""
    message: str = ""
    ttft_s: float | None = None
    upstream_status: int | None = None
    api: Api = Api.CHAT


async def read_one_token(member: UpstreamState, model: str, config: ProbeConfig, clock: Clock, sink: Sink) -> ProbeResult:
    """Ask an upstream for an answer, by its own name of the model, and stop at the first token. A model that has no chat is
    asked for an embedding; the result is the chat's if both fail.
    """
    chat = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    result = await _read_one((Api.CHAT, chat), member, config, clock, sink)
    if result.upstream_status in NOT_FOR_CHAT and member.upstream.can_serve(Api.EMBEDDINGS):
        other = await _read_one((Api.EMBEDDINGS, {"model": model, "input": "Hi"}), member, config, clock, sink)
        return result if other.code else other
    return result


async def _read_one(request: tuple[Api, dict[str, object]], member: UpstreamState, config: ProbeConfig, clock: Clock,
                    sink: Sink) -> ProbeResult:
    api, fields = request
    began_at = clock.now()
    deadline = Deadline(began_at + config.timeout_s)
    call = Call(decode(api, msgspec.json.encode(fields)), str(fields["model"]), "req_probe", deadline, config.connect_s)
    attempt = Attempt(member, call, AttemptTerms(PROBE_ROUTE, is_incremental=api is Api.CHAT), clock, sink)
    try:
        async with asyncio.timeout_at(deadline.at):
            attempt.stream = await member.upstream.open(call)
            while (chunk := await attempt.stream.next()) is not None and not chunk.n_content:
                pass
    except UpstreamFailed as failed:
        attempt.end(Outcome.IGNORED, failed.fault.value, upstream_status=failed.upstream_status)
        detail = f" ({failed.detail})" if failed.detail else ""
        return ProbeResult(failed.code, failed.message + detail, upstream_status=failed.upstream_status)
    except StayfastError as refused:
        attempt.end(Outcome.IGNORED)
        return ProbeResult(refused.code, refused.message)
    except TimeoutError:
        attempt.end(Outcome.IGNORED, Fault.TIMEOUT.value)
        return ProbeResult("upstream_timeout", f"upstream {attempt.name} gave no token in {config.timeout_s:g} s")
    finally:
        attempt.abandon()
    if chunk is None:
        return ProbeResult("no_content", f"upstream {attempt.name} answered without a token")
    return ProbeResult(api=api, ttft_s=clock.now() - began_at)


class Prober:
    """Probes unproven upstreams for a token, each with its own back-off."""

    def __init__(self, targets: list[tuple[UpstreamState, str]], config: ProbeConfig, clock: Clock, rng: Random,
                 sink: Sink) -> None:
        self._targets = targets  # (upstream, its name of the model to probe)
        self.complaints: dict[str, str] = {}  # upstream: why its last probe failed
        self._config = config
        self._clock = clock
        self._rng = rng
        self._sink = sink

    @property
    def targets(self) -> list[tuple[UpstreamState, str]]:
        """The probed upstreams, each with the name of its model."""
        return self._targets

    @property
    def n_targets(self) -> int:
        return len(self._targets)

    async def run(self) -> None:
        """Replicas have watches of their own (`pipeline.warm.replica_watch`), which probe here."""
        async with asyncio.TaskGroup() as group:
            for member, model in self._targets:
                if member.replica is not None:
                    continue
                group.create_task(self._keep_proven(member, model))

    async def _keep_proven(self, member: UpstreamState, model: str) -> None:
        n_failed = 0
        while True:
            if member.is_proven or not (await self.probe(member, model)).code:
                n_failed = 0
                await asyncio.sleep(self._config.check_every_s)
                continue
            n_failed += 1
            await asyncio.sleep(backoff_s(n_failed, self._config.base_s, self._config.cap_s, self._rng))

    async def probe(self, member: UpstreamState, model: str) -> ProbeResult:
        """One probe; a token proves the upstream."""
        result = await read_one_token(member, model, self._config, self._clock, self._sink)
        if result.code:
            self._complain(member, result.code, result.message)
        else:
            self.complaints.pop(member.upstream.name, None)
            member.record_success()
            if member.replica is not None:
                member.replica.note_token(result.ttft_s or 0.0, self._clock.now())
        return result

    def _complain(self, member: UpstreamState, code: str, message: str) -> None:
        name = member.upstream.name
        if self.complaints.get(name) != code:
            self.complaints[name] = code
            self._sink.emit(ProbeFailed(name, code, message))
