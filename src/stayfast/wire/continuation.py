"""One answer said by two upstreams: the second is asked to go on from the first one's words, and the client sees one answer.

All of it happens in the client's own dialect. What the client has is read as it was sent; the request for the rest is the
client's with the words so far as the assistant's last message (of completions: at the end of the prompt), and less room for
output; the rest is read as a client would, and said again by a writer that has been taken to where the first half stopped.
So each pair of upstreams that can answer a request can also share its answer.

Only running text can be continued: no call of a tool, no reasoning, no refusal, no promised format (a schema begins anew
with the second half), one choice, and no more than is known of what the client asked (log probabilities and the like).

Where two halves of a text meet (`SeamTrimmer`): the second half is asked for with the first as its beginning, without the
blanks that end it: providers refuse them there, and most models' tokens hold the blank before a word. So of what comes back:

    blanks first    those that were said already are left out, the others stay
    no blanks       what follows the blanks that were said already

Everything else is given on as it comes: whoever is asked has said (`continues`) that it goes on exactly. A repeat is not
looked for, since code, tables and lists say the same lines again and again: any rule that leaves out what an upstream says
twice loses what a text says twice.
When wrong: an upstream that says the first half once more before it goes on is heard twice.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.conversation import Conversation
from stayfast.core.errors import Rejected
from stayfast.core.types import AnswerSummary, Api, Request, Usage
from stayfast.wire import sse
from stayfast.wire.dialect import Begin, Delta, Finish, Json, TextDelta, ThinkingDelta, object_in, unsayable
from stayfast.wire.json_input import conversation
from stayfast.wire.transcode import WRONG_SHAPE, encode_events, source_of, writer_of

MAX_SO_FAR_BYTES: Final = 4 * 1024 * 1024  # of events: some 20,000 tokens, each in one of its own
_FORCED: Final = ("required", "named")
_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_SAY_DONE: Final = (Api.CHAT, Api.COMPLETIONS)
_PROMPT, _INPUT, _MESSAGES = "prompt", "input", "messages"
_TEXT_EVENTS: Final = frozenset((
    "ping", "message_start", "content_block_start", "content_block_delta", "response.created", "response.in_progress",
    "response.output_item.added", "response.content_part.added", "response.output_text.delta"))
_TEXT_KINDS: Final = {"content_block": "text", "delta": "text_delta", "item": "message", "part": "output_text"}
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_INPUTS: Final = msgspec.json.Decoder(str | list[Raw])
_ANY: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()
_TRUE, _FALSE = Raw(b"true"), Raw(b"false")


class CannotGoOn(Exception):
    """This answer can be continued by nobody; the message is one word of why."""


class SeamTrimmer:
    """The second half of one text. One task owns it."""

    __slots__ = ("_blanks", "_held", "_is_over", "prefix")

    def __init__(self, sent_text: str) -> None:
        self.prefix = sent_text.rstrip()  # what is asked to be continued
        self._blanks = sent_text[len(self.prefix):]
        self._held = ""
        self._is_over = not self._blanks

    def take(self, text: str, *, is_last: bool = False) -> str:
        """More of the second half came; returns what the reader gets of it now. `is_last`: nothing may be held back."""
        if self._is_over:
            return text
        self._held += text
        body = self._held.lstrip()
        if not body and not is_last:
            return ""
        self._is_over = True
        blanks = self._held[: len(self._held) - len(body)]
        return (blanks[len(self._blanks):] if blanks.startswith(self._blanks) else "") + body

    def __repr__(self) -> str:
        return f"<SeamTrimmer after {len(self.prefix)} characters, {'over' if self._is_over else 'open'}>"


class Continuation:
    """The second half of one answer. `request` is what to ask for; `n_sent` tokens, about, are said. One task owns it."""

    __slots__ = ("_source", "_splitter", "_writer", "n_sent", "request", "seam", "sight")

    def __init__(self, request: Request, so_far: bytes, created_at: int) -> None:
        """`so_far`: all bytes that the client has of the answer to its `request`. Raises CannotGoOn."""
        parsed = _parse_conversation(request)
        self._writer = writer_of(request, created_at)
        try:
            replayed = self._replay(request, so_far)
        except WRONG_SHAPE:
            raise CannotGoOn("blocks") from None
        text = "".join(replayed)
        self.n_sent = max(len(replayed), len(text.encode()) // BYTES_A_TOKEN)
        self.seam = SeamTrimmer(text)
        self.request = _request(request, parsed, self.seam.prefix, self.n_sent)
        self.sight = AnswerSummary()
        self._source = source_of(request.api, request, "", self.sight)
        self._splitter = sse.Splitter()

    def _replay(self, request: Request, so_far: bytes) -> list[str]:
        """Take the writer past what the client has; returns its text. Raises CannotGoOn for anything but running text."""
        if len(so_far) > MAX_SO_FAR_BYTES:
            raise CannotGoOn("length")
        check = _check_chunk if request.api in _SAY_DONE else _check_event
        source = source_of(request.api, request, "", AnswerSummary())
        texts: list[str] = []
        for data, name in sse.events(sse.Splitter(MAX_SO_FAR_BYTES), so_far):
            source.see(data, name)
            if source.ended:
                raise CannotGoOn("over")
            parsed = object_in(data)
            if not parsed:
                raise CannotGoOn("blocks")
            check(parsed)
            deltas = source.deltas()
            places = [_place(event) for delta in deltas for event in self._writer.events(delta)]
            if places and check is _check_event and _place(parsed) not in places:
                raise CannotGoOn("blocks")  # whoever sent this counts otherwise than the writer does
            for delta in deltas:
                if isinstance(delta, TextDelta):
                    texts.append(delta.text)
                elif not isinstance(delta, Begin):
                    raise CannotGoOn("thinking" if isinstance(delta, ThinkingDelta) else "tools")
        return texts

    def feed(self, data: bytes) -> list[Json]:
        """More of the second half; returns the events that the client gets. Raises CannotGoOn for what is none."""
        try:
            return self._read(data)
        except WRONG_SHAPE:
            raise CannotGoOn("blocks") from None

    def _read(self, data: bytes) -> list[Json]:
        events: list[Json] = []
        for event, name in sse.events(self._splitter, data):
            if not self._source.ended:
                self._source.see(event, name)
                for delta in self._source.deltas():
                    events += self._encode_delta(delta)
        return events

    def _encode_delta(self, delta: Delta) -> list[Json]:
        if isinstance(delta, Begin | ThinkingDelta):  # the answer has begun, and is past its reasoning
            return []
        if isinstance(delta, TextDelta):
            return self._text(self.seam.take(delta.text))
        return [*self._text(self.seam.take("", is_last=True)), *self._writer.events(delta)]

    def _text(self, text: str) -> list[Json]:
        return self._writer.events(TextDelta(text)) if text else []

    def end(self, usage: Usage | None) -> list[Json]:
        """The events that end the answer, whole. `usage` is of both halves."""
        return [*self._text(self.seam.take("", is_last=True)), *self._writer.end(usage)]

    def cut(self, usage: Usage | None) -> list[Json]:
        events = [] if self.sight.finish_reason is not None else self._encode_delta(Finish("length"))
        return [*events, *self.end(usage)]


def in_bytes(api: Api, events: list[Json], *, is_end: bool = False) -> bytes:
    """Events as a client of this dialect reads them."""
    ends_with_done = api in _SAY_DONE
    if is_end:
        return encode_events(events, ends_with_done=ends_with_done)
    return b"".join(sse.event(_ENCODER.encode(event), None if ends_with_done else event["type"]) for event in events)


def both(first: Usage, second: Usage | None) -> Usage:
    """What two attempts took together."""
    if second is None:
        return first
    return Usage(*(one + other for one, other in zip(
        msgspec.structs.astuple(first), msgspec.structs.astuple(second), strict=True)))


def going_on(body: bytes, client: Api, spoken: Api) -> bytes:
    """A request whose last message is to be continued, as an endpoint that speaks `spoken` is asked for that: chat with the
    fields of vLLM and SGLang, messages and completions as they are. Raises Rejected for pairs that cannot say it.
    """
    if spoken is Api.RESPONSES or (client is Api.COMPLETIONS) is not (spoken is Api.COMPLETIONS):
        raise unsayable("messages", spoken.value, "it cannot continue an answer")
    if spoken is not Api.CHAT:
        return body
    return _ENCODER.encode(_OBJECT.decode(body) | {"continue_final_message": _TRUE, "add_generation_prompt": _FALSE})


def _parse_conversation(request: Request) -> Conversation:
    """What the client asked. Raises CannotGoOn for what an answer in two halves would not keep."""
    if not request.stream or request.is_stateful or request.n_choices != 1:
        raise CannotGoOn("request")
    try:
        parsed = conversation(request)
    except Rejected:
        raise CannotGoOn("request") from None
    if parsed.native or parsed.messages[-1].role != "user":
        raise CannotGoOn("request")
    if parsed.output_format is not None:
        raise CannotGoOn("format")
    if parsed.tool_choice is not None and parsed.tool_choice.mode in _FORCED:
        raise CannotGoOn("tools")
    if parsed.effort is not None:
        raise CannotGoOn("thinking")  # it begins anew with the second half, or is refused there
    return parsed


def _place(event: Json) -> tuple[object, ...]:
    """What an event says of where in the answer it stands."""
    return tuple(event.get(name) for name in ("type", "index", "sequence_number", "item_id"))


def _check_chunk(chunk: Json) -> None:
    """A chunk of chat or completions that holds running text of one choice, if anything."""
    for choice in chunk.get("choices") or ():
        if choice.get("finish_reason"):
            raise CannotGoOn("over")
        delta = choice.get("delta") or {}
        if choice.get("index", 0) != 0 or any(value for name, value in delta.items() if name not in ("role", "content")):
            raise CannotGoOn("tools" if delta.get("tool_calls") else "blocks")


def _check_event(event: Json) -> None:
    """An event of messages or responses that belongs to running text."""
    if event.get("type") not in _TEXT_EVENTS:
        raise CannotGoOn("blocks")
    for name, kind in _TEXT_KINDS.items():
        part = event.get(name)
        if isinstance(part, dict) and part.get("type") != kind:
            raise CannotGoOn("blocks")


def _request(request: Request, parsed: Conversation, prefix: str, n_sent: int) -> Request:
    """The client's request, going on after `prefix`."""
    body: dict[str, Any] = _OBJECT.decode(request.body)
    limit = request.max_output_tokens
    for name in _LIMITS:
        if name in body and (most := _ANY.decode(body[name])) is not None:
            if most <= n_sent:
                raise CannotGoOn("length")
            body[name] = limit = most - n_sent
    if prefix:
        _append(body, request.api, parsed, prefix)
    return msgspec.structs.replace(request, body=_ENCODER.encode(body), max_output_tokens=limit)


def _append(body: dict[str, Any], api: Api, parsed: Conversation, prefix: str) -> None:
    message = {"role": "assistant", "content": prefix}
    if api is Api.COMPLETIONS:
        body[_PROMPT] = parsed.messages[0].text + prefix
    elif api is Api.RESPONSES:
        input_items = _INPUTS.decode(body[_INPUT])
        items = [{"role": "user", "content": input_items}] if isinstance(input_items, str) else input_items
        body[_INPUT] = [*items, message]
    else:
        body[_MESSAGES] = [*msgspec.json.decode(body[_MESSAGES], type=list[Raw]), message]
