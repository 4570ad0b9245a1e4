"""Checks of providers' limits and of retries."""

from typing import Any

from stayfast.core.snapshot import PromptRow, Snapshot, Spread, TrafficRow, UpstreamRow
from stayfast.policy.findings.rate_limits import CHECKS
from stayfast.settings.load import SettingsText, load_settings

FIND = {check.id: check.find for check in CHECKS}


def limited(n_limited: int, **upstream: Any) -> Snapshot:
    row = TrafficRow("chat", "a", 300.0, 1000, n_attempts=1000, faults={"429": n_limited})
    return Snapshot(0.0, traffic=(row,), upstreams=(UpstreamRow("a", "openai", **upstream),))


def test_refused_calls_name_the_scarcest_dimension_and_a_valid_patch() -> None:
    [found] = FIND["limits.rate_limited"](limited(300, quota_left_1h={"requests": 0.6, "output_tokens": 0.01}))
    assert "output tokens are used up" in found.summary
    assert found.severity == "act"
    base = "upstreams: {a: {kind: openai, key: k}}\nroutes: {chat: [a]}\n"
    assert "requests_per_minute: 140" in found.do[0].patch
    load_settings(SettingsText("patched", base.replace("key: k}", "key: k, rate: {requests_per_minute: 140}}")), {})


def test_refused_calls_without_headers_may_be_a_spend_limit() -> None:
    [found] = FIND["limits.rate_limited"](limited(100))
    assert "spend limit" in found.because
    assert not list(FIND["limits.rate_limited"](limited(40)))


def test_headroom_is_found_with_and_without_refused_calls() -> None:
    assert list(FIND["limits.headroom"](limited(0, quota_left={"tokens": 0.05})))
    assert list(FIND["limits.headroom"](limited(300, quota_left={"tokens": 0.05})))
    assert not list(FIND["limits.headroom"](limited(0, quota_left={"tokens": 0.15})))


def test_max_tokens_far_above_the_answers_is_found_where_output_is_scarce() -> None:
    row = TrafficRow("chat", "a", 300.0, 1000, n_attempts=1000)
    prompt = PromptRow("chat", 1000, max_tokens=Spread(1000, 4096, 4096, 4096, 4096),
                       output_tokens=Spread(1000, 90, 200, 250, 300))

    def found(left: float) -> list[str]:
        upstream = UpstreamRow("a", quota_left_1h={"output_tokens": left})
        return [one.do[0].effect for one in FIND["limits.reserved_output"](
            Snapshot(0.0, traffic=(row,), prompts=(prompt,), upstreams=(upstream,)))]

    assert "max_tokens 300" in found(0.1)[0]
    assert found(0.5) == []


def test_retries_of_both_layers_are_stacked() -> None:
    def found(n_retries: int) -> list[str]:
        row = TrafficRow("chat", "", 300.0, 1000, n_client_retries=150, n_attempts=1000 + n_retries, n_retries=n_retries)
        return [one.summary for one in FIND["retries.stacked"](Snapshot(0.0, traffic=(row,)))]

    assert "15 %" in found(200)[0]
    assert found(0) == []


def test_retry_after_beyond_what_the_openai_sdk_honours_is_found() -> None:
    assert list(FIND["retries.retry_after"](Snapshot(0.0, retry_after_s=121.0)))
    assert not list(FIND["retries.retry_after"](Snapshot(0.0, retry_after_s=120.0)))
