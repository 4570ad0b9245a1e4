"""What was asked of late, without prompts and keys, and how clients behave when they are refused.

What a provider would call abuse is counted by client. A retry is told from new work by its body: the same client sends the
same bytes again after it was refused. (Hedges send the same bytes too, but to a provider that has not refused them.) A
healthy run costs one look into an empty mapping.
"""

from collections import deque
from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from zlib import crc32

import msgspec
from msgspec import Struct

from stayfast.lab.simulated import SimulatedHead

WHOLE, LEFT = "whole", "left"


class RequestRecord(msgspec.Struct):
    """One request. Changed by its Task until `ended` is set: whole, left (the client went), or how we broke it off."""

    n: int  # counts from 1
    provider: str
    api: str
    model: str
    stream: bool
    asked_at: float  # seconds since the epoch
    n_prompt_tokens: int
    status: int | None = None  # None: no head was sent
    ended: str | None = None  # None: under way
    first_byte_s: float | None = None  # to the head
    first_chunk_s: float | None = None  # to the first bytes of a streamed body
    seconds: float | None = None
    n_chunks: int = 0
    n_tokens_unread: int = 0  # generated for a client that had left before the end


class Records:
    """The last requests. One loop's."""

    __slots__ = ("_n", "_records")

    def __init__(self, capacity: int) -> None:
        self._records: deque[RequestRecord] = deque(maxlen=capacity)
        self._n = 0

    def next_number(self) -> int:
        self._n += 1
        return self._n

    def keep(self, record: RequestRecord) -> None:
        self._records.append(record)

    def last(self, n: int) -> Iterable[RequestRecord]:
        return islice(reversed(self._records), n)

    def clear(self) -> None:
        """Forget all; numbers begin again."""
        self._records.clear()
        self._n = 0

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<Records: {len(self._records)} of {self._n}>"


AT_ONCE_S = 0.05  # sooner than this after an error is no back-off
MOST_RETRIES = 3  # of one request; more are a storm
EARLY = 0.95  # of a Retry-After: what clocks and rounding may differ
MAX_OPEN = 1000  # refused requests remembered for each client
MAX_CLIENTS = 1000
TOO_MANY, SERVER_ERROR = 429, 500  # HTTP's


class Grade(Struct):
    """What one client did. Each count is of requests that should not have been sent when they were."""

    n_refused: int = 0  # answers of 429 and 5xx to it
    n_retries: int = 0  # requests that had been refused before
    retry_after_ignored: int = 0
    no_backoff: int = 0
    retry_storm: int = 0


class _Refused(Struct):
    at: float
    retry_after_s: float | None
    n_retries: int


class Grades:
    """All clients' grades; a client is an API key. One loop's."""

    __slots__ = ("_grades", "_refused")

    def __init__(self) -> None:
        self._grades: dict[bytes, Grade] = {}
        self._refused: dict[bytes, dict[int, _Refused]] = {}

    def note_request(self, client: bytes, body: bytes, now: float) -> None:
        """A request came. `now`: monotonic seconds."""
        refused = self._refused.get(client)
        if not refused:
            return
        before = refused.get(crc32(body))
        if before is None:
            return
        grade = self._grades[client]
        grade.n_retries += 1
        before.n_retries += 1
        waited_s = now - before.at
        if before.retry_after_s is not None and waited_s < before.retry_after_s * EARLY:
            grade.retry_after_ignored += 1
        elif waited_s < AT_ONCE_S:
            grade.no_backoff += 1
        if before.n_retries > MOST_RETRIES:
            grade.retry_storm += 1

    def note_answer(self, client: bytes, body: bytes, now: float, head: SimulatedHead) -> None:
        if head.status != TOO_MANY and head.status < SERVER_ERROR:
            if client in self._refused:
                self._refused[client].pop(crc32(body), None)
            return
        if client not in self._grades and len(self._grades) >= MAX_CLIENTS:
            return
        self._grades.setdefault(client, Grade()).n_refused += 1
        refused = self._refused.setdefault(client, {})
        before = refused.pop(crc32(body), None)
        if len(refused) >= MAX_OPEN:
            del refused[next(iter(refused))]
        retry_after_s = next((float(value) for name, value in head.headers if name == "retry-after"), None)
        refused[crc32(body)] = _Refused(now, retry_after_s, before.n_retries if before is not None else 0)

    def report(self) -> dict[str, Grade]:
        """Every client's grade, by the beginning of its key's digest."""
        return {sha256(client).hexdigest()[:12] if client else "no key": grade for client, grade in self._grades.items()}

    def clear(self) -> None:
        self._grades.clear()
        self._refused.clear()
