"""The claim about the embedded store of jobs: a short run has all figures, and slow stores fall short."""

from collections.abc import Sequence

import pytest

from stayfast.core.jobs import NewJob
from stayfast.lab.claims import job_throughput
from stayfast.lab.claims.job_throughput import JobLoad, JobThroughput, Pace, make_finding, pace_figures
from stayfast.lab.harness.claim import Extent, Verdict
from tests.prove.running import run, short_figures, short_of, without_interval

SHORT = JobThroughput(quick=Extent(n=160, real_s=0.2, n_rounds=6), n_deep_quick=1500)
GOOD = Pace(1 / 5000, 40e-6, 1 / 2500, 60e-6, 0)


def test_throughput_short_run_has_all_figures() -> None:
    """Whatever the machine does meanwhile: no job is lost, over HTTP none fails, and the depth is stated."""
    finding = run(SHORT)
    assert without_interval(finding) == []
    assert "jobs not finished" not in short_of(finding)
    values = {figure.name: figure.value for figure in finding.figures}
    assert values["jobs not finished"] == values["failed requests over HTTP"] == 0
    assert values["accepted"] > 10
    assert values["CPU of the load, accepted"] < values["CPU of an accepted job, with its load"]
    assert "1,500 jobs" in finding.notes[0]


@pytest.mark.parametrize(("shallow", "deep", "short"), [
    (GOOD, GOOD, []),
    (Pace(1 / 3000, 40e-6, 1 / 2500, 60e-6, 0), GOOD, ["accepted"]),
    (Pace(1 / 5000, 40e-6, 1 / 1500, 60e-6, 0), GOOD, ["finished"]),
    (GOOD, Pace(1 / 5000, 60e-6, 1 / 2500, 100e-6, 0), ["CPU of a job at 1,000,000 queued, to that at 1,000"]),
    (GOOD, Pace(1 / 5000, 40e-6, 1 / 2500, 60e-6, 1), ["jobs not finished"]),
])
def test_throughput_slow_or_lossy_store_falls_short(shallow: Pace, deep: Pace, short: Sequence[str]) -> None:
    """Each goal alone."""
    figures = pace_figures([GOOD] * 8, [shallow] * 8, [deep] * 8, 1_000_000)
    assert short_figures(figures) == short
    finding = make_finding(figures, 1_000_000)
    assert (finding.verdict is Verdict.HOLDS) is (short == [])
    assert finding.notes == ()


def test_throughput_claim_that_returns_too_few_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tenth submission is dropped."""
    make_job, numbers = JobLoad.make_job, iter(range(10**9))

    def make_repeated(self: JobLoad) -> NewJob:
        job = make_job(self)
        return NewJob("same", job.door, job.api, job.model, job.body) if next(numbers) % 10 == 0 else job

    monkeypatch.setattr(JobLoad, "make_job", make_repeated)
    monkeypatch.setattr(job_throughput, "SHALLOW", 0)
    finding = run(JobThroughput(quick=Extent(n=160, real_s=0.1, n_rounds=6), n_deep_quick=0))
    assert "jobs not finished" in short_of(finding)
