"""A run as it goes, in one line."""

from stayfast.bench.run import Runner


def progress(runner: Runner, seconds: float) -> str:
    """What has been sent and what came back, `seconds` into the run."""
    records = runner.records
    n_sent, n_done, n_bad = (sum(getattr(record, name) for record in records) for name in ("n_sent", "n_done", "n_bad"))
    state = "waiting for the last answers" if runner.is_stopped or runner.is_all_sent else "running"
    late_s = max((record.lateness_s[-1] for record in records if record.lateness_s), default=0.0)
    return (f"{seconds:5.0f} s  {state}: {n_sent} sent ({n_sent / max(1e-9, seconds):.1f}/s), {n_sent - n_done} on their "
            f"way, {n_bad} failed, last send {late_s * 1e3:.1f} ms late")
