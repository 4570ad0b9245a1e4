"""A simulated Amazon Bedrock: what Converse and ConverseStream answer to a request, as bytes. A server sends them.

The answer follows from the request: a tool call if a tool is required, or is offered and was not used yet; JSON if a schema
is given; else a text that repeats the last question. How it fails follows from the model's name (`BedrockModel`).
Tests let botocore read all of it.
"""

from collections.abc import Callable, Iterator, Mapping
from re import fullmatch
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from stayfast.lab.simulated.filler_text import make_json, split_tokens
from stayfast.wire.event_stream import CONTENT_TYPE, encode_event_frame, encode_exception_frame

Json = dict[str, Any]
VerifySignature = Callable[[str, str, Mapping[str, str], bytes], bool]  # method, target, headers, body
SIGNATURE: Final = "c2lnbmF0dXJl"
REDACTED: Final = "ZW5jcnlwdGVk"
N_CACHED: Final = 4  # tokens of a prompt with a cache point, all read from the cache after the first request
LATENCY_MS: Final = 120
_FORBIDDEN, _NOT_FOUND, _INVALID = 403, 404, 400


class BedrockModel(NamedTuple):
    """How a model behaves. error: status, name and message of an HTTP error. exception: name of one inside the stream.
    n_events: events before the exception, the cut or the silence; None: the whole answer. stop_reason: instead of the usual.
    """

    error: tuple[int, str, str] | None = None
    exception: str = ""
    n_events: int | None = None
    is_silent: bool = False
    stop_reason: str = ""


class BedrockAnswer(NamedTuple):
    """One answer. parts: of the body, in order. is_silent: it never ends."""

    status: int
    headers: dict[str, str]
    parts: list[bytes]
    is_silent: bool = False


class BedrockVendor:
    """Answers requests. bearer: the API key that is accepted; verify: whether a signature is right; None: any is."""

    def __init__(self, models: Mapping[str, BedrockModel], bearer: str | None = None, verify: VerifySignature | None = None
                 ) -> None:
        self._models = models
        self._bearer = bearer
        self._verify = verify
        self._n_answers = 0
        self._cached: set[bytes] = set()  # prompts with a cache point

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> BedrockAnswer:
        """headers: with lower-case names. target: as it was sent."""
        refused = self._refuse(method, target, headers, body)
        if refused is not None:
            return refused
        match = fullmatch(r"/model/([^/]+)/(converse|converse-stream)", target)
        if match is None:
            return error_answer(_NOT_FOUND, "UnknownOperationException", "Unknown operation.")
        model = self._models.get(unquote(match[1]))
        if model is None:
            return error_answer(_NOT_FOUND, "ResourceNotFoundException", "The model does not exist.")
        if model.error is not None:
            return error_answer(*model.error)
        try:
            request = msgspec.json.decode(body, type=dict[str, Any])
            content, reason = _write_content(request)
        except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
            return error_answer(_INVALID, "ValidationException", "The request is malformed.")
        self._n_answers += 1
        usage = self._count(request, content)
        if match[2] == "converse":
            return _whole_answer(content, model.stop_reason or reason, usage, request)
        events = list(_stream_events(content, model.stop_reason or reason, usage, request))
        frames = [encode_event_frame(name, msgspec.json.encode(event)) for name, event in events[: model.n_events]]
        if model.exception:
            frames.append(encode_exception_frame(model.exception, b'{"message":"It failed."}'))
        return BedrockAnswer(200, {"content-type": CONTENT_TYPE, "x-amzn-requestid": "req-sim"}, frames, model.is_silent)

    def _refuse(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> BedrockAnswer | None:
        given = headers.get("authorization", "")
        if given.startswith("Bearer "):
            if self._bearer is not None and given != f"Bearer {self._bearer}":
                return error_answer(_FORBIDDEN, "AccessDeniedException", "Authentication failed: the API key is not valid.",
                                    member="Message")
        elif not given:
            return error_answer(_FORBIDDEN, "MissingAuthenticationTokenException", "Missing Authentication Token")
        elif self._verify is not None and not self._verify(method, target, headers, body):
            return error_answer(_FORBIDDEN, "InvalidSignatureException",
                                "The request signature we calculated does not match the signature you provided.")
        return None

    def _count(self, request: Json, content: list[Json]) -> Json:
        """Tokens as Bedrock counts them: `inputTokens` is without those of the cache."""
        prompt = msgspec.json.encode([request.get("system"), request["messages"]])
        n_input, n_output = len(prompt) // 4, max(1, len(msgspec.json.encode(content)) // 4)
        if b'"cachePoint"' not in prompt:
            return {"inputTokens": n_input, "outputTokens": n_output, "totalTokens": n_input + n_output}
        usage = {"inputTokens": n_input, "outputTokens": n_output, "totalTokens": n_input + n_output + N_CACHED}
        if prompt in self._cached:
            return usage | {"cacheReadInputTokens": N_CACHED, "cacheWriteInputTokens": 0}
        self._cached.add(prompt)
        return usage | {"cacheReadInputTokens": 0, "cacheWriteInputTokens": N_CACHED,
                        "cacheDetails": [{"ttl": "5m", "inputTokens": N_CACHED}]}


def error_answer(status: int, name: str, message: str, *, member: str = "message") -> BedrockAnswer:
    """An HTTP error."""
    headers = {"content-type": "application/json", "x-amzn-errortype": f"{name}:http://internal.amazon.com/coral/",
               "x-amzn-requestid": "req-sim"}
    return BedrockAnswer(status, headers, [msgspec.json.encode({member: message})])


def _write_content(request: Json) -> tuple[list[Json], str]:
    """The blocks of the answer and why it ended."""
    thought: list[Json] = []
    output = request.get("outputConfig") or {}
    if "effort" in output:
        thought = [{"reasoningContent": {"reasoningText": {"text": "Let me see.", "signature": SIGNATURE}}},
                   {"reasoningContent": {"redactedContent": REDACTED}}]
    last = request["messages"][-1]["content"]
    calls = _write_calls(request.get("toolConfig"), has_results=any("toolResult" in block for block in last))
    if calls:
        return [*thought, *calls], "tool_use"
    if "textFormat" in output:
        text = make_json(msgspec.json.decode(output["textFormat"]["structure"]["jsonSchema"]["schema"]), 0)
    else:
        results = [part for block in last if "toolResult" in block for part in block["toolResult"]["content"]]
        text = f"You wrote: {' '.join([part['text'] for part in (*last, *results) if 'text' in part])}"
    n_most = (request.get("inferenceConfig") or {}).get("maxTokens")
    pieces = split_tokens(text)
    if n_most is not None and len(pieces) > n_most:
        return [*thought, {"text": "".join(pieces[:n_most])}], "max_tokens"
    return [*thought, {"text": text}], "end_turn"


def _write_calls(config: Json | None, *, has_results: bool) -> list[Json]:
    """A call of each tool that the request wants called."""
    if config is None:
        return []
    specs = [tool["toolSpec"] for tool in config["tools"] if "toolSpec" in tool]
    choice = config.get("toolChoice") or {"auto": {}}
    if "tool" in choice:
        specs = [spec for spec in specs if spec["name"] == choice["tool"]["name"]]
    elif has_results and "any" not in choice:
        return []
    return [{"toolUse": {"toolUseId": f"tooluse_{at}", "name": spec["name"],
                         "input": msgspec.json.decode(make_json(spec["inputSchema"]["json"], 0))}}
            for at, spec in enumerate(specs)]


def _ending(request: Json) -> Json:
    """The members of the last events that repeat the request's."""
    return {name: request[name] for name in ("performanceConfig", "serviceTier") if name in request}


def _whole_answer(content: list[Json], reason: str, usage: Json, request: Json) -> BedrockAnswer:
    body = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": reason, "usage": usage,
            "metrics": {"latencyMs": LATENCY_MS}, **_ending(request)}
    return BedrockAnswer(200, {"content-type": "application/json", "x-amzn-requestid": "req-sim"},
                         [msgspec.json.encode(body)])


def _stream_events(content: list[Json], reason: str, usage: Json, request: Json) -> Iterator[tuple[str, Json]]:
    yield "messageStart", {"role": "assistant", "p": "abcdefghijkl"}
    for index, block in enumerate(content):
        call = block.get("toolUse")
        if call is not None:
            start = {"toolUse": {"toolUseId": call["toolUseId"], "name": call["name"]}}
            yield "contentBlockStart", {"start": start, "contentBlockIndex": index, "p": "abc"}
        for delta in _deltas(block):
            yield "contentBlockDelta", {"delta": delta, "contentBlockIndex": index, "p": "abcdef"}
        yield "contentBlockStop", {"contentBlockIndex": index, "p": "ab"}
    yield "messageStop", {"stopReason": reason, "p": "abcd"}
    yield "metadata", {"usage": usage, "metrics": {"latencyMs": LATENCY_MS}, "p": "a", **_ending(request)}


def _deltas(block: Json) -> Iterator[Json]:
    if "toolUse" in block:
        arguments = msgspec.json.encode(block["toolUse"]["input"]).decode()
        if arguments != "{}":  # a call without arguments has no delta
            yield from ({"toolUse": {"input": piece}} for piece in split_tokens(arguments))
    elif "text" in block:
        yield from ({"text": piece} for piece in split_tokens(block["text"]))
    elif "redactedContent" in block["reasoningContent"]:
        yield {"reasoningContent": {"redactedContent": block["reasoningContent"]["redactedContent"]}}
    else:
        thought = block["reasoningContent"]["reasoningText"]
        yield from ({"reasoningContent": {"text": piece}} for piece in split_tokens(thought["text"]))
        yield {"reasoningContent": {"signature": thought["signature"]}}
