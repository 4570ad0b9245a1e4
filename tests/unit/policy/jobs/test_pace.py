"""How long a job still takes."""

import pytest
from msgspec.structs import replace

from stayfast.core.jobs import Door, Job, JobState, QueueDepth
from stayfast.core.types import Api
from stayfast.policy.jobs.pace import MEMORY, JobPace

JOB = Job("job_1", Door.JOBS, Api.CHAT, "m", JobState.QUEUED, None, 0.0)


def pace_of(*run_s: float, n_running: int = 0) -> JobPace:
    pace = JobPace(lambda model: model if model == "m" else "*")
    for one in run_s:
        pace.note_run("m", one)
    pace.note_depths([QueueDepth("m", 5, n_running)])
    return pace


def test_pace_without_a_completed_job_is_unknown() -> None:
    assert pace_of(n_running=4).left_s(JOB, 3, 100.0) is None
    assert pace_of(2.0).left_s(replace(JOB, model="other"), 3, 100.0) is None
    assert pace_of(2.0).left_s(replace(JOB, state=JobState.COMPLETED), 0, 100.0) is None


def test_pace_counts_jobs_before_and_running_ones() -> None:
    """(7 + 1) * 3 s / 4 places."""
    assert pace_of(2.0, 4.0, n_running=4).left_s(JOB, 7, 100.0) == pytest.approx(6.0)


def test_pace_adds_the_time_until_a_job_is_due() -> None:
    assert pace_of(2.0).left_s(replace(JOB, run_at=130.0), 0, 100.0) == pytest.approx(32.0)


def test_pace_of_a_running_job_is_the_rest_of_its_run() -> None:
    running = replace(JOB, state=JobState.RUNNING, started_at=99.0)
    assert pace_of(4.0).left_s(running, 0, 100.0) == pytest.approx(3.0)
    assert pace_of(4.0).left_s(running, 0, 200.0) == 0.0


def test_pace_forgets_old_runs() -> None:
    left_s = pace_of(*[1.0] * MEMORY, *[9.0] * 10 * MEMORY).left_s(JOB, 0, 0.0)
    assert left_s == pytest.approx(9.0, rel=0.01)
