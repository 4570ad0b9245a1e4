"""How long a job still takes, from what this process has seen.

Problem: a client that waits for a job polls too often, or too late, if it does not know the queue's speed.
Rule: by route, a mean of the run times of completed jobs, newer ones with more weight; with the queue's own number of
running jobs as places. Without a completed job of the route the time is unknown.

    mean = mean + (run - mean) / min(number of runs, MEMORY)
    wait = max(0, instant it is due - now) + expected_wait_s(jobs before it, running jobs, mean)

Source: an exponential mean that starts as a plain one; the wait is that of order.py.
When wrong: job lengths that differ much within a route; jobs that only other processes run (then it stays unknown); running
jobs are counted every few seconds, so a burst at an idle queue looks slower than it is.
"""

from collections.abc import Callable, Sequence

from stayfast.core.jobs import Job, JobState, QueueDepth
from stayfast.policy.jobs.order import expected_wait_s

MEMORY = 20  # runs after which older ones fade


class JobPace:
    """What is known about run times and places."""

    __slots__ = ("_n_running", "_route_of", "_runs", "depths")

    def __init__(self, route_of: Callable[[str], str]) -> None:
        """route_of: the name of the route of a model, as in the facts of ended jobs."""
        self._route_of = route_of
        self._runs: dict[str, tuple[int, float]] = {}  # by route: number, mean seconds
        self.depths: Sequence[QueueDepth] = ()  # the latest
        self._n_running: dict[str, int] = {}  # by model

    def note_run(self, route: str, run_s: float) -> None:
        """A job of the route was completed after `run_s`."""
        n, mean_s = self._runs.get(route, (0, 0.0))
        n = min(n + 1, MEMORY)
        self._runs[route] = n, mean_s + (run_s - mean_s) / n

    def note_depths(self, depths: Sequence[QueueDepth]) -> None:
        """The queue's figures, of all gateways."""
        self.depths = depths
        self._n_running = {depth.model: depth.n_running for depth in depths}

    def left_s(self, job: Job, n_ahead: int, now: float) -> float | None:
        """Seconds until the end of a queued or running job; None: unknown. now: Unix seconds."""
        n, run_s = self._runs.get(self._route_of(job.model), (0, 0.0))
        if not n or job.state.is_final:
            return None
        if job.state is JobState.RUNNING:
            return max(0.0, run_s - (now - (job.started_at or now)))
        return max(0.0, job.run_at - now) + expected_wait_s(n_ahead, self._n_running.get(job.model, 0), run_s)
