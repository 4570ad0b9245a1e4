"""upstreams.simulated.faults: every way to fail, by rate, by schedule and while it runs, in every dialect."""

import asyncio
from typing import Any

import msgspec
import pytest

from stayfast.core.types import Api
from stayfast.lab.simulated import (
    FaultKind,
    FaultRule,
    GapConfig,
    Mixture,
    Provider,
    ProviderConfig,
    SimulatedRequest,
    VendorQuota,
)
from stayfast.testing import SimLoop, run
from tests.unit.upstreams.simulated_rig import Heard, chat, hear, hear_for

BASE: dict[str, Any] = {"ttft": Mixture(1.0), "gaps": GapConfig(0.1, 0.0)}
STREAMED = [Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES]


def struck(rule: FaultRule, ask: SimulatedRequest, **fields: Any) -> Heard:
    """One request that the rule strikes."""
    return run(lambda loop: hear(Provider("p", ProviderConfig(faults=(rule,), **BASE, **fields), loop), ask))


def events(body: bytes) -> list[dict[str, Any]]:
    """The data of each event of a stream that is JSON."""
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    return [msgspec.json.decode(line) for line in lines]


@pytest.mark.parametrize("kind", [FaultKind.REFUSED, FaultKind.RESET])
def test_fault_connection_fails_before_head(kind: FaultKind) -> None:
    """At once, and told apart."""
    heard = struck(FaultRule(kind), chat())
    assert (heard.head, heard.broke, heard.answering.outcome) == (None, kind.value, kind.value)


@pytest.mark.parametrize("kind", [FaultKind.HANG, FaultKind.SILENT])
@pytest.mark.parametrize("stream", [True, False])
def test_fault_never_answers(kind: FaultKind, stream: bool) -> None:
    """Nothing comes however long one waits; a silent one has sent a good head before."""
    async def main(loop: SimLoop) -> tuple[str | None, int]:
        one = Provider("p", ProviderConfig(faults=(FaultRule(kind),), **BASE), loop)
        answering = one.start_call(chat(stream=stream))
        if kind is FaultKind.SILENT:
            assert (await answering.wait_head()).status == 200
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100_000):
                await (answering.next() if kind is FaultKind.SILENT else answering.wait_head())
        answering.close()
        return answering.outcome, one.counts.n_running

    assert run(main) == (kind.value, 0)


def test_fault_slow_head_delays_all_tokens() -> None:
    """Ten seconds more before the head."""
    heard = struck(FaultRule(FaultKind.SLOW_HEADERS, seconds=10), chat(2))
    assert heard.head_at == pytest.approx(11.0)
    assert heard.took_s == pytest.approx(11.1)


@pytest.mark.parametrize(("status", "openai", "anthropic"), [
    (400, "invalid_request_error", "invalid_request_error"), (401, "invalid_request_error", "authentication_error"),
    (429, "requests", "rate_limit_error"), (500, "server_error", "api_error"),
    (503, "service_unavailable_error", "api_error"), (529, "server_error", "overloaded_error"),
])
def test_fault_error_status_has_vendor_body(status: int, openai: str, anthropic: str) -> None:
    """Status, content type, type of the error in each dialect, and when to come again."""
    rule = FaultRule(FaultKind.STATUS, status=status, retry_after_s=7)
    for api, wanted in ((Api.CHAT, openai), (Api.RESPONSES, openai), (Api.EMBEDDINGS, openai), (Api.MESSAGES, anthropic)):
        heard = struck(rule, SimulatedRequest(api, "m", stream=api is Api.CHAT))
        assert heard.head is not None
        assert heard.head.status == status
        assert ("content-type", "application/json") in heard.head.headers
        assert ("retry-after", "7") in heard.head.headers
        said = msgspec.json.decode(heard.body)
        assert said["error"]["type"] == wanted
        assert ("request_id" in said) == (api is Api.MESSAGES)
        assert ("param" in said["error"]) == (api is not Api.MESSAGES)


def test_fault_permanent_quota_has_no_retry_after() -> None:
    """`insufficient_quota` and Anthropic's spend limit carry their words and `x-should-retry: false`."""
    heard = struck(FaultRule(FaultKind.STATUS, status=429, code="insufficient_quota"), chat())
    assert heard.head is not None
    assert ("x-should-retry", "false") in heard.head.headers
    assert b'"type":"insufficient_quota","param":null,"code":"insufficient_quota"' in heard.body
    heard = struck(FaultRule(FaultKind.STATUS, status=429, code="enforced_spend_limit_reached"),
                   SimulatedRequest(Api.MESSAGES, "m"))
    assert b'"details":{"error_code":"enforced_spend_limit_reached"}' in heard.body


@pytest.mark.parametrize("kind", [FaultKind.RESET_MID, FaultKind.CUT, FaultKind.TRUNCATED])
@pytest.mark.parametrize("api", STREAMED)
def test_fault_stream_is_truncated(kind: FaultKind, api: Api) -> None:
    """After three chunks, by a broken connection or a clean end; the protocol's own end never comes."""
    heard = struck(FaultRule(kind, after_chunks=3), SimulatedRequest(api, "m", True, n_output=10))
    assert heard.broke == {FaultKind.RESET_MID: "reset", FaultKind.CUT: "cut", FaultKind.TRUNCATED: None}[kind]
    assert [at for at, _ in heard.parts] == pytest.approx([1.0, 1.1, 1.2])
    for end in (b"[DONE]", b"message_stop", b"response.completed", b'finish_reason":"'):
        assert end not in heard.body
    assert (heard.answering.outcome, heard.answering.n_generated) == (kind.value, 3)


@pytest.mark.parametrize("kind", [FaultKind.RESET_MID, FaultKind.CUT, FaultKind.TRUNCATED])
def test_fault_whole_answer_is_truncated(kind: FaultKind) -> None:
    """Half of the body, then the end that the kind says."""
    heard = struck(FaultRule(kind), chat(10, stream=False))
    assert heard.head is not None
    assert heard.head.body is None
    assert heard.broke == {FaultKind.RESET_MID: "reset", FaultKind.CUT: "cut", FaultKind.TRUNCATED: None}[kind]
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(heard.body)


def test_fault_short_answer_fails_before_end() -> None:
    """A fault after 50 chunks strikes an answer of two chunks as well; after none it comes right behind the opening."""
    heard = struck(FaultRule(FaultKind.TRUNCATED, after_chunks=50), chat(2))
    assert heard.body.count(b'"content":"') == 3
    assert b"[DONE]" not in heard.body
    heard = struck(FaultRule(FaultKind.IN_BAND, after_chunks=0), SimulatedRequest(Api.RESPONSES, "m", True))
    assert [event["type"] for event in events(heard.body)] == ["response.created", "response.in_progress", "error"]


@pytest.mark.parametrize(("api", "form", "expected"), [
    (Api.CHAT, "usual", {"error": {"type": "server_error", "param": None}}),
    (Api.CHAT, "named", {"error": {"type": "server_error", "param": None}}),
    (Api.COMPLETIONS, "usual", {"error": {"type": "server_error", "param": None}}),
    (Api.RESPONSES, "usual", {"type": "error", "error": {"type": "server_error"}}),
    (Api.RESPONSES, "flat", {"type": "error", "code": None, "param": None}),
    (Api.RESPONSES, "failed", {"type": "response.failed", "response": {"status": "failed"}}),
    (Api.MESSAGES, "usual", {"type": "error", "error": {"type": "api_error"}}),
])
def test_fault_in_stream_errors_have_all_forms(api: Api, form: Any, expected: dict[str, Any]) -> None:
    """The error is the last event, in the form asked for, and nothing follows it."""
    heard = struck(FaultRule(FaultKind.IN_BAND, after_chunks=2, form=form), SimulatedRequest(api, "m", True, n_output=9))
    last = events(heard.body)[-1]
    for name, value in expected.items():
        assert last[name] == value if not isinstance(value, dict) else value.items() <= last[name].items()
    is_named = api in (Api.RESPONSES, Api.MESSAGES) or form == "named"
    assert heard.parts[-1][1].startswith(b"event: ") == is_named
    assert b"[DONE]" not in heard.body
    assert heard.answering.outcome == "in_band"


def test_fault_whole_answer_is_error_with_status_200() -> None:
    """An error body under a good status."""
    heard = struck(FaultRule(FaultKind.IN_BAND), chat(3, stream=False))
    assert heard.head is not None
    assert heard.head.status == 200
    assert "error" in msgspec.json.decode(heard.body)


@pytest.mark.parametrize("form", ["nested", "flat", "failed"])
def test_fault_error_in_responses_stream_continues(form: Any) -> None:
    """The next number of the sequence; a failed response is the one that was created, and nobody's else."""
    heard = struck(FaultRule(FaultKind.IN_BAND, after_chunks=2, form=form), SimulatedRequest(Api.RESPONSES, "m", True,
                                                                                             n_output=9))
    found = events(heard.body)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    if form == "failed":
        first, last = found[0]["response"], found[-1]["response"]
        same = {"id", "created_at", "model", "object", "tools"}
        assert {name: first[name] for name in same} == {name: last[name] for name in same}
        assert last["error"] == {"code": "server_error", "message": found[-1]["response"]["error"]["message"]}


def test_fault_nested_error_has_headers() -> None:
    """What a refusal would have carried over its head stands inside the event."""
    rule = FaultRule(FaultKind.IN_BAND, status=429, retry_after_s=5, form="nested", api=Api.RESPONSES)
    heard = struck(rule, SimulatedRequest(Api.RESPONSES, "m", True, n_output=9), quota=VendorQuota(tokens_per_min=6000))
    error = events(heard.body)[-1]["error"]
    assert (error["type"], error["code"]) == ("tokens", "rate_limit_exceeded")
    assert error["headers"]["x-ratelimit-remaining-tokens"] == "0"
    assert error["headers"]["retry-after"] == "5"


@pytest.mark.parametrize(("vendor", "api", "quota", "name", "said"), [
    ("openai", Api.CHAT, None, "x-ratelimit-remaining-requests", "requests per min (RPM): Limit 500, Used 500,"),
    ("openai", Api.CHAT, VendorQuota(tokens_per_min=6000), "x-ratelimit-remaining-tokens",
     "tokens per min (TPM): Limit 6000, Used 6000,"),
    ("anthropic", Api.MESSAGES, VendorQuota(input_tokens_per_min=6000), "anthropic-ratelimit-input-tokens-remaining",
     "rate limit of 6,000 input tokens per minute"),
])
def test_fault_429_has_reason(vendor: Any, api: Api, quota: VendorQuota | None, name: str, said: str) -> None:
    """A limit stands at 0, and the body speaks of that one."""
    rule = FaultRule(FaultKind.STATUS, status=429, retry_after_s=7)
    heard = struck(rule, SimulatedRequest(api, "m"), vendor=vendor, quota=quota)
    assert heard.head is not None
    headers = dict(heard.head.headers)
    assert headers[name] == "0"
    assert said in heard.body.decode()
    assert headers["retry-after"] == "7"


@pytest.mark.parametrize(("api", "tool", "name", "lacks"), [
    (Api.CHAT, None, None, b'"}}]}'), (Api.CHAT, "f", None, b'"}}]}}]}'), (Api.COMPLETIONS, None, None, b'"}]}'),
    (Api.RESPONSES, None, b"response.output_text.delta", b'"}'), (Api.MESSAGES, None, b"content_block_delta", b'"}}'),
    (Api.RESPONSES, "f", b"response.function_call_arguments.delta", b'"}'),
    (Api.MESSAGES, "f", b"content_block_delta", b'"}}')])
def test_fault_malformed_json_has_form_of_dialect(api: Api, tool: str | None, name: bytes | None, lacks: bytes) -> None:
    """The last event is one of the dialect's content events, under its own name, and ends in the middle of its text."""
    ask = SimulatedRequest(api, "m", True, n_output=5, tool=tool, value='{"a":"some words"}' if tool else None)
    heard = struck(FaultRule(FaultKind.MALFORMED, after_chunks=2), ask)
    *lines, data = heard.body.strip().split(b"\n\n")[-1].split(b"\n")
    assert lines == ([] if name is None else [b"event: " + name])
    assert data.startswith(b'data: {"')
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(data[6:])
    assert msgspec.json.decode(data[6:] + lacks)


@pytest.mark.parametrize("stream", [True, False])
def test_fault_malformed_json(stream: bool) -> None:
    """An event, or the whole body, that no parser takes; then the body ends."""
    heard = struck(FaultRule(FaultKind.MALFORMED, after_chunks=1), chat(5, stream=stream))
    last = heard.body.strip().split(b"\n\n")[-1].removeprefix(b"data: ")
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(last)
    assert heard.answering.outcome == "malformed"


def test_fault_slow_token_pace() -> None:
    """A stall before the fourth chunk; every gap three times as long."""
    stalled = struck(FaultRule(FaultKind.STALL, seconds=5, after_chunks=3), chat(5))
    assert [at for at, _ in stalled.parts] == pytest.approx([1.0, 1.1, 1.2, 6.3, 6.4])
    assert stalled.answering.outcome == "completed"
    assert struck(FaultRule(FaultKind.STALL, seconds=5), chat(5, stream=False)).head_at == pytest.approx(6.4)
    assert struck(FaultRule(FaultKind.SLOW, factor=3), chat(5)).took_s == pytest.approx(1 + 4 * 0.3)


def test_fault_rates_schedules_and_counts() -> None:
    """A rule strikes its share, between its instants, so often, and only the API that it names."""
    rules = (FaultRule(FaultKind.RESET, rate=0.25, from_s=0, until_s=1000),
             FaultRule(FaultKind.STATUS, status=500, from_s=2000, max_count=2),
             FaultRule(FaultKind.REFUSED, from_s=3000, api=Api.MESSAGES))

    async def main(loop: SimLoop) -> None:
        one = Provider("p", ProviderConfig(faults=rules), loop)
        struck = [(await hear(one, chat(1))).answering.outcome for _ in range(2000)]
        assert struck.count("reset") / 2000 == pytest.approx(0.25, abs=0.03)
        await asyncio.sleep(1500)
        assert (await hear(one, chat(1))).answering.outcome == "completed"
        await asyncio.sleep(1000)
        assert [(await hear(one, chat(1))).answering.outcome for _ in range(3)] == ["status_500", "status_500", "completed"]
        await asyncio.sleep(1000)
        assert (await hear(one, chat(1))).answering.outcome == "completed"
        assert (await hear(one, SimulatedRequest(Api.MESSAGES, "m"))).answering.outcome == "refused"

    run(main)


def test_fault_form_applies_to_its_dialects_only() -> None:
    """A rule for all APIs in a form that only responses have leaves the others alone."""
    rule = FaultRule(FaultKind.IN_BAND, form="failed")
    assert struck(rule, chat(4)).answering.outcome == "completed"
    assert struck(rule, SimulatedRequest(Api.RESPONSES, "m", True, n_output=4)).answering.outcome == "in_band"


def test_faults_can_change_at_run_time() -> None:
    """Injected rules count their schedule from then on; clearing leaves the configuration's."""
    async def main(loop: SimLoop) -> list[str | None]:
        own = FaultRule(FaultKind.RESET, api=Api.MESSAGES)
        one = Provider("p", ProviderConfig(faults=(own,)), loop)
        await asyncio.sleep(100)
        one.add_fault(FaultRule(FaultKind.STATUS, status=503, from_s=10, until_s=20))
        outcomes = []
        for wait_s in (5, 10, 10):
            await asyncio.sleep(wait_s)
            outcomes.append((await hear(one, chat(1))).answering.outcome)
        one.add_fault(FaultRule(FaultKind.REFUSED))
        outcomes.append((await hear(one, chat(1))).answering.outcome)
        one.clear_faults()
        outcomes.append((await hear(one, chat(1))).answering.outcome)
        assert one.faults == [own]
        return outcomes

    assert run(main) == ["completed", "status_503", "completed", "refused", "completed"]


def test_fault_rule_does_not_change_latency_draws() -> None:
    """The dice of faults are their own: who is not struck waits as long as without the rule."""
    def heads(*rules: FaultRule) -> list[float | None]:
        async def main(loop: SimLoop) -> list[float | None]:
            one = Provider("p", ProviderConfig("gpt-4o-like", faults=rules), loop)
            heard = [await hear(one, chat(1)) for _ in range(50)]
            return [round(each.head_at, 9) if each.broke is None else None for each in heard]

        return run(main)

    without, with_rule = heads(), heads(FaultRule(FaultKind.RESET, rate=0.3))
    assert 5 < with_rule.count(None) < 30
    assert all(other is None or other == pytest.approx(one) for one, other in zip(without, with_rule, strict=True))


def test_fault_cancelled_while_hanging() -> None:
    """A caller that gives up on a hanging provider is counted by the fault, and holds nothing."""
    async def main(loop: SimLoop) -> Provider:
        one = Provider("p", ProviderConfig(faults=(FaultRule(FaultKind.HANG),)), loop)
        await hear_for(3, one, chat())
        return one

    counts = run(main).counts
    assert (counts.outcomes, counts.n_running, counts.n_tokens_generated) == ({"hang": 1}, 0, 0)


@pytest.mark.parametrize(("fields", "words"), [
    ({"rate": 0}, "rate"), ({"from_s": 5, "until_s": 5}, "until_s"), ({"status": 200}, "status"),
    ({"max_count": 0}, "max_count"), ({"after_chunks": -1}, "after_chunks"),
    ({"seconds": -1}, "seconds"), ({"factor": 0.5}, "factor"),
    ({"api": Api.CHAT, "form": "failed"}, "form of chat must be one of usual, flat, named, not failed"),
    ({"api": Api.MESSAGES, "form": "flat"}, "form of messages"), ({"api": Api.RESPONSES, "form": "named"}, "form"),
])
def test_fault_rules_invalid_values_are_rejected(fields: dict[str, Any], words: str) -> None:
    """The message names the field."""
    with pytest.raises(ValueError, match=words):
        FaultRule(FaultKind.STATUS, **fields)
