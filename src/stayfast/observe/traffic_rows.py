"""Finished requests as compact rows of figures: what `GET /admin/traffic` answers and `stayfast plan` reads.

A row holds names, instants and counts, never a prompt, an answer or a key. The tenant is a digest of its name.
"""

import asyncio
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice

import msgspec

from stayfast.core.events import AttemptDone, RequestDone


class TrialRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One attempt. Durations in seconds from its start. fault: the kind of failure; empty: none."""

    upstream: str
    role: str = "first"
    took_s: float = 0.0
    ttft_s: float | None = None
    fault: str = ""
    status: int | None = None  # HTTP status of the upstream, if it was an error
    is_lost: bool = False  # cancelled, because another attempt brought the first token


class TrafficLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request. Instants are seconds since the epoch, durations seconds. None: unknown.

    body_mark: equal for equal bodies of one worker process, and meaningless elsewhere. trials: empty if the one attempt is
    described by the request itself.
    """

    arrived_at: float
    route: str
    upstream: str = ""
    n_input: int | None = None
    n_cached: int = 0  # part of n_input that the provider read from its prompt cache
    n_output: int | None = None
    is_stream: bool = False
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float = 0.0
    status: int = 200
    n_attempts: int = 0
    cost_usd: float | None = None
    cache: str = ""
    tenant: str = ""
    body_mark: str = ""
    own_s: float = 0.0  # before the first attempt: admission, cache, routing
    shed: str = ""
    trials: tuple[TrialRow, ...] = ()


_N_AT_A_TIME = 25
COLUMNS = TrafficLine.__struct_fields__
TRIAL_COLUMNS = TrialRow.__struct_fields__


class TrafficReport(msgspec.Struct, frozen=True):
    """The answer of `GET /admin/traffic`: rows in the order of `columns`, newest first."""

    rows: list[TrafficLine]
    columns: tuple[str, ...] = COLUMNS
    trial_columns: tuple[str, ...] = TRIAL_COLUMNS


def digest_tenant(name: str | None) -> str:
    """Eight hexadecimal digits for a tenant's name; empty without one."""
    return blake2b(name.encode(), digest_size=4).hexdigest() if name else ""


def format_mark(mark: int | None) -> str:
    """A body mark as 8 hexadecimal digits; empty if there is none."""
    return (mark & 0xFFFFFFFF).to_bytes(4, "big").hex() if mark is not None else ""


def list_traffic(facts: Iterable[RequestDone]) -> list[TrafficLine]:
    """Rows of the requests of clients; attempts at jobs, embeddings and requests without a route are not included."""
    return [to_traffic_line(fact, fact.route) for fact in facts
            if fact.route is not None and not fact.role and fact.api.can_stream]


async def list_in_steps(facts: Iterator[RequestDone]) -> list[TrafficLine]:
    """The same, with a turn of the loop for every half a millisecond of work."""
    rows: list[TrafficLine] = []
    while some := list(islice(facts, _N_AT_A_TIME)):
        rows += list_traffic(some)
        await asyncio.sleep(0)
    return rows


def to_traffic_line(fact: RequestDone, route: str) -> TrafficLine:
    usage, attempts = fact.usage, fact.attempts
    e2e_s = fact.ended_at - fact.accepted_at
    own_s = max(0.0, attempts[0].began_at - fact.accepted_at) if attempts else e2e_s
    return TrafficLine(
        round(fact.wall_at - e2e_s, 6), route, fact.upstream or "", usage.input_total if usage is not None else None,
        usage.cached_read if usage is not None else 0, usage.output if usage is not None else None, fact.stream,
        _round(fact.ttft_s), _round(fact.tpot_s), round(e2e_s, 6), fact.status, fact.n_attempts, fact.cost_usd,
        fact.cache or "", digest_tenant(fact.tenant), format_mark(fact.body_mark), round(own_s, 6), fact.shed or "",
        tuple(map(_to_trial_row, attempts)) if len(attempts) > 1 else ())


def _to_trial_row(attempt: AttemptDone) -> TrialRow:
    return TrialRow(attempt.upstream, attempt.role, round(attempt.ended_at - attempt.began_at, 6), _round(attempt.ttft_s),
                    attempt.fault or "", attempt.upstream_status, attempt.is_lost)


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
