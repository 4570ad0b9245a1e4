"""An upstream's body in, bytes for the client out, and a `AnswerSummary` of what was seen on the way.

Four shapes. Same dialect, streamed: whole events pass verbatim and are only looked at. Across dialects, streamed: each
event becomes deltas (wire.dialect), and these the client's events. Streamed for a client that wants it whole: the events
are folded. Whole for whole: verbatim, or translated by way of the very same deltas, so that each pair has one meaning.
Embeddings and token counts only ever come whole and have one dialect.
"""

from abc import ABC, abstractmethod
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw, Struct

from stayfast.core.types import AnswerSummary, Api, Chunk, Request
from stayfast.wire import sse, usage
from stayfast.wire.chat.stream_decoder import ChatFold, ChatSource
from stayfast.wire.chat.stream_encoder import ChatWriter, CompletionsWriter
from stayfast.wire.dialect import (
    AnswerCollector,
    Delta,
    Finish,
    Json,
    StreamDecoder,
    StreamEncoder,
    WholeSource,
    object_in,
)
from stayfast.wire.encode import can_translate
from stayfast.wire.errors import in_band, malformed, truncated
from stayfast.wire.in_turn import InTurn
from stayfast.wire.messages.stream_decoder import MessagesFold, MessagesSource
from stayfast.wire.messages.stream_encoder import MessagesWriter
from stayfast.wire.responses.stream_decoder import ResponsesFold, ResponsesSource
from stayfast.wire.responses.stream_encoder import ResponsesWriter


class WireEmbedding(Struct, gc=False):
    """One member of the list. That Python code runs for each is what lets the loop's thread run while another decodes."""

    embedding: Raw = Raw(b"")

    def __post_init__(self) -> None:
        """Nothing to check: see above."""


class Embeddings(Struct, gc=False):
    data: list[WireEmbedding] | None = None
    usage: Any = None
    error: Any = None


class Count(Struct, gc=False):
    input_tokens: int | None = None
    error: Any = None


_DECODERS: Final[dict[Api, "msgspec.json.Decoder[Embeddings | Count]"]] = {
    Api.EMBEDDINGS: msgspec.json.Decoder(Embeddings), Api.COUNT_TOKENS: msgspec.json.Decoder(Count)}


class PlainSource(WholeSource):
    """One embeddings or count_tokens answer. One task owns it."""

    __slots__ = ("_api",)

    def __init__(self, upstream: str, api: Api, sight: AnswerSummary) -> None:
        super().__init__(upstream, sight)
        self._api = api

    def see_whole(self, body: bytes) -> None:
        try:
            parsed = _DECODERS[self._api].decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.fail(malformed(self._upstream, "an answer that is not one"))
        if parsed.error:
            return self.fail(in_band(self._upstream, object_in(body)))
        if isinstance(parsed, Embeddings):
            self.sight.usage = usage.from_openai(parsed.usage)
        if (parsed.data if isinstance(parsed, Embeddings) else parsed.input_tokens) is None:
            return self.fail(malformed(self._upstream, "an answer without its content"))
        return self._complete(self.sight.usage)


MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024  # 2048 embeddings of 3072 floats, as text, are 130 MB

_CHAT: Final = Api.CHAT
ENDS_WITH_DONE: Final = (Api.CHAT, Api.COMPLETIONS)
_LF: Final = 0x0A
_CR: Final = 0x0D
_DONE: Final = b"data: [DONE]\n\n"
_CUT: Final = Finish("length")  # what every dialect has a word for
_ANY: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()
# What upstreams can make the code below raise by sending JSON of the wrong shape; anything else is our own fault.
WRONG_SHAPE: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


class Transcoder(Protocol):
    """One answer on its way from an upstream to a client. One task owns it."""

    sight: AnswerSummary

    @property
    def has_ended(self) -> bool:
        """The protocol's own end was seen: call `finish`, whatever else the body may hold."""

    @property
    def n_held(self) -> int:
        """Bytes of an answer that is collected before its client gets any of it; 0 for others. `finish` takes a time in
        proportion to it, may run in another thread, and lets others run between the members of a large list.
        """

    def feed(self, data: bytes) -> Chunk | None:
        """Take what was read, split anywhere; returns what the client gets now. Failures show in `sight.failure`."""

    def finish(self) -> Chunk | None:
        """The upstream's body ended cleanly. Where the answer is not whole, `sight.failure` says so after this."""

    def cut(self) -> Chunk | None:
        """End a begun answer as one that met its length limit; None where that cannot be said, or where it has ended."""


class _Events(ABC):
    """A streamed answer, event by event. What the client gets of each is the subclasses' business."""

    def __init__(self, source: StreamDecoder, sight: AnswerSummary, upstream: str) -> None:
        self.sight = sight
        self._source = source
        self._upstream = upstream
        self._splitter = sse.Splitter()

    n_held = 0

    @property
    def has_ended(self) -> bool:
        return self._source.ended

    def feed(self, data: bytes) -> Chunk | None:
        out: list[bytes] = []
        n_content = 0
        for block in self._split(data):
            event, name = (block, b"") if self._splitter.are_data else sse.parse(block)
            if event is not None:
                n_content += self._take(event, name, out)
            if self._source.ended:
                break
        return Chunk(b"".join(out), n_content) if out or n_content else None

    def _split(self, data: bytes) -> list[bytes]:
        if self._source.ended:
            return []
        try:
            return self._splitter.feed(data)
        except sse.EventTooLong:
            self._source.fail(malformed(self._upstream, "an event without end"))
            return []

    def cut(self) -> Chunk | None:
        if self._source.ended:
            return None
        out: list[bytes] = []
        try:
            self._cut(out)
        except WRONG_SHAPE:
            return None
        self._source.ended = True
        self.sight.is_cut = True
        return Chunk(b"".join(out))

    def finish(self) -> Chunk | None:
        out: list[bytes] = []
        n_content = 0
        rest = self._splitter.rest()
        if rest and not self._source.ended:
            n_content = self._take_rest(rest, out)
        has_ended = self._source.ended
        self._source.finish()
        if self.sight.is_complete:
            self._end(out, has_ended=has_ended)
        return Chunk(b"".join(out), n_content) if out or n_content else None

    @abstractmethod
    def _take(self, data: bytes, name: bytes, out: list[bytes]) -> int:
        """Read one event and append what the client gets; returns how much of it is content."""

    @abstractmethod
    def _cut(self, out: list[bytes]) -> None:
        """Append what ends the answer before its end."""

    @abstractmethod
    def _end(self, out: list[bytes], *, has_ended: bool) -> None:
        """The answer is whole. `has_ended`: the upstream itself said its last word."""

    def _take_rest(self, rest: bytes, out: list[bytes]) -> int:
        """An event that lacks only its blank line counts; half an event does not. A bare JSON error is one, too."""
        data, name = sse.parse(rest)
        if data is None:
            parsed = object_in(rest)
            if parsed.get("error"):
                self._source.fail(in_band(self._upstream, parsed))
            return 0
        if data.strip() != b"[DONE]" and not object_in(data):
            return 0
        return self._take(data, name, out)


class Passthrough(_Events):
    """One dialect on both sides: events pass verbatim, comments included, and are only looked at."""

    def __init__(self, source: StreamDecoder, sight: AnswerSummary, upstream: str, *, ends_with_done: bool,
                 hide_usage: bool) -> None:
        super().__init__(source, sight, upstream)
        self._held = self._splitter.held
        self._ends_with_done = ends_with_done
        self._hide_usage = hide_usage

    def feed(self, data: bytes) -> Chunk | None:
        """Take what was read. The hot path: most reads of a running answer are one whole event of one data line."""
        source = self._source
        if data[-3:] != b"}\n\n" or _CR in data or self._held or source.ended:
            return self._feed_any(self._split(data))
        last = len(data) - 2
        newline = data.find(_LF)
        if newline == last and data[:6] == b"data: ":
            n_content = source.see(data[6:-2], b"")
        elif (data[:7] == b"event: " and data[newline + 1 : newline + 7] == b"data: "
              and data.find(_LF, newline + 1) == last):
            n_content = source.see(data[newline + 7 : -2], data[7:newline])
        else:
            return self._feed_any(self._split(data))
        if self.sight.failure is not None or (self._hide_usage and source.is_only_usage):
            return None
        return Chunk(data, n_content)

    def _feed_any(self, blocks: list[bytes]) -> Chunk | None:
        if not blocks:
            return None
        source = self._source
        verbatim = self._splitter.verbatim
        see = source.see
        start = n_content = at = 0
        out = b""
        are_data = self._splitter.are_data
        for at, block in enumerate(blocks, 1):
            data, name = (block, b"") if are_data else sse.parse(block)
            if data is None:
                continue
            n_content += see(data, name)
            if source.ended:
                break
            if self._hide_usage and source.is_only_usage:
                out += verbatim(blocks, start, at - 1)
                start = at
        out += verbatim(blocks, start, at if self.sight.failure is None else at - 1)
        return Chunk(out, n_content) if out else None

    def _take(self, data: bytes, name: bytes, out: list[bytes]) -> int:
        n_content = self._source.see(data, name)
        if self.sight.failure is None and not (self._hide_usage and self._source.is_only_usage):
            out.append(sse.event(data, name.decode(errors="replace") or None))
        return n_content

    def _cut(self, out: list[bytes]) -> None:
        out.append(encode_events(self._source.ending(), ends_with_done=self._ends_with_done))

    def _end(self, out: list[bytes], *, has_ended: bool) -> None:
        if self._ends_with_done and not has_ended:
            out.append(_DONE)


class Translation(_Events):
    """Another dialect on each side: events become deltas, and deltas the client's events."""

    def __init__(self, source: StreamDecoder, sight: AnswerSummary, upstream: str, writer: StreamEncoder, *,
                 is_named: bool) -> None:
        super().__init__(source, sight, upstream)
        self._writer = writer
        self._is_named = is_named  # events have names, and no [DONE] ends them
        self._has_ended = False

    def _take(self, data: bytes, name: bytes, out: list[bytes]) -> int:
        n_content = self._source.see(data, name)
        if self.sight.failure is not None:
            return n_content
        try:
            for delta in self._source.deltas():
                self._write_events(self._writer.events(delta), out)
        except WRONG_SHAPE:
            self._source.fail(malformed(self._upstream, "an event that cannot be translated"))
            return n_content
        if self._source.ended:
            self._end(out, has_ended=True)
        return n_content

    def _cut(self, out: list[bytes]) -> None:
        if self.sight.finish_reason is None:
            self.sight.finish_reason = _CUT.reason
            self._write_events(self._writer.events(_CUT), out)
        self._end(out, has_ended=True)

    def _end(self, out: list[bytes], *, has_ended: bool) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        out.append(encode_events(self._writer.end(self.sight.usage), ends_with_done=not self._is_named))

    def _write_events(self, events: list[Json], out: list[bytes]) -> None:
        self.sight.n_events += len(events)
        out += [sse.event(_ENCODER.encode(event), event["type"] if self._is_named else None) for event in events]


def encode_events(events: list[Json], *, ends_with_done: bool) -> bytes:
    """The end of a stream. `says_done`: its events have no names, and `[DONE]` is the last."""
    encoded = [sse.event(_ENCODER.encode(one), None if ends_with_done else one["type"]) for one in events]
    return b"".join((*encoded, _DONE) if ends_with_done else encoded)


class Rewrite:
    """Deltas, said in the client's events and folded at once: the whole answer in the client's dialect."""

    def __init__(self, writer: StreamEncoder, fold: AnswerCollector) -> None:
        self._writer = writer
        self._fold = fold

    def add(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            for event in self._writer.events(delta):
                self._fold.add(event)

    def end(self, sight: AnswerSummary) -> bytes:
        for event in self._writer.end(sight.usage):
            self._fold.add(event)
        return self._fold.body()


class Collection(_Events):
    """A stream for a client that wants the whole: content is reported as it comes, the body follows at the end."""

    def __init__(self, source: StreamDecoder, sight: AnswerSummary, upstream: str, fold: AnswerCollector | Rewrite) -> None:
        super().__init__(source, sight, upstream)
        self._fold = fold
        self.n_held = 0

    def _take(self, data: bytes, name: bytes, out: list[bytes]) -> int:
        self.n_held += len(data)
        if self.n_held > MAX_ANSWER_BYTES:
            self._source.fail(malformed(self._upstream, "an answer without end"))
            return 0
        n_content = self._source.see(data, name)
        if self.sight.failure is None:
            try:
                self._add(data)
            except WRONG_SHAPE:
                self._source.fail(malformed(self._upstream, "an event that does not fit the ones before"))
        return n_content

    def _add(self, data: bytes) -> None:
        if isinstance(self._fold, Rewrite):
            self._fold.add(self._source.deltas())
        elif data.strip() != b"[DONE]":
            self._fold.add(_ANY.decode(data))

    def _cut(self, out: list[bytes]) -> None:
        if isinstance(self._fold, Rewrite):
            if self.sight.finish_reason is None:
                self.sight.finish_reason = _CUT.reason
                self._fold.add([_CUT])
            out.append(self._fold.end(self.sight))
        else:
            for event in self._source.ending():
                self._fold.add(event)
            out.append(self._fold.body())

    def _end(self, out: list[bytes], *, has_ended: bool) -> None:
        try:
            out.append(self._fold.end(self.sight) if isinstance(self._fold, Rewrite) else self._fold.body())
        except WRONG_SHAPE:
            self._source.fail(malformed(self._upstream, "events that make no answer"))


class Whole:
    """A whole answer in the client's own dialect: verbatim, once it has been looked at."""

    has_ended = False  # only the end of its body ends it

    def __init__(self, source: WholeSource, sight: AnswerSummary, upstream: str) -> None:
        self.sight = sight
        self._source = source
        self._upstream = upstream
        self._parts: list[bytes] = []
        self.n_held = 0

    def feed(self, data: bytes) -> Chunk | None:
        if self.sight.failure is None:
            self._parts.append(data)
            self.n_held += len(data)
            if self.n_held > MAX_ANSWER_BYTES:
                self._source.fail(malformed(self._upstream, "an answer without end"))
        return None

    def finish(self) -> Chunk | None:
        body = b"".join(self._parts)  # which lets other threads run, where it is large
        self._parts = []
        if self.sight.failure is None:
            if body.strip():
                self._source.see_whole(body)
            else:
                self._source.fail(truncated(self._upstream))
        return self._answer(body) if self.sight.failure is None else None

    def cut(self) -> Chunk | None:
        """Half a JSON document is none."""
        return None

    def _answer(self, body: bytes) -> Chunk | None:
        return Chunk(body, 1)


class TranslatedWhole(Whole):
    def __init__(self, source: StreamDecoder, sight: AnswerSummary, upstream: str, rewrite: Rewrite) -> None:
        super().__init__(source, sight, upstream)
        self._reader = source
        self._rewrite = rewrite

    def _answer(self, body: bytes) -> Chunk | None:
        try:
            self._rewrite.add(self._reader.whole())
            return Chunk(self._rewrite.end(self.sight), 1)
        except WRONG_SHAPE:
            self._source.fail(malformed(self._upstream, "an answer that cannot be translated"))
            return None


def transcoder(source: Api, request: Request, *, source_streams: bool, upstream: str, hide_usage: bool = False,
               created_at: int = 0) -> Transcoder:
    """The transcoder from an upstream that speaks `source` to the client who sent `request`.

    hide_usage: the client must not see the usage chunk that `encode(want_usage=True)` asked for. created_at: seconds
    since the epoch, for clients whose dialect dates an answer when the upstream's does not.
    Raises ValueError for pairs that cannot be translated and for a whole answer to a client that streams.
    """
    is_same = request.api is source
    if not is_same and not can_translate(request.api, source):
        raise ValueError(f"{source.value} answers cannot be translated for {request.api.value} clients")
    if request.stream and not source_streams:
        raise ValueError("a whole answer cannot be streamed")
    sight = AnswerSummary()
    if not source.can_stream:
        return Whole(PlainSource(upstream, source, sight), sight, upstream)
    reader = source_of(source, request, upstream, sight)
    ends_with_done = request.api in ENDS_WITH_DONE
    if request.stream and is_same:
        return Passthrough(reader, sight, upstream, ends_with_done=ends_with_done, hide_usage=hide_usage)
    if request.stream:
        is_named = not ends_with_done
        return Translation(reader, sight, upstream, writer_of(request, created_at), is_named=is_named)
    if is_same:
        return Collection(reader, sight, upstream, fold_of(source)) if source_streams else Whole(reader, sight, upstream)
    rewrite = Rewrite(writer_of(request, created_at), fold_of(request.api))
    if source_streams:
        return Collection(reader, sight, upstream, rewrite)
    return TranslatedWhole(reader, sight, upstream, rewrite)


def source_of(api: Api, request: Request, upstream: str, sight: AnswerSummary) -> StreamDecoder:
    """Who reads the answers that upstreams give in `api`."""
    if api in ENDS_WITH_DONE:
        return ChatSource(upstream, request.n_choices, sight, is_chat=api is _CHAT)
    return MessagesSource(upstream, sight) if api is Api.MESSAGES else ResponsesSource(upstream, sight)


def writer_of(request: Request, created_at: int) -> StreamEncoder:
    """Who says an answer in the client's own dialect."""
    match request.api:
        case Api.MESSAGES:
            return InTurn(MessagesWriter(request))
        case Api.RESPONSES:
            return InTurn(ResponsesWriter(request, created_at))
        case Api.COMPLETIONS:
            return CompletionsWriter(request, created_at)
    return ChatWriter(request, created_at)


def fold_of(api: Api) -> AnswerCollector:
    """What puts an answer's events in `api` together."""
    match api:
        case Api.MESSAGES:
            return MessagesFold()
        case Api.RESPONSES:
            return ResponsesFold()
    return ChatFold(is_chat=api is Api.CHAT)
