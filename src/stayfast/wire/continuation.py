"""One answer said by two upstreams: the second is asked to go on from the first one's words, and the client sees one answer.

All of it happens in the client's own dialect. What the client has is read as it was sent; the request for the rest is the
client's with the words so far as the assistant's last message (of completions: at the end of the prompt), and less room for
output; the rest is read as a client would, and said again by a writer that has been taken to where the first half stopped.
So each pair of upstreams that can answer a request can also share its answer.

Only running text can be continued: no call of a tool, no reasoning, no refusal, no promised format (a schema begins anew
with the second half), one choice, and no more than is known of what the client asked (log probabilities and the like).

Where two halves of a text meet (`Seam`): the second half is asked for with the first as its beginning, without the blanks
that end it: providers refuse them there, and most models' tokens hold the blank before a word. So of what comes back:

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
from stayfast.core.types import Api, Request, Sight, Usage
from stayfast.wire import sse
from stayfast.wire.dialect import Begin, Delta, Finish, Json, TextDelta, ThinkingDelta, object_in, unsayable
from stayfast.wire.encode import conversation
from stayfast.wire.transcode import WRONG_SHAPE, said_in_events, source_of, writer_of

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


class Seam:
    """The second half of one text. One task owns it."""

    __slots__ = ("_blanks", "_held", "_is_over", "prefix")

    def __init__(self, said: str) -> None:
        self.prefix = said.rstrip()  # what is asked to be continued
        self._blanks = said[len(self.prefix):]
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
        return f"<Seam after {len(self.prefix)} characters, {'over' if self._is_over else 'open'}>"


class Continuation:
    """The second half of one answer. `request` is what to ask for; `n_said` tokens, about, are said. One task owns it."""

    __slots__ = ("_source", "_splitter", "_writer", "n_said", "request", "seam", "sight")

    def __init__(self, request: Request, so_far: bytes, created_at: int) -> None:
        """`so_far`: all bytes that the client has of the answer to its `request`. Raises CannotGoOn."""
        asked = _asked(request)
        self._writer = writer_of(request, created_at)
        try:
            said = self._replay(request, so_far)
        except WRONG_SHAPE:
            raise CannotGoOn("blocks") from None
        text = "".join(said)
        self.n_said = max(len(said), len(text.encode()) // BYTES_A_TOKEN)
        self.seam = Seam(text)
        self.request = _request(request, asked, self.seam.prefix, self.n_said)
        self.sight = Sight()
        self._source = source_of(request.api, request, "", self.sight)
        self._splitter = sse.Splitter()

    def _replay(self, request: Request, so_far: bytes) -> list[str]:
        """Take the writer past what the client has; returns its text. Raises CannotGoOn for anything but running text."""
        if len(so_far) > MAX_SO_FAR_BYTES:
            raise CannotGoOn("length")
        check = _check_chunk if request.api in _SAY_DONE else _check_event
        source = source_of(request.api, request, "", Sight())
        texts: list[str] = []
        for data, name in sse.events(sse.Splitter(MAX_SO_FAR_BYTES), so_far):
            source.see(data, name)
            if source.ended:
                raise CannotGoOn("over")
            said = object_in(data)
            if not said:
                raise CannotGoOn("blocks")
            check(said)
            deltas = source.deltas()
            places = [_place(event) for delta in deltas for event in self._writer.events(delta)]
            if places and check is _check_event and _place(said) not in places:
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
        for said, name in sse.events(self._splitter, data):
            if not self._source.ended:
                self._source.see(said, name)
                for delta in self._source.deltas():
                    events += self._said(delta)
        return events

    def _said(self, delta: Delta) -> list[Json]:
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
        events = [] if self.sight.finish_reason is not None else self._said(Finish("length"))
        return [*events, *self.end(usage)]


def in_bytes(api: Api, events: list[Json], *, is_end: bool = False) -> bytes:
    """Events as a client of this dialect reads them."""
    says_done = api in _SAY_DONE
    if is_end:
        return said_in_events(events, says_done=says_done)
    return b"".join(sse.event(_ENCODER.encode(said), None if says_done else said["type"]) for said in events)


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


def _asked(request: Request) -> Conversation:
    """What the client asked. Raises CannotGoOn for what an answer in two halves would not keep."""
    if not request.stream or request.is_stateful or request.n_choices != 1:
        raise CannotGoOn("request")
    try:
        asked = conversation(request)
    except Rejected:
        raise CannotGoOn("request") from None
    if asked.native or asked.messages[-1].role != "user":
        raise CannotGoOn("request")
    if asked.output_format is not None:
        raise CannotGoOn("format")
    if asked.tool_choice is not None and asked.tool_choice.mode in _FORCED:
        raise CannotGoOn("tools")
    if asked.effort is not None:
        raise CannotGoOn("thinking")  # it begins anew with the second half, or is refused there
    return asked


def _place(event: Json) -> tuple[object, ...]:
    """What an event says of where in the answer it stands."""
    return tuple(event.get(name) for name in ("type", "index", "sequence_number", "item_id"))


def _check_chunk(said: Json) -> None:
    """A chunk of chat or completions that holds running text of one choice, if anything."""
    for choice in said.get("choices") or ():
        if choice.get("finish_reason"):
            raise CannotGoOn("over")
        delta = choice.get("delta") or {}
        if choice.get("index", 0) != 0 or any(value for name, value in delta.items() if name not in ("role", "content")):
            raise CannotGoOn("tools" if delta.get("tool_calls") else "blocks")


def _check_event(said: Json) -> None:
    """An event of messages or responses that belongs to running text."""
    if said.get("type") not in _TEXT_EVENTS:
        raise CannotGoOn("blocks")
    for name, kind in _TEXT_KINDS.items():
        part = said.get(name)
        if isinstance(part, dict) and part.get("type") != kind:
            raise CannotGoOn("blocks")


def _request(request: Request, asked: Conversation, prefix: str, n_said: int) -> Request:
    """The client's request, going on after `prefix`."""
    body: dict[str, Any] = _OBJECT.decode(request.body)
    limit = request.max_output_tokens
    for name in _LIMITS:
        if name in body and (most := _ANY.decode(body[name])) is not None:
            if most <= n_said:
                raise CannotGoOn("length")
            body[name] = limit = most - n_said
    if prefix:
        _append(body, request.api, asked, prefix)
    return msgspec.structs.replace(request, body=_ENCODER.encode(body), max_output_tokens=limit)


def _append(body: dict[str, Any], api: Api, asked: Conversation, prefix: str) -> None:
    message = {"role": "assistant", "content": prefix}
    if api is Api.COMPLETIONS:
        body[_PROMPT] = asked.messages[0].text + prefix
    elif api is Api.RESPONSES:
        said = _INPUTS.decode(body[_INPUT])
        items = [{"role": "user", "content": said}] if isinstance(said, str) else said
        body[_INPUT] = [*items, message]
    else:
        body[_MESSAGES] = [*msgspec.json.decode(body[_MESSAGES], type=list[Raw]), message]
