"""The last requests in memory, for `stayfast explain` and /admin/requests.

Two rings: all requests, and the notable ones (slow, failed, abandoned, degraded, stalled, retried), which busy traffic would
push out of the first within seconds. Facts are stored as msgpack: as objects, a thousand requests take 2 MB and would
displace other data from the processor's cache.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from stayfast.core.events import RequestDone
from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.observe.fact_batch import FactHandlers

_MAX_FACT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RecentConfig:
    size: Annotated[int, SettingDoc(
        "Requests remembered, and as many slow or failed ones; 0: none.", minimum=0, maximum=100_000)] = 1000
    slow_s: Annotated[float, SettingDoc("A later first token is slow.", more_than=0)] = 2.0
    max_bytes: Annotated[int, SettingDoc(
        "Memory for each of the two lists.", minimum=65_536, maximum=1_073_741_824)] = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        check_bounds(self)


class Ring:
    """The newest facts, up to `size` and `max_bytes`."""

    __slots__ = ("_config", "_facts", "_n_bytes")

    def __init__(self, config: RecentConfig) -> None:
        self._config = config
        self._facts: deque[bytes] = deque()
        self._n_bytes = 0

    def add_all(self, more: list[bytes]) -> None:
        """Append facts and drop the oldest beyond the bounds."""
        facts, config = self._facts, self._config
        facts.extend(more)
        self._n_bytes += sum(map(len, more))
        while len(facts) > config.size or (self._n_bytes > config.max_bytes and facts):
            self._n_bytes -= len(facts.popleft())

    def __iter__(self) -> Iterator[bytes]:
        return reversed(self._facts)

    def __len__(self) -> int:
        return len(self._facts)


class RecentRequests:
    """Consumes facts into both rings. For one event loop."""

    def __init__(self, config: RecentConfig) -> None:
        self._config = config
        self._all = Ring(config)
        self._notable = Ring(config)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(RequestDone)

    @property
    def handlers(self) -> FactHandlers:
        return {RequestDone: self._store}

    def _store(self, facts: Sequence[RequestDone]) -> None:
        every: list[bytes] = []
        notable: list[bytes] = []
        encode = self._encoder.encode
        for fact in facts:
            packed = encode(fact)
            if len(packed) <= _MAX_FACT_BYTES:  # one huge fact must not displace all others
                every.append(packed)
                if self.is_notable(fact):
                    notable.append(packed)
        self._all.add_all(every)
        self._notable.add_all(notable)

    def is_notable(self, fact: RequestDone) -> bool:
        return (fact.status >= 400 or len(fact.attempts) > 1 or fact.over_stage is not None or fact.degraded is not None
                or (fact.ttft_s is not None and fact.ttft_s >= self._config.slow_s)
                or bool(fact.attempts and fact.attempts[0].stalls))

    def find_by_id(self, request_id: str) -> Iterator[RequestDone]:
        """Requests with this id, newest first. Clients may choose it, so several can have the same. The id of a job finds
        the requests of its claims (`<job>-<claim>`).
        """
        key = request_id.encode()
        found = (self._decoder.decode(packed) for ring in (self._all, self._notable) for packed in ring if key in packed)
        return (fact for fact in found if request_id in (fact.request_id, _job_of(fact.request_id)))

    def newest_first(self, *, is_notable: bool = False) -> Iterator[RequestDone]:
        """The requests at the time of the call; later ones do not disturb the iteration."""
        return map(self._decoder.decode, list(self._notable if is_notable else self._all))

    def both_lists(self) -> Iterator[RequestDone]:
        """Each stored request once, in no order."""
        return map(self._decoder.decode, list({*self._notable, *self._all}))


def _job_of(request_id: str) -> str | None:
    return request_id.rpartition("-")[0] if request_id.startswith("job_") else None
