"""The claim about starting replicas holds in a short run, and falls short for readiness by the health endpoint."""

from stayfast.lab.claims import cold
from stayfast.lab.harness.virtual import run_virtual


def test_cold_start_by_token_loses_no_request_and_by_health_some_reach_it_early() -> None:
    by_token = run_virtual(cold.run_start, 1, cold.BY_TOKEN)
    by_health = run_virtual(cold.run_start, 1, cold.BY_HEALTH)
    assert (by_token.n_failed, by_token.n_early) == (0, 0)
    assert by_token.by["new"] >= cold.MIN_ANSWERED
    assert by_health.n_early > 0


def test_scale_from_zero_fallback_answers_what_cannot_wait() -> None:
    short = run_virtual(cold.run_from_zero, 1, cold.BY_TOKEN, deadline_s=cold.DEADLINE_S, until_s=6.0)
    long = run_virtual(cold.run_from_zero, 1, cold.BY_TOKEN, deadline_s=60.0, until_s=11.0)
    assert (set(short.by), short.n_failed) == ({"provider"}, 0)
    assert (set(long.by), long.n_failed) == ({"own"}, 0)
