"""What providers put into their answers beside what `wire`'s writers say: fields that SDKs know and few people read."""

from typing import Any, Final

from msgspec import Raw

from stayfast.core.types import Api
from stayfast.upstreams.simulated.ask import Ask

Json = dict[str, Any]

_RESPONSE: Final[Json] = {
    "background": False, "max_output_tokens": None, "max_tool_calls": None, "previous_response_id": None,
    "prompt_cache_key": None, "reasoning": {"effort": None, "summary": None}, "safety_identifier": None,
    "service_tier": "default", "store": True, "text": {"format": {"type": "text"}, "verbosity": "medium"}, "top_logprobs": 0,
    "truncation": "disabled", "user": None}
_MESSAGE_USAGE: Final[Json] = {
    "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0}, "service_tier": "standard", "speed": "standard",
    "inference_geo": None}


def dressed(said: Json, ask: Ask, *, is_incomplete: bool) -> Json:
    """One event of a writer, with what its provider adds. `is_incomplete`: the answer stops at a limit."""
    match ask.api:
        case Api.RESPONSES:
            return _of_responses(said, ask, is_incomplete=is_incomplete)
        case Api.MESSAGES:
            if said["type"] == "message_start":
                said["message"]["usage"] |= _MESSAGE_USAGE
            return said
    return _of_chat(said, ask)


def _of_responses(said: Json, ask: Ask, *, is_incomplete: bool) -> Json:
    if is_incomplete and said["type"] == "response.output_item.done":
        said["item"]["status"] = "incomplete"
    if "response" in said:
        said["response"] = _RESPONSE | said["response"] | {name: Raw(value) for name, value in ask.echo}
    return said


def _of_chat(said: Json, ask: Ask) -> Json:
    """Of chat and completions."""
    said |= {"service_tier": "default", "system_fingerprint": "fp_simulated"}
    usage = said.get("usage")
    if usage is not None:
        usage["prompt_tokens_details"] |= {"audio_tokens": 0, "image_tokens": 0, "text_tokens": usage["prompt_tokens"]}
        usage["completion_tokens_details"] |= {
            "audio_tokens": 0, "text_tokens": usage["completion_tokens"], "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0}
    elif ask.include_usage and ask.stream:
        said["usage"] = None
    for choice in said["choices"]:
        if "role" in choice.get("delta", ()):
            choice["delta"]["refusal"] = None
            if not ask.stream:
                choice["delta"]["annotations"] = []
    return said
