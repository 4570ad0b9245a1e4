"""Bedrock's answers as it sends them, and botocore's own view of requests: the service model validates and serializes."""

import json
from base64 import b64decode
from functools import cache
from typing import Any

import botocore.session
from botocore.serialize import create_serializer
from botocore.validate import ParamValidator

from stayfast.wire.event_stream import encode_event_frame

Json = dict[str, Any]
USAGE = {"inputTokens": 12, "outputTokens": 6, "totalTokens": 26, "cacheReadInputTokens": 5, "cacheWriteInputTokens": 3,
         "cacheDetails": [{"ttl": "1h", "inputTokens": 1}, {"ttl": "5m", "inputTokens": 2}]}
METADATA = ("metadata", {"usage": USAGE, "metrics": {"latencyMs": 551}, "serviceTier": {"type": "flex"}})
START = ("messageStart", {"role": "assistant", "p": "abcdefgh"})


def delta(index: int, **fields: Any) -> tuple[str, Json]:
    return "contentBlockDelta", {"contentBlockIndex": index, "delta": fields, "p": "abc"}


def block_end(index: int) -> tuple[str, Json]:
    return "contentBlockStop", {"contentBlockIndex": index}


def call_start(index: int, call_id: str, name: str) -> tuple[str, Json]:
    return "contentBlockStart", {"start": {"toolUse": {"toolUseId": call_id, "name": name}}, "contentBlockIndex": index}


def stop(reason: str, **more: Any) -> tuple[str, Json]:
    return "messageStop", {"stopReason": reason, **more}


TEXT = (START, delta(0, text="Hé"), delta(0, text="llo"), block_end(0), stop("end_turn"), METADATA)
CALLS = (START, delta(0, text="Well."), block_end(0), call_start(1, "tooluse_a", "weather"),
         delta(1, toolUse={"input": '{"city":'}), delta(1, toolUse={"input": ' "Köln"}'}), block_end(1),
         call_start(2, "tooluse_b", "clock"), block_end(2), stop("tool_use"), METADATA)
THOUGHT = (START, delta(0, reasoningContent={"text": "Hm"}), delta(0, reasoningContent={"text": "m"}),
           delta(0, reasoningContent={"signature": "c2ln"}), block_end(0),
           delta(1, reasoningContent={"redactedContent": "aGlk"}), delta(1, reasoningContent={"redactedContent": "ZGVu"}),
           block_end(1), delta(2, text="Yes"), block_end(2), stop("end_turn"), METADATA)


def frames(events: tuple[tuple[str, Json], ...]) -> bytes:
    """The stream of these events."""
    return b"".join(encode_event_frame(name, json.dumps(event).encode()) for name, event in events)


def whole(content: list[Json], reason: str = "end_turn", **more: Any) -> bytes:
    """A Converse answer."""
    return json.dumps({"output": {"message": {"role": "assistant", "content": content}}, "stopReason": reason,
                       "usage": USAGE, "metrics": {"latencyMs": 551}, "serviceTier": {"type": "flex"}, **more}).encode()


@cache
def operation(name: str) -> Any:
    """The model of an operation of bedrock-runtime."""
    return botocore.session.get_session().get_service_model("bedrock-runtime").operation_model(name)


def with_bytes(value: Any) -> Any:
    """A request's JSON with its blobs as bytes, as botocore's callers write them."""
    if isinstance(value, list):
        return [with_bytes(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: b64decode(inner) if name in ("bytes", "redactedContent") else with_bytes(inner)
            for name, inner in value.items()}


def botocore_body(request: Json, model: str = "anthropic.claude-sonnet-4-5", *, stream: bool = False) -> Json:
    """What botocore sends for this request. Fails if its service model does not allow it."""
    shape = operation("ConverseStream" if stream else "Converse")
    params = {"modelId": model, **with_bytes(request)}
    report = ParamValidator().validate(params, shape.input_shape)
    assert not report.has_errors(), report.generate_report()
    sent: Json = json.loads(create_serializer("rest-json").serialize_to_request(params, shape)["body"])
    return sent
