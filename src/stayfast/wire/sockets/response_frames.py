"""The messages of the Responses API over a WebSocket, each one JSON object in one text message.

    client: {"type": "response.create", "stream_id": "a", "model": ..., "input": ...}
    server: {"type": "response.created", ..., "stream_id": "a"} and all other events of the stream
            {"type": "error", "status": 400, "error": {"type", "code", "message", "param", "headers"}, "stream_id": "a"}

Source: the official SDK's types ResponsesClientEvent and ResponsesServerEvent (openai 3.52.0).
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.conversation import RawObject
from stayfast.core.errors import Rejected, StayfastError
from stayfast.core.types import Api, Request
from stayfast.wire.errors import encode_error
from stayfast.wire.request_body import check_json_bounds, decode_typed

Json = dict[str, Any]

CREATE, STEER = "response.create", "response.steer"
MAX_LANE_CHARS: Final = 128
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_TEXT: Final = msgspec.json.Decoder(str)
_TRUE, _FALSE, _NULL = b"true", b"false", b"null"
_OWN: Final = ("type", "stream_id", "generate", "stream", "background")
_ENDINGS: Final = ("response.completed", "response.incomplete")
_COMPLETED, _INCOMPLETE = (f'"{name}"'.encode() for name in _ENDINGS)
_NOT_SHOWN: Final = ("content-type", "content-length")


class CreateFrame(Struct, frozen=True, gc=False):
    """fields: those of the request's body. body: the same as JSON, for a stream."""

    fields: RawObject
    body: bytes
    lane: str | None  # None: the unnamed one
    is_generating: bool = True


class SteerFrame(Struct, frozen=True, gc=False):
    """The client adds input to a running response."""

    steer: Raw
    previous_response_id: str


class ServerEvent(Struct, gc=False):
    """What the gateway reads of an event: the finished response in the last one."""

    type: str
    response: Raw = Raw(b"")


_EVENT: Final = msgspec.json.Decoder(ServerEvent)


def parse_members(message: str | bytes, max_depth: int) -> RawObject:
    """The members of a client's message. Raises Rejected."""
    if not isinstance(message, str):
        raise Rejected("A text message with a JSON object is expected, not a binary one.", code="invalid_type")
    data = message.encode()
    check_json_bounds(data, max_depth)
    return decode_typed(_OBJECT, data)


def read_lane(members: RawObject) -> str | None:
    """The `stream_id`; None: the unnamed lane. Raises Rejected."""
    given = members.get("stream_id")
    if given is None or bytes(given) == _NULL:
        return None
    lane = _read_text(given)
    if lane is None or not 0 < len(lane) <= MAX_LANE_CHARS:
        raise Rejected(f"stream_id: expected a text of 1 to {MAX_LANE_CHARS} characters", code="invalid_type",
                       param="stream_id")
    return lane


def read_frame(members: RawObject, lane: str | None) -> CreateFrame | SteerFrame:
    """Raises Rejected with the offending field as `param`."""
    kind = _read_text(members.get("type", Raw(b"")))
    if kind == STEER:
        before_id = _read_text(members.get("previous_response_id", Raw(b"")))
        if before_id is None:
            raise Rejected("previous_response_id: expected the id of a response", code="invalid_type",
                           param="previous_response_id")
        return SteerFrame(Raw(msgspec.json.encode({name: value for name, value in members.items() if name != "type"})),
                          before_id)
    if kind != CREATE:
        shown = "is missing" if "type" not in members else "is unknown"
        raise Rejected(f"type {shown}: expected {CREATE}", code="unknown_event_type", param="type")
    return _read_create(members, lane)


def _read_create(members: RawObject, lane: str | None) -> CreateFrame:
    if bytes(members.get("stream", _TRUE)) not in (_TRUE, _NULL):
        raise Rejected("stream: leave it out, a WebSocket always streams", code="unsupported_field", param="stream")
    if bytes(members.get("background", _FALSE)) not in (_FALSE, _NULL):
        raise Rejected("background: leave it out, or send the request with POST /v1/responses", code="unsupported_field",
                       param="background")
    generate = bytes(members.get("generate", _TRUE))
    if generate not in (_TRUE, _FALSE, _NULL):
        raise Rejected("generate: expected true or false", code="invalid_type", param="generate")
    fields = {name: value for name, value in members.items() if name not in _OWN} | {"stream": Raw(_TRUE)}
    return CreateFrame(fields, msgspec.json.encode(fields), lane, generate != _FALSE)


def _read_text(given: Raw) -> str | None:
    try:
        return _TEXT.decode(given)
    except msgspec.DecodeError:
        return None


def add_lane(event: bytes, lane: str | None) -> str:
    """An event of a stream as a message. event: a JSON object."""
    text = event.decode().strip()
    if lane is None or not text.endswith("}"):
        return text
    separator = "" if text[1:-1].isspace() or len(text) == 2 else ","
    return f'{text[:-1]}{separator}"stream_id":{msgspec.json.encode(lane).decode()}}}'


def read_finished(event: bytes) -> Raw | None:
    """The response in the event that ends it; None for any other event, and for a failed response."""
    if _COMPLETED not in event and _INCOMPLETE not in event:  # nearly all events
        return None
    try:
        parsed = _EVENT.decode(event)
    except msgspec.DecodeError:
        return None
    return parsed.response if parsed.type in _ENDINGS and bytes(parsed.response).startswith(b"{") else None


def encode_socket_error(error: StayfastError, request_id: str, lane: str | None, *, n_events: int | None = None,
                        more: Mapping[str, str] | None = None) -> str:
    """An error message. n_events: how many events of its response came before. more: headers of the error."""
    status, headers, body = encode_error(error, Api.RESPONSES, request_id)
    fields: Json = {"message": error.message, "type": "server_error", "code": error.code, "param": None}
    fields |= _error_member(body)
    shown = {name: value for name, value in headers if name not in _NOT_SHOWN}
    fields["headers"] = shown | {"x-request-id": request_id} | dict(more or {})
    message: Json = {"type": "error", "status": status, "error": fields}
    if n_events is not None:
        message["sequence_number"] = n_events
    if lane is not None:
        message["stream_id"] = lane
    return msgspec.json.encode(message).decode()


def _error_member(body: bytes) -> Json:
    try:
        error = msgspec.json.decode(body, type=Json).get("error")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return error if isinstance(error, dict) else {}


def encode_steer_failure(frame: SteerFrame) -> str:
    """The reply to a `response.steer`: an HTTP upstream takes no input while it answers."""
    steer = msgspec.json.decode(frame.steer, type=Json)
    message = "This gateway cannot steer responses. Send the input by response.create once the response has ended."
    return msgspec.json.encode({
        "type": "response.steer.failed", "sequence_number": 0,
        "error": {"type": "invalid_request_error", "code": "steering_not_supported", "message": message},
        "steer": {"previous_response_id": frame.previous_response_id, "input": steer.get("input")}}).decode()


def encode_empty_response(request: Request, fields: RawObject, response_id: str, created_at: int) -> list[bytes]:
    """The events of a response without output (`generate: false`): created and completed."""
    echoed = {name: fields[name] for name in ("instructions", "metadata", "temperature", "top_p", "text", "reasoning")
              if name in fields}
    usage = {"input_tokens": 0, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 0,
             "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 0}
    response: Json = {
        "id": response_id, "object": "response", "created_at": created_at, "status": "in_progress", "error": None,
        "incomplete_details": None, "instructions": None, "model": request.model, "output": [], "metadata": {},
        "parallel_tool_calls": True, "tool_choice": fields.get("tool_choice", "auto"), "tools": fields.get("tools", []),
        "previous_response_id": fields.get("previous_response_id"), "store": False, "usage": None} | echoed
    finished = response | {"status": "completed", "usage": usage}
    return [msgspec.json.encode({"type": "response.created", "sequence_number": 0, "response": response}),
            msgspec.json.encode({"type": "response.completed", "sequence_number": 1, "response": finished})]
