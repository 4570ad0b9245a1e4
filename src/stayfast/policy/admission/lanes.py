"""Lanes: short, long and batch requests share the places without blocking each other.

Problem: a prompt a hundred times as long as the others occupies an engine's prefill; with 1 such in 50 the p99 of the short
ones is the long one's time. Rule: each request has a lane,

    batch   requests of band batch
    long    prompt >= long_input_tokens, or predicted answer >= long_output_tokens
    short   all others

and each lane has a queue and a share of the places, `entitled`; the short lane has what the others leave. A lane below its
share gets the next free place. It may borrow beyond its share if the others are then still left

    left to a lane = max(0, min(entitled, need) - running)
    need           = entitled                          if one of its own requests waits (and could run, see max_prefills)
                   = peak of the last 15 to 30 s       of a long or batch lane, when another long or batch lane borrows
                   = that peak + 1                     of the short lane: its last place is never lent
                   = 0                                 when the short lane borrows, as short requests end soon

At most `max_prefills` requests of the long and batch lanes wait for a first token at a time, so short ones wait behind one
long prefill, not behind one in each place. For engines with static batches, `isolate_short` runs short and other requests
in turns. A turn of the others begins when no short request waits, or when it is due, with the requests that have room then:

    due = end + length * (1 - s) / s,     s: the shares of long and batch
Source: multi-queue scheduling by predicted size (SITA; Harchol-Balter, 2000); share and loan as in Hadoop's capacity
scheduler; the limit of prefills from chunked-prefill measurements (Sarathi-Serve, OSDI'24).
When wrong: if all requests are long, lanes only cost capacity; the saving of a prompt cache is known only for the tenant's
mean prompt; several upstreams share one set of lanes, as they share the places.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Generic, TypeVar

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.admission.fair_share import RunningPeak
from stayfast.policy.admission.priority import BANDS, HoldBack
from stayfast.policy.admission.queue import Queue, QueueConfig

T = TypeVar("T")
LANES = ("short", "long", "batch")
BATCH_BAND = BANDS.index("batch")
LEAST_PLACES = len(LANES)
MOST_SHARE = 0.95  # of long and batch
_MAX_TOKENS = 100_000_000


@dataclass(frozen=True, slots=True)
class LanesConfig:
    """The bounds of the lanes, in tokens, and their shares. `long_wait_s`, `batch_wait_s`: None: as in QueueConfig."""

    long_input_tokens: Annotated[int, SettingDoc(
        "Longer prompts are long; tokens from the prompt cache do not count.", minimum=1, maximum=_MAX_TOKENS)] = 4000
    long_output_tokens: Annotated[int, SettingDoc(
        "Longer predicted answers are long.", minimum=1, maximum=_MAX_TOKENS)] = 4000
    long_share: Annotated[float, SettingDoc("The long lane's share of the slots.", minimum=0.001, maximum=0.9)] = 0.25
    batch_share: Annotated[float, SettingDoc(
        "The batch lane's share of the slots; the short lane has the rest.", minimum=0.001, maximum=0.9)] = 0.1
    long_wait_s: Annotated[float | None, SettingDoc(
        "Longest wait of a long request. null: admission's `max_wait_s` and `target_wait_s`.",
        minimum=0.001, maximum=3600)] = None
    batch_wait_s: Annotated[float | None, SettingDoc("The same for the batch lane.", minimum=0.001, maximum=3600)] = None
    max_prefills: Annotated[int | None, SettingDoc(
        "Most long and batch requests waiting for their first token, per worker. null: no extra limit.",
        minimum=1, maximum=100_000)] = None
    isolate_short: Annotated[bool, SettingDoc(
        "Short requests never run together with others: for engines with static batching.")] = False

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.long_share + self.batch_share > MOST_SHARE:
            raise ValueError(f"long_share must be at most {MOST_SHARE} together with batch_share, not "
                             f"{self.long_share + self.batch_share:.3g}")


def _with_wait(queue: QueueConfig, wait_s: float | None) -> QueueConfig:
    """The configuration with a lane's own wait, which is not shortened for a standing queue: long waits are normal there."""
    return queue if wait_s is None else replace(queue, max_wait_s=wait_s, target_wait_s=wait_s)


class Lane(RunningPeak, Generic[T]):
    """One lane. Changed by its `Lanes` only, except for the queue."""

    __slots__ = ("hold_back", "n_entitled", "n_prefilling", "name", "queue")

    def __init__(self, name: str, queue: QueueConfig) -> None:
        super().__init__()
        self.name = name
        self.queue: Queue[T] = Queue(queue)
        self.n_entitled = 0
        self.n_prefilling = 0  # running requests without a first token
        self.hold_back = HoldBack(0, 0.0)  # its own places, by band

    def start_request(self, now: float) -> None:
        if now >= self.slot_ends_at:
            self.recent_peak(now)
        self.n_running = n = self.n_running + 1
        self.n_prefilling += 1
        if n > self.peak_now:
            self.peak_now += 1

    def __repr__(self) -> str:
        return f"{self.name} {self.n_running} of {self.n_entitled}, {self.queue.n} waiting"


class Lanes(Generic[T]):
    """All lanes over one set of places. Pure state; instants never go back."""

    __slots__ = ("_config", "_n_places", "_turn_at", "_turn_due_at", "all", "batch", "long", "short")

    def __init__(self, config: LanesConfig, queue: QueueConfig, n_places: int, hold_back: float) -> None:
        self.all: tuple[Lane[T], ...] = tuple(Lane(name, queue) for name in LANES)
        self.short, self.long, self.batch = self.all
        self._turn_at = -inf  # start of the last turn of long and batch requests (`isolate_short`)
        self._turn_due_at = -inf
        self.configure(config, queue, n_places, hold_back)

    def configure(self, config: LanesConfig, queue: QueueConfig, n_places: int, hold_back: float) -> None:
        """Change the shares; running requests continue. `n_places` is at least LEAST_PLACES."""
        self._config, self._n_places = config, n_places
        n_long, n_batch = max(1, int(n_places * config.long_share)), max(1, int(n_places * config.batch_share))
        entitled = (max(1, n_places - n_long - n_batch), n_long, n_batch)
        configs = (queue, _with_wait(queue, config.long_wait_s), _with_wait(queue, config.batch_wait_s))
        for lane, n_entitled, lane_config in zip(self.all, entitled, configs, strict=True):
            lane.n_entitled, lane.queue.config = n_entitled, lane_config
            lane.hold_back = HoldBack(n_entitled, hold_back)

    def lane_for(self, band: int, n_input: float, n_output: float) -> Lane[T]:
        if band == BATCH_BAND:
            return self.batch
        config = self._config
        return self.long if n_input >= config.long_input_tokens or n_output >= config.long_output_tokens else self.short

    @property
    def target_wait_s(self) -> float:
        return min(lane.queue.config.target_wait_s for lane in self.all)

    @property
    def n_waiting(self) -> int:
        return self.short.queue.n + self.long.queue.n + self.batch.queue.n

    def least_served(self) -> float | None:
        """The least service of the waiting tenants, in any lane; None if none waits."""
        served = [least for lane in self.all if (least := lane.queue.least_served()) is not None]
        return min(served) if served else None

    def has_room(self, lane: Lane[T], band: int, n_open: int, n_held: int, now: float) -> bool:
        """Whether one more request of a lane and band may run. `n_open` places are free and not reserved for other tenants;
        `n_held` of them are held back for higher bands, and are not lent.
        """
        if n_open <= 0 or (lane is not self.short and self._n_prefills_left() <= 0):
            return False
        if self._config.isolate_short and not self._has_turn(lane, now):
            return False
        if lane.n_running < lane.hold_back.ceiling(band, now):
            return True
        n_own_held = lane.n_entitled - lane.n_running  # of the lane's own places, held back for higher bands
        return n_open > max(n_held, n_own_held) + self._n_left_to_others(lane, now)

    def has_guaranteed_room(self, lane: Lane[T], band: int) -> bool:
        """Whether any open place is enough for one more request, so that `has_room` need not be called."""
        return lane is self.short and lane.n_running < lane.hold_back.guaranteed[band] and not self._config.isolate_short

    def start_request(self, lane: Lane[T], now: float) -> None:
        if lane is not self.short and not self.long.n_running + self.batch.n_running:
            self._turn_at = now
        lane.start_request(now)

    def end_prefill(self, lane: Lane[T]) -> None:
        """A request of a lane got its first token, or ended without one."""
        lane.n_prefilling -= 1

    def end_request(self, lane: Lane[T], now: float) -> None:
        """A request of a lane ended; `end_prefill` has been called."""
        lane.n_running -= 1
        if lane is not self.short and not self.long.n_running + self.batch.n_running:
            share = self._config.long_share + self._config.batch_share
            self._turn_due_at = now + (now - self._turn_at) * (1 - share) / share

    def depths(self) -> Iterator[tuple[str, int]]:
        """The number of waiting requests by lane and band: long/standard."""
        for lane in self.all:
            for band, n in lane.queue.depths():
                yield f"{lane.name}/{band}", n

    def _n_prefills_left(self) -> int:
        most = self._config.max_prefills
        return self._n_places if most is None else most - self.long.n_prefilling - self.batch.n_prefilling

    def _n_left_to_others(self, borrower: Lane[T], now: float) -> int:
        n_left = 0
        for lane in self.all:
            if lane is borrower or (borrower is self.short and self._config.isolate_short):
                continue  # with `isolate_short`, the others never run together with it
            if lane is self.short:
                need = lane.n_entitled if lane.queue.n else lane.recent_peak(now) + 1
            elif lane.queue.n:
                need = lane.n_running + self._n_prefills_left()
            else:
                need = 0 if borrower is self.short else lane.recent_peak(now)
            n_left += max(0, min(lane.n_entitled, need) - lane.n_running)
        return n_left

    def _has_turn(self, lane: Lane[T], now: float) -> bool:
        n_others = self.long.n_running + self.batch.n_running
        is_due = now >= self._turn_due_at
        if lane is self.short:
            return not n_others and not (is_due and (self.long.queue.n or self.batch.queue.n))
        if self.short.n_running:
            return False
        return now <= self._turn_at if n_others else is_due or not self.short.queue.n

    def __repr__(self) -> str:
        return f"<Lanes {'; '.join(map(repr, self.all))}>"
