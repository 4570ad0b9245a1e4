"""Checks an encoded answer with the official SDKs' types, and decodes it again."""

from anthropic.types import Message, RawMessageStreamEvent
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from stayfast.core.types import AnswerSummary, Api
from stayfast.wire.transcode import make_transcoder
from tests.unit.wire.recorded import events, request

CLIENTS = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)
SDK_EVENTS: dict[Api, TypeAdapter[object]] = {
    Api.CHAT: TypeAdapter(ChatCompletionChunk), Api.COMPLETIONS: TypeAdapter(Completion),
    Api.RESPONSES: TypeAdapter(ResponseStreamEvent), Api.MESSAGES: TypeAdapter(RawMessageStreamEvent)}
SDK_WHOLE: dict[Api, TypeAdapter[object]] = {
    Api.CHAT: TypeAdapter(ChatCompletion), Api.COMPLETIONS: TypeAdapter(Completion), Api.RESPONSES: TypeAdapter(Response),
    Api.MESSAGES: TypeAdapter(Message)}


def read_again(client: Api, body: bytes, *, stream: bool) -> AnswerSummary:
    """The summary of our own decoder for an answer in this dialect."""
    coder = make_transcoder(client, request(client, stream=stream), source_streams=stream, upstream="again")
    coder.feed(body)
    coder.finish()
    return coder.summary


def check(client: Api, body: bytes, *, stream: bool) -> None:
    """Validate every event, or the body, with the vendor's own types."""
    if stream:
        for event in events(body):
            if client is Api.COMPLETIONS:  # the SDK's type has no name for a chunk without a reason, which all servers send
                event["choices"] = [{**each, "finish_reason": each["finish_reason"] or "stop"} for each in event["choices"]]
            SDK_EVENTS[client].validate_python(event)
    else:
        SDK_WHOLE[client].validate_json(body)
