"""Which of an upstream's permits jobs hold, and what they do to the requests of waiting clients."""

import msgspec

from stayfast.policy.jobs.room import JobAllowance


class LoadSample(msgspec.Struct, frozen=True, gc=False):
    """The load at the start of one call. n_interactive, n_jobs: other calls of either kind."""

    is_job: bool
    n_tokens: float
    n_interactive: int
    n_jobs: int
    is_streamed: bool


class JobPlaces:
    """Of one upstream; exists only where jobs run. Belongs to one loop."""

    __slots__ = ("allowance", "n_jobs")

    def __init__(self, now: float) -> None:
        self.n_jobs = 0
        self.allowance = JobAllowance(now)

    def start_call(self, n_in_flight: int, n_tokens: float, now: float, *, is_job: bool, is_streamed: bool) -> LoadSample:
        """A call starts beside `n_in_flight` others."""
        sample = LoadSample(is_job, n_tokens, n_in_flight - self.n_jobs, self.n_jobs, is_streamed)
        if is_job:
            self.n_jobs += 1
        else:
            self.allowance.note_interactive(now)
        return sample

    def record_first_token(self, sample: LoadSample, ttft_s: float, now: float) -> None:
        if sample.is_streamed and not sample.is_job:
            self.allowance.add_first_token(now, ttft_s, int(sample.n_tokens), sample.n_interactive, sample.n_jobs)

    def record_gap(self, sample: LoadSample, gap_s: float, now: float) -> None:
        """The mean time between two tokens of a whole stream. Jobs: the mean of those at its start and at its end."""
        if sample.is_streamed and not sample.is_job:
            self.allowance.add_gap(now, gap_s, sample.n_interactive, (sample.n_jobs + self.n_jobs + 1) // 2)

    def end_call(self, sample: LoadSample) -> None:
        self.n_jobs -= sample.is_job

    def __repr__(self) -> str:
        return f"<JobPlaces {self.n_jobs} jobs, {self.allowance!r}>"
