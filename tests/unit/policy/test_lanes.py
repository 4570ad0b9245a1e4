"""policy.admission.lanes: the lane of a request, its room, lending between lanes, and that no lane starves."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.policy.admission.fair_share import TenantShare
from stayfast.policy.admission.lanes import BATCH_BAND, Lane, Lanes, LanesConfig
from stayfast.policy.admission.queue import QueueConfig, QueueEntry

QUEUE = QueueConfig(max_queue=1000, max_wait_s=600, target_wait_s=600)
BAND = 2


class Hall:
    """Lanes with places, as their owner runs them; `log` lists the requests in order of their start."""

    def __init__(self, n_places: int = 12, **config: Any) -> None:
        self.lanes: Lanes[int] = Lanes(LanesConfig(**config), QUEUE, n_places, 0.0)
        self.n_places = n_places
        self.now = 0.0
        self.share = TenantShare("all")
        self.running: list[tuple[Lane[int], bool]] = []  # and whether it has its first token
        self.log: list[str] = []

    def lane(self, name: str) -> Lane[int]:
        """By its name."""
        return next(lane for lane in self.lanes.all if lane.name == name)

    def come(self, name: str, n: int = 1) -> None:
        """Requests arrive, and go on where there is room."""
        lane = self.lane(name)
        for _ in range(n):
            lane.queue.push(QueueEntry(0, BAND, self.share, self.now, self.now + 1e6))
        self.let_in()

    def let_in(self) -> None:
        """All that may go on do."""
        for lane in self.lanes.all:
            while self.called(lane):
                self.lanes.start_request(lane, self.now)
                self.running.append((lane, False))
                self.log.append(lane.name)

    def called(self, lane: Lane[int]) -> bool:
        """Whether one of a lane was taken from its queue."""
        return lane.queue.pop(lambda band: self.has_room(lane, band)) is not None

    def has_room(self, lane: Lane[int], band: int = BAND) -> bool:
        """As the places ask."""
        n_open = self.n_places - len(self.running)
        has_room = self.lanes.has_room(lane, band, n_open, 0, self.now)
        assert has_room or n_open <= 0 or not self.lanes.has_guaranteed_room(lane, band)
        return has_room

    def first_token(self, index: int) -> None:
        """Of one that runs."""
        lane, has_first = self.running[index]
        if not has_first:
            self.lanes.end_prefill(lane)
            self.running[index] = (lane, True)
            self.let_in()

    def end(self, index: int) -> None:
        """One that runs is over."""
        self.first_token(index)
        lane, _ = self.running.pop(index)
        self.lanes.end_request(lane, self.now)
        self.let_in()

    def end_one(self, name: str) -> None:
        """The oldest of a lane."""
        self.end(next(index for index, (lane, _) in enumerate(self.running) if lane.name == name))

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many run in each."""
        short, long, batch = (lane.n_running for lane in self.lanes.all)
        return short, long, batch


def test_lanes_of_request_by_band_and_size() -> None:
    """Batch by its band, long by prompt or answer, else short."""
    lanes = Hall().lanes
    assert lanes.lane_for(BAND, 3999, 3999) is lanes.short
    assert lanes.lane_for(BAND, 4000, 0) is lanes.long
    assert lanes.lane_for(BAND, 0, 4000) is lanes.long
    assert lanes.lane_for(BATCH_BAND, 1, 1) is lanes.batch


def test_lanes_shares_are_whole_places() -> None:
    """At least one each; what long and batch leave is the short lane's."""
    assert [lane.n_entitled for lane in Hall(12).lanes.all] == [8, 3, 1]
    assert [lane.n_entitled for lane in Hall(3).lanes.all] == [1, 1, 1]
    assert [lane.n_entitled for lane in Hall(100).lanes.all] == [65, 25, 10]


def test_lanes_contending_lanes_get_their_shares() -> None:
    """Whichever lane came first: as places are released, each lane gets its share."""
    hall = Hall()
    hall.come("short", 50)
    assert hall.counts == (12, 0, 0)
    hall.come("long", 50)
    hall.come("batch", 50)
    for _ in range(4):
        hall.end_one("short")
    assert hall.counts == (8, 3, 1)
    for name in ("short", "long", "batch", "long", "short"):
        hall.end_one(name)
        assert hall.counts == (8, 3, 1)


def test_lanes_long_never_borrows_last_short_place() -> None:
    """Idle for long or not: one is always open, and what short ones have lately used, too."""
    hall = Hall()
    hall.come("long", 50)
    assert hall.counts == (0, 11, 0)
    hall.come("short")
    assert hall.counts[0] == 1
    hall = Hall()
    hall.come("short", 5)
    for _ in range(5):
        hall.end_one("short")
    hall.come("long", 50)
    assert hall.counts == (0, 6, 0)  # five used lately, one more open
    hall.now = 100.0
    hall.let_in()
    assert hall.counts == (0, 11, 0)  # that was long ago


def test_lanes_max_prefills_bounds_waiting_prefills() -> None:
    """The next one goes on with the first token of the one before, or its end; short ones do not care."""
    hall = Hall(max_prefills=1)
    hall.come("long", 3)
    hall.come("batch", 1)
    assert hall.counts == (0, 1, 0)
    hall.come("short", 20)
    assert hall.counts == (11, 1, 0)  # places that the waiting ones cannot use are lent
    hall.first_token(0)
    assert hall.counts == (11, 1, 0)
    for _ in range(3):
        hall.end_one("short")
    assert hall.counts[1] == 2
    assert hall.lanes.long.n_prefilling == 1


def test_lanes_apart_never_mixes_short_and_others() -> None:
    """Short requests wait for the turn of the others to end, and the others for the short ones to drain."""
    hall = Hall(isolate_short=True, long_share=0.4)
    hall.come("short", 3)
    hall.come("long", 6)
    hall.come("short", 1)
    assert hall.counts == (3, 0, 0)  # a turn is due: nobody short goes on
    for _ in range(3):
        hall.end_one("short")
    assert hall.counts == (0, 5, 0)  # their four places, and the one that nobody's batch uses
    hall.now = 1.0
    hall.end_one("long")
    assert hall.counts == (0, 4, 0)  # their turn is not prolonged
    for _ in range(4):
        hall.end_one("long")
    assert hall.counts == (1, 0, 0)  # it took a second, for half of the time
    hall.come("short", 2)
    assert hall.counts == (3, 0, 0)
    hall.now = 2.1
    hall.come("short", 1)
    assert hall.counts == (3, 0, 0)
    for _ in range(3):
        hall.end_one("short")
    assert hall.counts == (0, 1, 0)


EVENT = st.tuples(st.sampled_from(("short", "long", "batch", "first", "end", "wait")), st.integers(0, 30))


@settings(max_examples=200)
@given(st.lists(EVENT, max_size=80), st.integers(3, 20), st.sampled_from((None, 1, 2)), st.booleans())
def test_lanes_random_traffic_starves_no_lane(events: list[tuple[str, int]], n_places: int, max_prefills: int | None,
                                            apart: bool) -> None:
    """After every event: no more run than places, no lane waits within its share while a place is free, nobody borrows while
    one does; in the end all have run and nothing is left.
    """
    hall = Hall(n_places, max_prefills=max_prefills, isolate_short=apart)
    n_came = 0
    for what, n in events:
        began = len(hall.log)
        ended = hall.running[n % len(hall.running)][0].name if hall.running else ""
        wanted = [lane for lane in hall.lanes.all if lane.queue.n and lane.n_running < lane.n_entitled]
        if what in ("short", "long", "batch"):
            hall.come(what, 1 + n % 4)
            n_came += 1 + n % 4
        elif what == "wait":
            hall.now += n
            hall.let_in()
        elif hall.running:
            (hall.first_token if what == "first" else hall.end)(n % len(hall.running))
        check(hall, n_places, max_prefills, apart=apart)
        if max_prefills is None and not apart and wanted and len(hall.log) > began and what == "end":
            assert hall.log[began] in [ended, *[lane.name for lane in wanted]]
    drain(hall)
    assert len(hall.log) == n_came
    assert hall.counts == (0, 0, 0)
    assert [(lane.n_prefilling, lane.queue.n) for lane in hall.lanes.all] == [(0, 0)] * 3


def check(hall: Hall, n_places: int, max_prefills: int | None, *, apart: bool) -> None:
    """What always holds."""
    short, long, batch = hall.counts
    assert len(hall.running) == short + long + batch <= n_places
    n_prefilling = hall.lanes.long.n_prefilling + hall.lanes.batch.n_prefilling
    assert 0 <= n_prefilling <= (max_prefills or n_places)
    if apart:
        assert not (short and (long or batch))
    elif len(hall.running) < n_places:
        can_prefill = max_prefills is None or n_prefilling < max_prefills
        for lane in hall.lanes.all:
            if lane is hall.lanes.short or can_prefill:
                assert not (lane.queue.n and lane.n_running < lane.n_entitled)


def drain(hall: Hall) -> None:
    """All end one after the other, and the waiting requests start."""
    for _ in range(10_000):
        if not hall.running and not hall.lanes.n_waiting:
            return
        hall.now += 1.0
        hall.let_in()
        if hall.running:
            hall.end(0)
    raise AssertionError("somebody waits for ever")


@pytest.mark.parametrize(("wrong", "words"), [
    ({"long_input_tokens": 0}, "long_input_tokens must be from 1"),
    ({"long_output_tokens": 0}, "long_output_tokens must be from 1"),
    ({"long_share": 0.95}, "long_share must be from 0.001 to 0.9"), ({"batch_share": 0.0}, "batch_share must be from"),
    ({"long_share": 0.6, "batch_share": 0.5}, "long_share must be at most 0.95 together with batch_share, not 1.1"),
    ({"long_wait_s": 0}, "long_wait_s must be from"), ({"max_prefills": 0}, "max_prefills must be from 1"),
])
def test_lanes_config_out_of_bounds_is_rejected(wrong: dict[str, Any], words: str) -> None:
    """Which setting, and what it may be."""
    with pytest.raises(ValueError, match=words):
        LanesConfig(**wrong)


def test_lanes_repr_names_each_lane() -> None:
    """Each lane: running of entitled, waiting."""
    hall = Hall()
    hall.come("long", 20)
    assert repr(hall.lanes).startswith("<Lanes short 0 of 8, 0 waiting; long ")


def test_lanes_held_back_places_are_not_lent() -> None:
    """In the short lane of 13 of 20 two are held back; a lower band goes on beyond them with what is idle, but for two."""
    lanes: Lanes[int] = Lanes(LanesConfig(), QUEUE, 20, 0.1)
    lanes.short.hold_back.seen_at[0] = 0.0
    lane = lanes.short
    assert (lane.n_entitled, lane.hold_back.ceiling(1, 0.0)) == (13, 11)
    for n_taken in range(20):
        assert lanes.has_room(lane, 0, 20 - n_taken, 0, 0.0)
        assert lanes.has_room(lane, 1, 20 - n_taken, 2, 0.0) is (n_taken < 18)
        assert lanes.has_guaranteed_room(lane, 1) is (n_taken < 11)
        lanes.start_request(lane, 0.0)
