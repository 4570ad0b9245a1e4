"""How soon an upstream must be free of a client that left."""

from collections.abc import Callable

MOST_S = 0.05  # from the client's decision to the end of the upstream's connection, both SDK and gateway included
N_TRIES = 5


def within_limit(leave: Callable[[str], float], marker: str) -> None:
    """`leave` is over within the limit; it takes a word for its prompts and returns the seconds that it took.

    A machine that starves these processes may spoil a try, not all of them.
    """
    took_s: list[float] = []
    for n_try in range(N_TRIES):
        took_s.append(leave(f"{marker}-{n_try}"))
        if took_s[-1] < MOST_S:
            return
    raise AssertionError(f"the upstream's connection closed after {took_s} s")
