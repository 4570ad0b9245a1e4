"""The checks of a route on whole answers: schema, own functions, and what happens when these fail."""

import asyncio
from typing import Any

import msgspec

from stayfast.core.deadline import Deadline
from stayfast.core.types import AnswerSummary, Api, Chunk, Request
from stayfast.pipeline.tiers.answer_verifier import CheckedAnswers
from stayfast.pipeline.tiers.verification import TierFacts, TierVerdict
from stayfast.policy.tiers.enough import ChecksConfig, EnoughConfig
from stayfast.stores.json_schema import fits_schema
from stayfast.testing.simloop import run

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FACTS = TierFacts("r", None, ("small", "large"), "large", Deadline(10.0))


def request(*, stream: bool = False, **fields: Any) -> Request:
    return Request(Api.CHAT, "r", stream, msgspec.json.encode({"model": "r", "messages": [
        {"role": "user", "content": "secret prompt"}], **fields}))


def answer(text: str) -> Chunk:
    return Chunk(msgspec.json.encode({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}), 1)


def checks(config: ChecksConfig | None = None, **parts: Any) -> CheckedAnswers:
    return CheckedAnswers(EnoughConfig(mode="cascade", checks=config or ChecksConfig()), holds_streams=False, **parts)


def verify(checked: CheckedAnswers, text: str, wanted: Request | None = None) -> TierVerdict:
    summary = AnswerSummary()
    summary.finish_reason = "stop"
    return run(lambda loop: checked.verify(wanted or request(), answer(text), summary, "small", Deadline(loop.now() + 5)))


def test_schema_of_the_request_is_checked() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    checked, wanted = checks(ChecksConfig(json="schema"), fits_schema=fits_schema), request(response_format=form)
    assert verify(checked, '{"n": 1}', wanted) == TierVerdict(True)
    assert verify(checked, '{"n": "one"}', wanted) == TierVerdict(False, "does not fit the schema")
    assert verify(checked, "one", wanted) == TierVerdict(False, "not JSON")
    assert verify(checked, "one") == TierVerdict(True)


def test_own_check_gets_request_and_text() -> None:
    seen = []

    def own(body: dict[str, Any], text: str) -> str:
        seen.append((body["model"], text))
        return "" if text == "right" else "not right"

    assert verify(checks(own_check=own), "right") == TierVerdict(True)
    assert verify(checks(own_check=own), "wrong") == TierVerdict(False, "not right")
    assert seen == [("r", "right"), ("r", "wrong")]


def test_own_check_that_fails_is_no_pass_and_is_not_quoted() -> None:
    def own(body: dict[str, Any], text: str) -> str:
        raise KeyError(body["messages"][0]["content"])

    assert verify(checks(own_check=own), "x") == TierVerdict(False, "the check raised KeyError")


def test_own_check_that_hangs_is_ended() -> None:
    async def own(body: dict[str, Any], text: str) -> str:
        await asyncio.sleep(3600)
        return ""

    assert verify(checks(own_check=own), "x") == TierVerdict(False, "the check did not end in its time")


def test_classifier_that_is_unsure_is_a_reason() -> None:
    assert verify(checks(certain_label=lambda _: "intent is unknown"), "x") == TierVerdict(False, "intent is unknown")


def test_answer_of_unknown_form_passes() -> None:
    async def find(data: bytes) -> str:
        return await checks().find_failure(request(), data, AnswerSummary())

    assert run(lambda loop: find(b"[]")) == ""


def test_only_answers_to_clients_are_verified_and_streams_where_they_are_held() -> None:
    checked = checks()
    assert checked.applies_to(request(), "small", FACTS)
    assert not checked.applies_to(request(stream=True), "small", FACTS)
    assert not checked.applies_to(request(), "small", msgspec.structs.replace(FACTS, role="shadow small"))
    held = CheckedAnswers(EnoughConfig(mode="cascade"), holds_streams=True)
    assert held.applies_to(request(stream=True), "small", FACTS)
    assert not CheckedAnswers(EnoughConfig(mode="shadow"), holds_streams=True).applies_to(request(), "small", FACTS)
