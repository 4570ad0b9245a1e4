"""Transcoders: an upstream's body in, bytes for the client out, and an `AnswerSummary` of the answer.

    same dialect, streamed              events pass verbatim and are only read
    other dialect, streamed             event -> deltas (wire.dialect) -> events
    streamed, the client wants a body   events are collected into one body
    whole, the client wants a body      verbatim, or translated by the same deltas

Embeddings and token counts are always whole and have one dialect.
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
from stayfast.wire.in_turn import InTurn
from stayfast.wire.json_input import can_translate
from stayfast.wire.messages.stream_decoder import MessagesFold, MessagesSource
from stayfast.wire.messages.stream_encoder import MessagesWriter
from stayfast.wire.responses.stream_decoder import ResponsesFold, ResponsesSource
from stayfast.wire.responses.stream_encoder import ResponsesWriter


class WireEmbedding(Struct, gc=False):
    """One vector. `__post_init__` runs Python code for each, which lets the event loop's thread run during a long decode."""

    embedding: Raw = Raw(b"")

    def __post_init__(self) -> None:
        """Nothing to check."""


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
    """Decodes one embeddings or count_tokens answer."""

    __slots__ = ("_api",)

    def __init__(self, upstream: str, api: Api, summary: AnswerSummary) -> None:
        super().__init__(upstream, summary)
        self._api = api

    def see_whole(self, body: bytes) -> None:
        try:
            parsed = _DECODERS[self._api].decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.fail_malformed(f"a body that is no {self._api.value} answer")
        if parsed.error:
            return self.fail_in_band(object_in(body))
        if isinstance(parsed, Embeddings):
            self.sight.usage = usage.from_openai(parsed.usage)
        if (parsed.data if isinstance(parsed, Embeddings) else parsed.input_tokens) is None:
            return self.fail_malformed("an answer without its content")
        return self._complete(self.sight.usage)


MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024  # 2048 embeddings of 3072 floats, as text, are 130 MB

_CHAT: Final = Api.CHAT
ENDS_WITH_DONE: Final = (Api.CHAT, Api.COMPLETIONS)
_LF: Final = 0x0A
_CR: Final = 0x0D
_DONE: Final = b"data: [DONE]\n\n"
_LENGTH_LIMIT: Final = Finish("length")
_ANY: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()
# What JSON of the wrong shape can make the code below raise; any other exception is a bug here.
WRONG_SHAPE: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


class Transcoder(Protocol):
    """One answer on its way from an upstream to a client. Owned by one task."""

    sight: AnswerSummary

    @property
    def has_ended(self) -> bool:
        """The protocol's own end was read: call `finish`, whatever else the body may contain."""

    @property
    def n_held(self) -> int:
        """Bytes collected before the client gets any; 0 for a stream. `finish` takes time in proportion, may run in another
        thread, and lets other threads run between the members of a large list.
        """

    def feed(self, data: bytes) -> Chunk | None:
        """Read more of the body, split anywhere. Returns bytes for the client. Failures are stored in `sight.failure`."""

    def finish(self) -> Chunk | None:
        """The upstream's body ended cleanly. Sets `sight.failure` if the answer is not complete."""

    def cut(self) -> Chunk | None:
        """End a running answer as if it had reached its length limit; None if it has ended or cannot be ended."""


class _Events(ABC):
    """A streamed answer, event by event. Subclasses decide what the client gets of each."""

    def __init__(self, decoder: StreamDecoder) -> None:
        self.sight = decoder.sight
        self._decoder = decoder
        self._splitter = sse.Splitter()

    n_held = 0

    @property
    def has_ended(self) -> bool:
        return self._decoder.ended

    def feed(self, data: bytes) -> Chunk | None:
        out: list[bytes] = []
        n_content = 0
        for block in self._split(data):
            event, name = (block, b"") if self._splitter.are_data else sse.parse(block)
            if event is not None:
                n_content += self._convert_event(event, name, out)
            if self._decoder.ended:
                break
        return Chunk(b"".join(out), n_content) if out or n_content else None

    def _split(self, data: bytes) -> list[bytes]:
        if self._decoder.ended:
            return []
        try:
            return self._splitter.feed(data)
        except sse.EventTooLong:
            self._decoder.fail_malformed(f"an event of more than {sse.MAX_EVENT_BYTES} bytes")
            return []

    def cut(self) -> Chunk | None:
        if self._decoder.ended:
            return None
        out: list[bytes] = []
        try:
            self._append_early_end(out)
        except WRONG_SHAPE:
            return None
        self._decoder.ended = True
        self.sight.is_cut = True
        return Chunk(b"".join(out))

    def finish(self) -> Chunk | None:
        out: list[bytes] = []
        n_content = 0
        rest = self._splitter.rest()
        if rest and not self._decoder.ended:
            n_content = self._convert_rest(rest, out)
        has_ended = self._decoder.ended
        self._decoder.finish()
        if self.sight.is_complete:
            self._append_end(out, has_ended=has_ended)
        return Chunk(b"".join(out), n_content) if out or n_content else None

    @abstractmethod
    def _convert_event(self, data: bytes, name: bytes, out: list[bytes]) -> int:
        """Read one event and append what the client gets. Returns 1 if it holds content, else 0."""

    @abstractmethod
    def _append_early_end(self, out: list[bytes]) -> None:
        """End the answer at its length limit."""

    @abstractmethod
    def _append_end(self, out: list[bytes], *, has_ended: bool) -> None:
        """End a complete answer. `has_ended`: the upstream sent the protocol's last event."""

    def _convert_rest(self, rest: bytes, out: list[bytes]) -> int:
        """Convert the bytes after the last blank line: an event without its blank line, or a bare JSON error. A partial
        event is dropped.
        """
        data, name = sse.parse(rest)
        if data is None:
            parsed = object_in(rest)
            if parsed.get("error"):
                self._decoder.fail_in_band(parsed)
            return 0
        if data.strip() != b"[DONE]" and not object_in(data):
            return 0
        return self._convert_event(data, name, out)


class Passthrough(_Events):
    """One dialect on both sides: events pass verbatim, comments included, and are only read."""

    def __init__(self, decoder: StreamDecoder, *, ends_with_done: bool, hide_usage: bool) -> None:
        super().__init__(decoder)
        self._held = self._splitter.held
        self._ends_with_done = ends_with_done
        self._hide_usage = hide_usage

    def feed(self, data: bytes) -> Chunk | None:
        """The fast path: most reads of a running answer are exactly one event with one data line."""
        decoder = self._decoder
        if data[-3:] != b"}\n\n" or _CR in data or self._held or decoder.ended:
            return self._feed_blocks(self._split(data))
        last = len(data) - 2
        newline = data.find(_LF)
        if newline == last and data[:6] == b"data: ":
            n_content = decoder.see(data[6:-2], b"")
        elif (data[:7] == b"event: " and data[newline + 1 : newline + 7] == b"data: "
              and data.find(_LF, newline + 1) == last):
            n_content = decoder.see(data[newline + 7 : -2], data[7:newline])
        else:
            return self._feed_blocks(self._split(data))
        if self.sight.failure is not None or (self._hide_usage and decoder.is_only_usage):
            return None
        return Chunk(data, n_content)

    def _feed_blocks(self, blocks: list[bytes]) -> Chunk | None:
        if not blocks:
            return None
        decoder = self._decoder
        verbatim = self._splitter.verbatim
        see = decoder.see
        start = n_content = at = 0
        out = b""
        are_data = self._splitter.are_data
        for at, block in enumerate(blocks, 1):
            data, name = (block, b"") if are_data else sse.parse(block)
            if data is None:
                continue
            n_content += see(data, name)
            if decoder.ended:
                break
            if self._hide_usage and decoder.is_only_usage:
                out += verbatim(blocks, start, at - 1)
                start = at
        out += verbatim(blocks, start, at if self.sight.failure is None else at - 1)
        return Chunk(out, n_content) if out else None

    def _convert_event(self, data: bytes, name: bytes, out: list[bytes]) -> int:
        n_content = self._decoder.see(data, name)
        if self.sight.failure is None and not (self._hide_usage and self._decoder.is_only_usage):
            out.append(sse.event(data, name.decode(errors="replace") or None))
        return n_content

    def _append_early_end(self, out: list[bytes]) -> None:
        out.append(encode_events(self._decoder.ending(), ends_with_done=self._ends_with_done))

    def _append_end(self, out: list[bytes], *, has_ended: bool) -> None:
        if self._ends_with_done and not has_ended:
            out.append(_DONE)


class Translation(_Events):
    """A different dialect on each side: event -> deltas -> the client's events."""

    def __init__(self, decoder: StreamDecoder, encoder: StreamEncoder, *, is_named: bool) -> None:
        super().__init__(decoder)
        self._encoder = encoder
        self._is_named = is_named  # the client's events have names, and the stream does not end with [DONE]
        self._is_end_written = False

    def _convert_event(self, data: bytes, name: bytes, out: list[bytes]) -> int:
        n_content = self._decoder.see(data, name)
        if self.sight.failure is not None:
            return n_content
        try:
            for delta in self._decoder.deltas():
                self._append_events(self._encoder.events(delta), out)
        except WRONG_SHAPE:
            self._decoder.fail_malformed("an event that cannot be translated")
            return n_content
        if self._decoder.ended:
            self._append_end(out, has_ended=True)
        return n_content

    def _append_early_end(self, out: list[bytes]) -> None:
        if self.sight.finish_reason is None:
            self.sight.finish_reason = _LENGTH_LIMIT.reason
            self._append_events(self._encoder.events(_LENGTH_LIMIT), out)
        self._append_end(out, has_ended=True)

    def _append_end(self, out: list[bytes], *, has_ended: bool) -> None:
        if self._is_end_written:
            return
        self._is_end_written = True
        out.append(encode_events(self._encoder.end(self.sight.usage), ends_with_done=not self._is_named))

    def _append_events(self, events: list[Json], out: list[bytes]) -> None:
        self.sight.n_events += len(events)
        out += [sse.event(_ENCODER.encode(event), event["type"] if self._is_named else None) for event in events]


def encode_events(events: list[Json], *, ends_with_done: bool) -> bytes:
    """The last events of a stream. `ends_with_done`: events have no names, and `[DONE]` is the last."""
    encoded = [sse.event(_ENCODER.encode(event), None if ends_with_done else event["type"]) for event in events]
    return b"".join((*encoded, _DONE) if ends_with_done else encoded)


class Rewrite:
    """Encodes deltas as events of the client's dialect and collects these into its whole answer."""

    def __init__(self, encoder: StreamEncoder, collector: AnswerCollector) -> None:
        self._encoder = encoder
        self._collector = collector

    def add(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            for event in self._encoder.events(delta):
                self._collector.add(event)

    def end(self, summary: AnswerSummary) -> bytes:
        for event in self._encoder.end(summary.usage):
            self._collector.add(event)
        return self._collector.body()


class Collection(_Events):
    """A stream for a client that wants a body: content is counted as it arrives, the body follows at the end."""

    def __init__(self, decoder: StreamDecoder, collector: AnswerCollector | Rewrite) -> None:
        super().__init__(decoder)
        self._collector = collector
        self.n_held = 0

    def _convert_event(self, data: bytes, name: bytes, out: list[bytes]) -> int:
        self.n_held += len(data)
        if self.n_held > MAX_ANSWER_BYTES:
            self._decoder.fail_malformed(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            return 0
        n_content = self._decoder.see(data, name)
        if self.sight.failure is None:
            try:
                if isinstance(self._collector, Rewrite):
                    self._collector.add(self._decoder.deltas())
                elif data.strip() != b"[DONE]":
                    self._collector.add(_ANY.decode(data))
            except WRONG_SHAPE:
                self._decoder.fail_malformed("an event that does not fit the ones before")
        return n_content

    def _append_early_end(self, out: list[bytes]) -> None:
        if isinstance(self._collector, Rewrite):
            if self.sight.finish_reason is None:
                self.sight.finish_reason = _LENGTH_LIMIT.reason
                self._collector.add([_LENGTH_LIMIT])
            out.append(self._collector.end(self.sight))
        else:
            for event in self._decoder.ending():
                self._collector.add(event)
            out.append(self._collector.body())

    def _append_end(self, out: list[bytes], *, has_ended: bool) -> None:
        try:
            out.append(self._collector.end(self.sight) if isinstance(self._collector, Rewrite) else self._collector.body())
        except WRONG_SHAPE:
            self._decoder.fail_malformed("events that do not form an answer")


class Whole:
    """A whole answer in the client's own dialect: passed verbatim once it has been read."""

    has_ended = False  # a whole answer ends with its body

    def __init__(self, decoder: WholeSource) -> None:
        self.sight = decoder.sight
        self._decoder = decoder
        self._parts: list[bytes] = []
        self.n_held = 0

    def feed(self, data: bytes) -> Chunk | None:
        if self.sight.failure is None:
            self._parts.append(data)
            self.n_held += len(data)
            if self.n_held > MAX_ANSWER_BYTES:
                self._decoder.fail_malformed(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        return None

    def finish(self) -> Chunk | None:
        body = b"".join(self._parts)  # a large join releases the GIL
        self._parts = []
        if self.sight.failure is None:
            if body.strip():
                self._decoder.see_whole(body)
            else:
                self._decoder.fail_truncated()
        return Chunk(body, 1) if self.sight.failure is None else None

    def cut(self) -> Chunk | None:
        """None: a partial JSON document is no answer."""
        return None


class TranslatedWhole(Whole):
    """A whole answer in another dialect."""

    def __init__(self, decoder: StreamDecoder, rewrite: Rewrite) -> None:
        super().__init__(decoder)
        self._stream_decoder = decoder
        self._rewrite = rewrite

    def finish(self) -> Chunk | None:
        if super().finish() is None:
            return None
        try:
            self._rewrite.add(self._stream_decoder.whole())
            return Chunk(self._rewrite.end(self.sight), 1)
        except WRONG_SHAPE:
            self._decoder.fail_malformed("an answer that cannot be translated")
            return None


def transcoder(source: Api, request: Request, *, source_streams: bool, upstream: str, hide_usage: bool = False,
               created_at: int = 0) -> Transcoder:
    """The transcoder from an upstream of dialect `source` to the client that sent `request`.

    hide_usage: remove the usage chunk that `encode(want_usage=True)` asked for. created_at: seconds since the epoch, for a
    client dialect with a date if the upstream sends none.
    Raises ValueError for a pair without a translation, and for a whole answer to a client that streams.
    """
    is_same = request.api is source
    if not is_same and not can_translate(request.api, source):
        raise ValueError(f"{source.value} answers cannot be translated for {request.api.value} clients")
    if request.stream and not source_streams:
        raise ValueError("a whole answer cannot be streamed")
    summary = AnswerSummary()
    if not source.can_stream:
        return Whole(PlainSource(upstream, source, summary))
    decoder = source_of(source, request, upstream, summary)
    ends_with_done = request.api in ENDS_WITH_DONE
    if request.stream and is_same:
        return Passthrough(decoder, ends_with_done=ends_with_done, hide_usage=hide_usage)
    if request.stream:
        return Translation(decoder, writer_of(request, created_at), is_named=not ends_with_done)
    if is_same:
        return Collection(decoder, fold_of(source)) if source_streams else Whole(decoder)
    rewrite = Rewrite(writer_of(request, created_at), fold_of(request.api))
    return Collection(decoder, rewrite) if source_streams else TranslatedWhole(decoder, rewrite)


def source_of(api: Api, request: Request, upstream: str, summary: AnswerSummary) -> StreamDecoder:
    """The decoder of answers in dialect `api`."""
    if api in ENDS_WITH_DONE:
        return ChatSource(upstream, request.n_choices, summary, is_chat=api is _CHAT)
    return MessagesSource(upstream, summary) if api is Api.MESSAGES else ResponsesSource(upstream, summary)


def writer_of(request: Request, created_at: int) -> StreamEncoder:
    """The encoder of the client's own dialect."""
    match request.api:
        case Api.MESSAGES:
            return InTurn(MessagesWriter(request))
        case Api.RESPONSES:
            return InTurn(ResponsesWriter(request, created_at))
        case Api.COMPLETIONS:
            return CompletionsWriter(request, created_at)
    return ChatWriter(request, created_at)


def fold_of(api: Api) -> AnswerCollector:
    """The collector of the events of dialect `api`."""
    match api:
        case Api.MESSAGES:
            return MessagesFold()
        case Api.RESPONSES:
            return ResponsesFold()
    return ChatFold(is_chat=api is Api.CHAT)
