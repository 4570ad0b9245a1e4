"""Records of the latest requests, without prompts and keys, and grades of clients by how they handle refusals.

A retry is recognized by its body: the same client sends the same bytes after a refusal. (A hedge also sends the same bytes,
but to a provider that has not refused them.) Without refusals, the cost is one lookup in an empty mapping.
"""

from collections import deque
from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from zlib import crc32

import msgspec
from msgspec import Struct

from stayfast.lab.simulated import SimulatedHead

COMPLETE, CLIENT_LEFT = "whole", "left"


class RequestRecord(msgspec.Struct):
    """One request. `ended`: whole, left (the client disconnected), or the kind of a fault."""

    n: int  # counts from 1
    provider: str
    api: str
    model: str
    stream: bool
    asked_at: float  # seconds since the epoch
    n_prompt_tokens: int
    status: int | None = None  # None: no head was sent
    ended: str | None = None  # None: still running
    first_byte_s: float | None = None  # to the head
    first_chunk_s: float | None = None  # to the first bytes of a streamed body
    seconds: float | None = None
    n_chunks: int = 0
    n_tokens_unread: int = 0  # generated for a client that disconnected before the end


class RequestRecords:
    """The latest requests. Single loop."""

    __slots__ = ("_n", "_records")

    def __init__(self, capacity: int) -> None:
        self._records: deque[RequestRecord] = deque(maxlen=capacity)
        self._n = 0

    def next_number(self) -> int:
        self._n += 1
        return self._n

    def add(self, record: RequestRecord) -> None:
        self._records.append(record)

    def latest(self, n: int) -> Iterable[RequestRecord]:
        return islice(reversed(self._records), n)

    def clear(self) -> None:
        """Remove all; numbers restart."""
        self._records.clear()
        self._n = 0

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<RequestRecords: {len(self._records)} of {self._n}>"


MIN_BACKOFF_S = 0.05  # a retry sooner than this after an error has no backoff
MAX_RETRIES = 3  # of one request; more are a retry storm
RETRY_AFTER_TOLERANCE = 0.95  # share of a Retry-After, to allow for clocks and rounding
MAX_REFUSED = 1000  # stored refused requests per client
MAX_CLIENTS = 1000
TOO_MANY, SERVER_ERROR = 429, 500  # HTTP's


class ClientGrade(Struct):
    """The behaviour of one client after refusals, in numbers of requests."""

    n_refused: int = 0  # answered 429 or 5xx
    n_retries: int = 0  # of refused requests
    retry_after_ignored: int = 0
    no_backoff: int = 0
    retry_storm: int = 0


class _RefusedRequest(Struct):
    at: float
    retry_after_s: float | None
    n_retries: int


class ClientGrades:
    """The grades of all clients, by API key. Single loop."""

    __slots__ = ("_grades", "_refused")

    def __init__(self) -> None:
        self._grades: dict[bytes, ClientGrade] = {}
        self._refused: dict[bytes, dict[int, _RefusedRequest]] = {}

    @property
    def n_refused_in_memory(self) -> int:
        """Refused requests whose retries can be recognized."""
        return sum(map(len, self._refused.values()))

    def note_request(self, client: bytes, body: bytes, now: float) -> None:
        """Record a request. `now`: monotonic seconds."""
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
        if before.retry_after_s is not None and waited_s < before.retry_after_s * RETRY_AFTER_TOLERANCE:
            grade.retry_after_ignored += 1
        elif waited_s < MIN_BACKOFF_S:
            grade.no_backoff += 1
        if before.n_retries > MAX_RETRIES:
            grade.retry_storm += 1

    def note_answer(self, client: bytes, body: bytes, now: float, head: SimulatedHead) -> None:
        if head.status != TOO_MANY and head.status < SERVER_ERROR:
            if client in self._refused:
                self._refused[client].pop(crc32(body), None)
            return
        if client not in self._grades and len(self._grades) >= MAX_CLIENTS:
            return
        self._grades.setdefault(client, ClientGrade()).n_refused += 1
        refused = self._refused.setdefault(client, {})
        before = refused.pop(crc32(body), None)
        if len(refused) >= MAX_REFUSED:
            del refused[next(iter(refused))]
        retry_after_s = next((float(value) for name, value in head.headers if name == "retry-after"), None)
        refused[crc32(body)] = _RefusedRequest(now, retry_after_s, before.n_retries if before is not None else 0)

    def report(self) -> dict[str, ClientGrade]:
        """The grade of each client, by the first digits of its key's digest."""
        return {sha256(client).hexdigest()[:12] if client else "no key": grade for client, grade in self._grades.items()}

    def clear(self) -> None:
        self._grades.clear()
        self._refused.clear()
