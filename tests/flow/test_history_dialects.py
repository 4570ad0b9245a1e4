"""Long conversations in the shapes that the official SDKs send: chat, messages and responses, with tools."""

from typing import Any

import msgspec
import pytest

from stayfast.core.types import Api, Request
from stayfast.policy.context.history import HistoryConfig
from stayfast.testing import SimLoop, run
from stayfast.wire.request_body import decode
from tests.flow.history_rig import HistoryRig, letters

Json = dict[str, Any]
TRIM = HistoryConfig("trim", allowance_tokens=1000)
FILLER = "the harbour and the weather at sea " * 7
HONEST = "NARRATIVE: " + "All of it is about the harbour and the weather at sea. " * 5


def _chat_turn(number: int) -> list[Json]:
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [{"role": "user", "content": f"{letters(number)} {FILLER}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": FILLER},
            {"role": "assistant", "content": letters(number)}]


def _messages_turn(number: int) -> list[Json]:
    use = {"type": "tool_use", "id": f"call_{number}", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": f"call_{number}", "content": FILLER}
    return [{"role": "user", "content": [{"type": "text", "text": f"{letters(number)} {FILLER}"}]},
            {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]},
            {"role": "assistant", "content": [{"type": "text", "text": letters(number)}]}]


def _responses_turn(number: int) -> list[Json]:
    return [{"role": "user", "content": f"{letters(number)} {FILLER}"},
            {"type": "function_call", "call_id": f"call_{number}", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"call_{number}", "output": FILLER},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": letters(number)}]}]


def _request(api: Api, n_turns: int, *, is_inside: bool = False) -> Request:
    """A conversation of so many turns and a question; is_inside: after a tool's result."""
    make = {Api.CHAT: _chat_turn, Api.MESSAGES: _messages_turn, Api.RESPONSES: _responses_turn}[api]
    items = [item for number in range(n_turns) for item in make(number)]
    items += make(n_turns)[:3] if is_inside else make(n_turns)[:1]
    body: Json = {"model": "m"}
    if api is Api.CHAT:
        body["messages"] = [{"role": "system", "content": "Be kind."}, *items]
    elif api is Api.MESSAGES:
        body |= {"system": "Be kind.", "max_tokens": 50, "messages": items}
    else:
        body |= {"instructions": "Be kind.", "store": False, "input": items}
    return decode(api, msgspec.json.encode(body))


def _ids(value: Any, *names: str) -> set[str]:
    """The ids of calls or of results in what was sent."""
    if isinstance(value, list):
        return {found for item in value for found in _ids(item, *names)}
    if isinstance(value, dict):
        own = {str(value[name]) for name in names if str(value.get(name, "")).startswith("call_")}
        return own | {found for item in value.values() for found in _ids(item, *names)}
    return set()


@pytest.mark.parametrize("history", [TRIM, HistoryConfig("summarize", allowance_tokens=1000, by="small")])
@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES, Api.RESPONSES])
def test_history_in_each_dialect_keeps_calls_with_results_and_the_instructions(api: Api, history: HistoryConfig) -> None:
    """At every length, whether the last message is a question or a tool's result; the body stays valid."""
    async def main(loop: SimLoop) -> None:
        n_shorter = 0
        for n_turns in range(2, 30, 3):
            for is_inside in (False, True):
                rig = HistoryRig(loop, history, lambda prompt: HONEST)
                request = _request(api, n_turns, is_inside=is_inside)
                await rig.send(request)
                await rig.settle()
                sent = await rig.send(request)
                decode(api, rig.large.raw[-1])
                text = rig.large.raw[-1].decode()
                assert "Be kind." in text
                assert letters(n_turns) in text
                calls = _ids(sent, "id") | _ids(sent.get("input"), "call_id")
                results = _ids(sent, "tool_call_id", "tool_use_id") or _ids(sent.get("input"), "call_id")
                assert results == calls
                n_shorter += len(rig.large.raw[-1]) < len(request.body)
                assert ("<summary" in text) or is_inside or history is TRIM or n_turns < 8
        assert n_shorter >= 8
    run(main)


def test_history_inside_a_turn_keeps_the_summary_with_which_the_turn_began() -> None:
    """A summary that is adopted between a call and its result is used from the next turn on."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop, summarize=lambda prompt: HONEST)
        first = await rig.send(_request(Api.CHAT, 8))
        await rig.settle()
        inside = await rig.send(_request(Api.CHAT, 8, is_inside=True))
        after = await rig.send(_request(Api.CHAT, 9))
        assert inside["messages"][:len(first["messages"])] == first["messages"]
        assert str(after["messages"][1]["content"]).startswith("<summary")
    run(main)


def test_history_that_the_provider_stores_is_not_touched() -> None:
    """`previous_response_id`: the turns before are not in the body."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop, TRIM)
        body = msgspec.json.decode(_request(Api.RESPONSES, 20).body) | {"previous_response_id": "resp_1"}
        request = decode(Api.RESPONSES, msgspec.json.encode(body))
        await rig.send(request)
        assert rig.large.raw == [request.body]
    run(main)
