"""policy.resilience.cross_process: one limit of several processes."""

from collections import deque
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.policy.resilience.cross_process import SharedLimit, describe_occupancy


def _processes(n: int) -> list[SharedLimit]:
    """Views of the same cells."""
    cells = [0.0] * (2 * n)
    pairs = [(2 * each, 2 * each + 1) for each in range(n)]
    return [SharedLimit(cells, pairs[each], pairs[:each] + pairs[each + 1:]) for each in range(n)]


def test_shared_limit_counts_all_processes() -> None:
    """What the others have taken counts, and what they give back does not."""
    one, two, three = _processes(3)
    two.set_taken(4)
    three.set_taken(5)
    assert (one.n_effective(1, 20), one.n_elsewhere()) == (10, 9)
    two.set_taken(0)
    assert one.n_effective(1, 20) == 6


def test_shared_limit_process_at_its_part_leaves_rest_to_waiting() -> None:
    """All at one process; one waits at another: the place that comes free is not for the first, and is for the other."""
    one, two = _processes(2)
    one.set_taken(19)
    one.set_waiting(50)
    two.set_waiting(1)
    assert one.n_effective(19, 20) == 20
    assert two.n_effective(0, 20) == 19


def test_shared_limit_fraction_of_a_place_is_not_free() -> None:
    """A limit of 19.7 is full for a process that must leave the rest to others, too."""
    one, two = _processes(2)
    one.set_taken(19)
    two.set_waiting(1)
    assert one.n_effective(19, 19.7) >= 19.7


def test_occupancy_names_places_of_other_workers() -> None:
    """The counts of all processes, and the places reserved for others."""
    one, two = _processes(2)
    assert describe_occupancy(3, 4, None, " are") == "3 of 4 places are taken"
    two.set_taken(4)
    assert describe_occupancy(0, 4, one, " are") == "4 of 4 places are taken (4 of them by other workers)"
    two.set_taken(1)
    two.set_waiting(2)
    one.set_taken(2)
    assert describe_occupancy(2, 4, one, " were", " of lane long") == (
        "3 of 4 places of lane long were taken (1 of them by other workers), "
        "the rest is reserved for other workers' requests")


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), n=st.integers(2, 6), n_places=st.integers(1, 30))
def test_shared_limit_random_traffic_is_full_and_fair(seed: int, n: int, n_places: int) -> None:
    """Whatever comes where: places are never overdrawn, none stays free while somebody waits, and whoever waits gets one
    before all others have had thirty.
    """
    rng = Random(seed)
    processes = _processes(n)
    taken, waiting = [0] * n, [rng.choice((0, 1, 40)) for _ in range(n)]
    held: deque[int] = deque()
    since = [0] * n  # places taken by others since this one waits without any

    def turn(each: int) -> None:
        while waiting[each] and processes[each].n_effective(taken[each], n_places) < n_places:
            taken[each] += 1
            waiting[each] -= 1
            held.append(each)
            processes[each].set_taken(taken[each])
            for other in range(n):
                since[other] = since[other] + 1 if waiting[other] and not taken[other] and other != each else 0
        processes[each].set_waiting(waiting[each])

    for each in range(n):
        processes[each].set_waiting(waiting[each])
    for _ in range(300):
        for each in range(n):  # the polls, in a fixed order
            turn(each)
        assert sum(taken) <= n_places
        assert sum(taken) == n_places or not any(waiting)
        if held:
            held.rotate(rng.randrange(3))
            each = held.popleft()
            taken[each] -= 1
            processes[each].set_taken(taken[each])
            turn(each)  # whoever gives one back is the first to look
        each = rng.randrange(n)
        waiting[each] += rng.choice((0, 0, 1, 3))
        processes[each].set_waiting(waiting[each])
        if n <= n_places:
            assert max(since) <= 60 * n_places
