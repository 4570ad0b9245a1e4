"""Checks of what waits depend on."""

from typing import Any

from stayfast.core.findings import Finding
from stayfast.core.snapshot import PromptRow, Snapshot, Spread, TrafficRow
from stayfast.policy.findings.waits import CHECKS

FIND = {check.id: check.find for check in CHECKS}
SLOW = Spread(1000, 1.2, 3.0, 4.0, 5.0)
PROMISE = {"slo": {"ttft": {"under_s": 1.0, "share": 0.95}}}
TOKENS = Spread(1000, 1500.0, 6000.0, 9000.0, 9000.0)


def found_by(check: str, prompt: dict[str, Any], traffic: dict[str, Any] | None = None, **route: Any) -> list[Finding]:
    row = TrafficRow("chat", "", 300.0, 1000, **{"n_streamed": 1000, "n_late": 600, "ttft_s": SLOW, **(traffic or {})})
    return list(FIND[check](Snapshot(0.0, traffic=(row,), prompts=(PromptRow("chat", 1000, **prompt),),
                                     settings={"routes": {"chat": {**PROMISE, **route}}})))


def test_prefill_is_found_by_correlation_and_slope() -> None:
    prompt = {"input_tokens": TOKENS, "ttft_by_input": 0.9, "s_per_1k_input": 0.4, "shared_prefix_ratio": 0.8}
    [found] = found_by("waits.prefill_bound", prompt, prefix={"mode": "off"})
    assert "prefix:\n      mode: auto" in found.do[0].patch
    assert not found_by("waits.prefill_bound", {**prompt, "ttft_by_input": 0.3})
    assert not found_by("waits.prefill_bound", {**prompt, "s_per_1k_input": 0.05})


def test_queue_is_found_unless_the_wait_is_for_a_place_here() -> None:
    prompt = {"ttft_by_input": 0.1, "ttft_by_load": 0.8}
    assert found_by("waits.queue_bound", prompt)
    assert not found_by("waits.queue_bound", prompt, {"stages_s": {"admit": Spread(1000, 1.0, 2.5, 3.0, 4.0)}})


def test_provider_is_found_if_the_promise_is_missed_and_nothing_correlates() -> None:
    prompt = {"ttft_by_input": 0.1, "ttft_by_load": -0.1}
    assert found_by("waits.provider_bound", prompt)
    assert not found_by("waits.provider_bound", {"ttft_by_input": 0.4, "ttft_by_load": -0.1})
    assert not found_by("waits.provider_bound", prompt, {"n_late": 10})


def test_long_answers_without_a_limit_are_found() -> None:
    prompt = {"e2e_by_output": 0.9, "n_uncapped": 900, "output_tokens": Spread(1000, 200.0, 800.0, 900.0, 900.0)}
    traffic = {"e2e_s": Spread(1000, 3.0, 9.0, 10.0, 11.0)}
    [found] = found_by("answers.long", prompt, traffic)
    assert "max_tokens 400" in found.do[0].effect
    assert not found_by("answers.long", {**prompt, "n_uncapped": 0}, traffic)


def test_whole_answers_are_found_where_a_first_token_is_promised() -> None:
    traffic = {"e2e_s": Spread(1000, 4.0, 9.0, 10.0, 11.0), "n_streamed": 0, "n_output_tokens": 400_000}
    [found] = found_by("answers.whole", {}, traffic)
    assert "ttft: null" in found.do[1].patch
    assert not found_by("answers.whole", {}, traffic, slo={"ttft": None})
    assert not found_by("answers.whole", {}, {**traffic, "n_output_tokens": 8000})
