"""policy.engine.slots: conversations find their slot again."""

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.engines.slots import HALF_LIFE_S, SlotMap

HEAD = [1, 2, 3, 4, 5, 6]  # instructions that all conversations have


def take(slots: SlotMap, blocks: list[int], now: float) -> int:
    """One request that ends at once."""
    number = slots.begin(blocks, now)
    slots.end(number, now)
    return number


def test_slot_map_conversation_returns_to_its_slot() -> None:
    """With the same instructions everywhere, in any order."""
    slots = SlotMap(4)
    first = {n: take(slots, [*HEAD, 10 * n, 10 * n + 1], float(n)) for n in range(4)}
    assert len(set(first.values())) == 4
    for n in (2, 0, 3, 1):
        assert take(slots, [*HEAD, 10 * n, 10 * n + 1, 10 * n + 2], 9.0 + n) == first[n]


def test_slot_map_new_conversation_overwrites_longest_unused() -> None:
    slots = SlotMap(2)
    first = take(slots, [*HEAD, 10, 11], 0.0)
    second = take(slots, [*HEAD, 20, 21], 1.0)
    take(slots, [*HEAD, 10, 11, 12], 2.0)
    assert take(slots, [*HEAD, 30, 31], 3.0) == second != first


def test_slot_map_stale_history_gives_way_to_its_instructions() -> None:
    """After hours, the computed instructions are worth more than a history that hardly returns."""
    slots = SlotMap(2)
    first = take(slots, [*HEAD, 10, 11], 0.0)
    assert take(slots, [*HEAD, 20, 21], 20 * HALF_LIFE_S) == first


def test_slot_map_busy_slot_is_left_alone() -> None:
    """The second request of a conversation takes an idle slot; a third one waits at one of the two."""
    slots = SlotMap(4)
    one = slots.begin([1, 2], 0.0)
    other = slots.begin([1, 2], 1.0)
    assert one != other
    assert slots.begin([1, 2], 2.0) in (one, other)
    assert slots.begin([7, 8], 3.0) not in (one, other)


def test_slot_map_all_busy_takes_fewest_requests() -> None:
    slots = SlotMap(2)
    taken = [slots.begin([n], float(n)) for n in range(4)]
    assert sorted(taken) == [0, 0, 1, 1]


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60))
def test_slot_map_slots_stay_in_range_and_balanced(n_slots: int, requests: list[tuple[int, bool]]) -> None:
    """No slot gets a second request while another one of a different conversation is idle, within the bound."""
    slots = SlotMap(n_slots)
    running: list[int] = []
    for at, (session, ends) in enumerate(requests):
        number = slots.begin([session, session + 100], float(at))
        assert 0 <= number < n_slots
        running.append(number)
        if ends:
            slots.end(running.pop(0), float(at))
    for number in running:
        slots.end(number, 100.0)
    assert len({slots.begin([1000 + n], 101.0) for n in range(n_slots)}) == n_slots
