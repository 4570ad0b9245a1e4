"""How long to wait before a crashed engine is started again.

Problem: a model that cannot load crashes at every start, and starting it in a tight loop takes a core from the gateway;
yet the first crash after a healthy hour should cost as little as possible. Rule, in seconds:

    ceiling = min(cap_s, base_s * 2 ** (n_failures - 1)),  wait = ceiling / 2 + U(0, ceiling / 2)

Half is fixed so that there always is a pause; half is drawn so that gateways on one machine do not load in step.
Source: "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015), equal jitter.
"""

from random import Random


def restart_delay_s(n_failures: int, base_s: float, cap_s: float, rng: Random) -> float:
    """Seconds to wait after the `n_failures`-th failure in a row (1 is the first)."""
    if n_failures < 1:
        raise ValueError(f"n_failures must be at least 1, not {n_failures}")
    ceiling_s = min(cap_s, base_s * 2.0 ** min(n_failures - 1, 64))  # 2.0 ** 1024 would overflow
    return ceiling_s / 2 + rng.uniform(0.0, ceiling_s / 2)
