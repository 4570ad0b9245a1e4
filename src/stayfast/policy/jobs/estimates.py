"""How long a queued job will wait.

Problem: a client that sees its place in the queue wants to know whether to wait. Rule: jobs leave the queue as fast as they
left it lately.

    seen      = (first place - place) / seconds since the first place        jobs a second, once the place has moved
    finished  = (n - 1) / (last end - first end)                             of the last n jobs of the same route that ended
    run_s     = mean time that these ran
    wait_s    = (place - 1) / seen, else min((place - 1) / finished, (place - 1) * run_s); place 1: 0

The second bound is the wait if the jobs ran one by one: after an idle time, `finished` is too low. Source: Little's law.
When wrong: right after the start, when rates change, and for a job that more urgent ones overtake. Without any ended job
there is no estimate.
"""

from collections.abc import Sequence


def estimate_wait_s(place: int, seen_per_s: float | None, ended: Sequence[tuple[float, float]]) -> float | None:
    """place: from 1. seen_per_s: places gained a second; None: it has not moved. ended: start and end of each job that ended
    lately, in seconds of any clock. Returns seconds; None: unknown.
    """
    n_ahead = place - 1
    if n_ahead <= 0:
        return 0.0
    if seen_per_s is not None and seen_per_s > 0:
        return n_ahead / seen_per_s
    if not ended:
        return None
    serial_s = n_ahead * sum(max(0.0, end - start) for start, end in ended) / len(ended)
    ends = [end for _, end in ended]
    span_s = max(ends) - min(ends)
    return min(serial_s, n_ahead * span_s / (len(ended) - 1)) if span_s > 0 else serial_s
