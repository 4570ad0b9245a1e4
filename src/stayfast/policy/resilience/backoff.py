"""How long to wait after failures in a row: exponential back-off with a cap and, where there is an rng, with jitter.

Problem: what fails at every try and is tried again at once takes a core or a connection for nothing; yet the first failure
after a healthy hour should cost as little as possible, and those that failed together should not come back together. Rule,
in seconds:

    ceiling = min(cap_s, base_s * factor ** (n_failures - 1)),  wait = (1 - jitter) * ceiling + U(0, jitter * ceiling)

Full jitter (1) spreads requests best; equal jitter (0.5) keeps a pause of at least half, for what is expensive to start.
Source: "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
When wrong: where the cause is gone long before the wait is over: then `cap_s` is too large.
"""

from stayfast.core.rng import Rng

MAX_DOUBLINGS = 64  # 2.0 ** 1024 would overflow


def backoff_s(n_failures: int, base_s: float, cap_s: float, rng: Rng | None = None, *, jitter: float = 1.0,
              factor: float = 2.0) -> float:
    """Seconds to wait after the `n_failures`-th failure in a row (1 is the first). Without an rng there is no jitter."""
    if n_failures < 1:
        raise ValueError(f"n_failures must be at least 1, not {n_failures}")
    ceiling_s = min(cap_s, base_s * factor ** min(n_failures - 1, MAX_DOUBLINGS))
    if rng is None:
        return ceiling_s
    drawn_s = jitter * ceiling_s
    return ceiling_s - drawn_s + rng.uniform(0.0, drawn_s)
