"""Transcoders: an upstream's body in, bytes for the client out, and an `AnswerSummary` of the answer.

    same dialect, streamed              events pass verbatim and are only read
    other dialect, streamed             event -> deltas (wire.dialect) -> events
    streamed, the client wants a body   events are collected into one body
    whole, the client wants a body      verbatim, or translated by the same deltas

Embeddings and token counts are always whole and have one dialect.
"""

from abc import ABC, abstractmethod
from typing import Final, Protocol

import msgspec

from stayfast.core.types import AnswerSummary, Api, Chunk, Request
from stayfast.wire import sse
from stayfast.wire.chat.stream_decoder import ChatCollector, ChatDecoder, OddUsageDecoder, WholeChatDecoder
from stayfast.wire.chat.stream_encoder import ChatEncoder, CompletionsEncoder
from stayfast.wire.converse.stream_decoder import ConverseDecoder
from stayfast.wire.dialect import (
    AnswerCollector,
    BodyDecoder,
    Delta,
    Finish,
    Json,
    StreamDecoder,
    StreamEncoder,
    parse_object,
)
from stayfast.wire.event_stream import FrameSplitter, MalformedFrame, parse_frame
from stayfast.wire.gemini.embeddings import GeminiEmbeddingsDecoder
from stayfast.wire.gemini.stream_decoder import GeminiDecoder
from stayfast.wire.messages.stream_decoder import MessagesCollector, MessagesDecoder
from stayfast.wire.messages.stream_encoder import MessagesEncoder
from stayfast.wire.request_body import can_translate
from stayfast.wire.rerank import RerankDecoder
from stayfast.wire.responses.stream_decoder import ResponsesCollector, ResponsesDecoder
from stayfast.wire.responses.stream_encoder import ResponsesEncoder
from stayfast.wire.tool_call_sequencer import ToolCallSequencer
from stayfast.wire.untranslated_body import UntranslatedDecoder

MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024  # 2048 embeddings of 3072 floats, as text, are 130 MB

_CHAT: Final = Api.CHAT
DONE_TERMINATED_APIS: Final = (Api.CHAT, Api.COMPLETIONS)
_ID_PREFIXES: Final = {Api.CHAT: "chatcmpl-", Api.COMPLETIONS: "cmpl-", Api.RESPONSES: "resp_", Api.MESSAGES: "msg_"}
_LF: Final = 0x0A
_CR: Final = 0x0D
_DONE: Final = b"data: [DONE]\n\n"
_LENGTH_LIMIT: Final = Finish("length")
_ANY: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()
# What JSON of the wrong shape can make the code below raise; any other exception is a bug here.
SHAPE_ERRORS: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


class Transcoder(Protocol):
    """One answer on its way from an upstream to a client. Owned by one task."""

    summary: AnswerSummary
    is_whole: bool  # `feed` returns nothing: the answer ends with its body

    @property
    def n_held_bytes(self) -> int:
        """Bytes collected before the client gets any; 0 for a stream. `finish` takes time in proportion, may run in another
        thread, and lets other threads run between the members of a large list.
        """

    def feed(self, data: bytes) -> Chunk | None:
        """Read more of the body, split anywhere. Returns bytes for the client. Failures are stored in `summary.failure`.
        Once the summary is complete the protocol's own end was read: call `finish`, whatever else the body may contain.
        """

    def finish(self) -> Chunk | None:
        """The upstream's body ended cleanly. Sets `summary.failure` if the answer is not complete."""

    def end_early(self) -> Chunk | None:
        """End a running answer as if it had reached its length limit; None if it has ended or cannot be ended."""


class _StreamTranscoder(ABC):
    """A streamed answer, event by event. Subclasses decide what the client gets of each."""

    def __init__(self, decoder: StreamDecoder, splitter: sse.EventSplitter | FrameSplitter) -> None:
        self.summary = decoder.summary
        self._decoder = decoder
        self._splitter = splitter
        self._parse_block = parse_frame if isinstance(splitter, FrameSplitter) else sse.parse_block

    n_held_bytes = 0
    is_whole = False

    def feed(self, data: bytes) -> Chunk | None:
        out: list[bytes] = []
        n_content = 0
        try:
            for block in self._split(data):
                event, name = (block, b"") if self._splitter.are_bare_data else self._parse_block(block)
                if event is not None:
                    n_content += self._convert_event(event, name, out)
                if self._decoder.has_ended:
                    break
        except MalformedFrame as malformed:
            self._decoder.fail_malformed(str(malformed))
        return Chunk(b"".join(out), n_content) if out or n_content else None

    def _split(self, data: bytes) -> list[bytes]:
        if self._decoder.has_ended:
            return []
        try:
            return self._splitter.feed(data)
        except sse.EventTooLong:
            self._decoder.fail_malformed(f"an event of more than {sse.MAX_EVENT_BYTES} bytes")
            return []

    def end_early(self) -> Chunk | None:
        if self._decoder.has_ended:
            return None
        out: list[bytes] = []
        try:
            self._append_early_end(out)
        except SHAPE_ERRORS:
            return None
        self._decoder.has_ended = True
        self.summary.is_cut = True
        return Chunk(b"".join(out))

    def finish(self) -> Chunk | None:
        out: list[bytes] = []
        n_content = 0
        rest = self._splitter.take_rest()
        if rest and not self._decoder.has_ended:
            n_content = self._convert_rest(rest, out)
        has_ended = self._decoder.has_ended
        self._decoder.finish()
        if self.summary.is_complete:
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
        data, name = sse.parse_block(rest)
        if data is None:
            parsed = parse_object(rest)
            if parsed.get("error"):
                self._decoder.fail_in_band(parsed)
            return 0
        if data.strip() != b"[DONE]" and not parse_object(data):
            return 0
        return self._convert_event(data, name, out)


class PassthroughStream(_StreamTranscoder):
    """One dialect on both sides: events pass verbatim, comments included, and are only read."""

    def __init__(self, decoder: StreamDecoder, *, ends_with_done: bool, hide_usage: bool) -> None:
        self._events = sse.EventSplitter()
        super().__init__(decoder, self._events)
        self._held = self._events.pending
        self._ends_with_done = ends_with_done
        self._hide_usage = hide_usage

    def feed(self, data: bytes) -> Chunk | None:
        """The fast path: most reads of a running answer are exactly one event with one data line."""
        decoder = self._decoder
        if data[-3:] != b"}\n\n" or _CR in data or self._held or decoder.has_ended:
            return self._feed_blocks(self._split(data))
        last = len(data) - 2
        newline = data.find(_LF)
        if newline == last and data[:6] == b"data: ":
            n_content = decoder.read_event(data[6:-2], b"")
        elif (data[:7] == b"event: " and data[newline + 1 : newline + 7] == b"data: "
              and data.find(_LF, newline + 1) == last):
            n_content = decoder.read_event(data[newline + 7 : -2], data[7:newline])
        else:
            return self._feed_blocks(self._split(data))
        if self.summary.failure is not None or (self._hide_usage and decoder.holds_only_usage):
            return None
        return Chunk(data, n_content)

    def _feed_blocks(self, blocks: list[bytes]) -> Chunk | None:
        if not blocks:
            return None
        decoder = self._decoder
        verbatim = self._events.original_bytes
        see = decoder.read_event
        start = n_content = at = 0
        out = b""
        are_data = self._events.are_bare_data
        for at, block in enumerate(blocks, 1):
            data, name = (block, b"") if are_data else sse.parse_block(block)
            if data is None:
                continue
            n_content += see(data, name)
            if decoder.has_ended:
                break
            if self._hide_usage and decoder.holds_only_usage:
                out += verbatim(blocks, start, at - 1)
                start = at
        out += verbatim(blocks, start, at if self.summary.failure is None else at - 1)
        return Chunk(out, n_content) if out else None

    def _convert_event(self, data: bytes, name: bytes, out: list[bytes]) -> int:
        n_content = self._decoder.read_event(data, name)
        if self.summary.failure is None and not (self._hide_usage and self._decoder.holds_only_usage):
            out.append(sse.encode_event(data, name.decode(errors="replace") or None))
        return n_content

    def _append_early_end(self, out: list[bytes]) -> None:
        out.append(encode_events(self._decoder.early_end_events(), ends_with_done=self._ends_with_done))

    def _append_end(self, out: list[bytes], *, has_ended: bool) -> None:
        if self._ends_with_done and not has_ended:
            out.append(_DONE)


class TranslatedStream(_StreamTranscoder):
    """A different dialect on each side: event -> deltas -> the client's events."""

    def __init__(self, decoder: StreamDecoder, encoder: StreamEncoder, splitter: sse.EventSplitter | FrameSplitter, *,
                 is_named: bool) -> None:
        super().__init__(decoder, splitter)
        self._encoder = encoder
        self._is_named = is_named  # the client's events have names, and the stream does not end with [DONE]
        self._is_end_written = False

    def _convert_event(self, data: bytes, name: bytes, out: list[bytes]) -> int:
        n_content = self._decoder.read_event(data, name)
        if self.summary.failure is not None:
            return n_content
        try:
            for delta in self._decoder.event_deltas():
                self._append_events(self._encoder.encode_delta(delta), out)
        except SHAPE_ERRORS:
            self._decoder.fail_malformed("an event that cannot be translated")
            return n_content
        if self._decoder.has_ended:
            self._append_end(out, has_ended=True)
        return n_content

    def _append_early_end(self, out: list[bytes]) -> None:
        if self.summary.finish_reason is None:
            self.summary.finish_reason = _LENGTH_LIMIT.reason
            self._append_events(self._encoder.encode_delta(_LENGTH_LIMIT), out)
        self._append_end(out, has_ended=True)

    def _append_end(self, out: list[bytes], *, has_ended: bool) -> None:
        if self._is_end_written:
            return
        self._is_end_written = True
        out.append(encode_events(self._encoder.encode_end(self.summary.usage), ends_with_done=not self._is_named))

    def _append_events(self, events: list[Json], out: list[bytes]) -> None:
        self.summary.n_events += len(events)
        out += [sse.encode_event(_ENCODER.encode(event), event["type"] if self._is_named else None) for event in events]


def encode_events(events: list[Json], *, ends_with_done: bool) -> bytes:
    """The last events of a stream. `ends_with_done`: events have no names, and `[DONE]` is the last."""
    encoded = [sse.encode_event(_ENCODER.encode(event), None if ends_with_done else event["type"]) for event in events]
    return b"".join((*encoded, _DONE) if ends_with_done else encoded)


class AnswerRewriter:
    """Encodes deltas as events of the client's dialect and collects these into its whole answer."""

    def __init__(self, encoder: StreamEncoder, collector: AnswerCollector) -> None:
        self._encoder = encoder
        self._collector = collector

    def add_deltas(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            for event in self._encoder.encode_delta(delta):
                self._collector.add_event(event)

    def build_body(self, summary: AnswerSummary) -> bytes:
        for event in self._encoder.encode_end(summary.usage):
            self._collector.add_event(event)
        return self._collector.build_body()


class CollectedStream(_StreamTranscoder):
    """A stream for a client that wants a body: content is counted as it arrives, the body follows at the end."""

    def __init__(self, decoder: StreamDecoder, collector: AnswerCollector | AnswerRewriter,
                 splitter: sse.EventSplitter | FrameSplitter) -> None:
        super().__init__(decoder, splitter)
        self._collector = collector
        self.n_held_bytes = 0

    def _convert_event(self, data: bytes, name: bytes, out: list[bytes]) -> int:
        self.n_held_bytes += len(data)
        if self.n_held_bytes > MAX_ANSWER_BYTES:
            self._decoder.fail_malformed(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            return 0
        n_content = self._decoder.read_event(data, name)
        if self.summary.failure is None:
            try:
                if isinstance(self._collector, AnswerRewriter):
                    self._collector.add_deltas(self._decoder.event_deltas())
                elif data.strip() != b"[DONE]":
                    self._collector.add_event(_ANY.decode(data))
            except SHAPE_ERRORS:
                self._decoder.fail_malformed("an event that does not fit the ones before")
        return n_content

    def _append_early_end(self, out: list[bytes]) -> None:
        if isinstance(self._collector, AnswerRewriter):
            if self.summary.finish_reason is None:
                self.summary.finish_reason = _LENGTH_LIMIT.reason
                self._collector.add_deltas([_LENGTH_LIMIT])
            out.append(self._collector.build_body(self.summary))
        else:
            for event in self._decoder.early_end_events():
                self._collector.add_event(event)
            out.append(self._collector.build_body())

    def _append_end(self, out: list[bytes], *, has_ended: bool) -> None:
        try:
            out.append(self._collector.build_body(self.summary) if isinstance(self._collector, AnswerRewriter)
                       else self._collector.build_body())
        except SHAPE_ERRORS:
            self._decoder.fail_malformed("events that do not form an answer")


class WholeAnswer:
    """A whole answer in the client's own dialect: passed verbatim once it has been read."""

    is_whole = True

    def __init__(self, decoder: BodyDecoder) -> None:
        self.summary = decoder.summary
        self._decoder = decoder
        self._parts: list[bytes] = []
        self.n_held_bytes = 0

    def feed(self, data: bytes) -> Chunk | None:
        if self.summary.failure is None:
            self._parts.append(data)
            self.n_held_bytes += len(data)
            if self.n_held_bytes > MAX_ANSWER_BYTES:
                self._decoder.fail_malformed(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        return None

    def finish(self) -> Chunk | None:
        body = b"".join(self._parts)  # a large join releases the GIL
        self._parts = []
        if self.summary.failure is None:
            if body.strip():
                self._decoder.read_body(body)
            else:
                self._decoder.fail_truncated()
        return Chunk(body, 1) if self.summary.failure is None else None

    def end_early(self) -> Chunk | None:
        """None: a partial JSON document is no answer."""
        return None


class TranslatedAnswer(WholeAnswer):
    """A whole answer in another dialect."""

    def __init__(self, decoder: StreamDecoder, rewrite: AnswerRewriter) -> None:
        super().__init__(decoder)
        self._stream_decoder = decoder
        self._rewrite = rewrite

    def finish(self) -> Chunk | None:
        if super().finish() is None:
            return None
        try:
            self._rewrite.add_deltas(self._stream_decoder.body_deltas())
            return Chunk(self._rewrite.build_body(self.summary), 1)
        except SHAPE_ERRORS:
            self._decoder.fail_malformed("an answer that cannot be translated")
            return None


class TranslatedEmbeddings(WholeAnswer):
    """Embeddings in another dialect."""

    def __init__(self, decoder: GeminiEmbeddingsDecoder) -> None:
        super().__init__(decoder)
        self._embeddings = decoder

    def finish(self) -> Chunk | None:
        return None if super().finish() is None else Chunk(self._embeddings.encode_body(), 1)


class RerankAnswer(WholeAnswer):
    """A rerank answer: verbatim if it has the common form."""

    def __init__(self, decoder: RerankDecoder) -> None:
        super().__init__(decoder)
        self._rerank = decoder

    def finish(self) -> Chunk | None:
        chunk = super().finish()
        rewritten = self._rerank.rewritten
        return chunk if chunk is None or rewritten is None else Chunk(rewritten, 1)


def make_transcoder(source: Api, request: Request, *, source_streams: bool, upstream: str, hide_usage: bool = False,
               created_at: int = 0, answer_id: str = "", has_odd_usage: bool = False) -> Transcoder:
    """The transcoder from an upstream of dialect `source` to the client that sent `request`. hide_usage: remove the usage
    chunk that `encode(want_usage=True)` asked for. created_at, answer_id: seconds since the epoch and an id, for a client
    dialect with a date or an id if the upstream sends none. has_odd_usage: its streams have usage in a choice or in x_groq.
    Raises ValueError for a pair without a translation, and for a whole answer to a client that streams.
    """
    is_same = request.api is source
    if not is_same and not can_translate(request.api, source):
        raise ValueError(f"{source.value} answers cannot be translated for {request.api.value} clients")
    if request.stream and not source_streams:
        raise ValueError("a whole answer cannot be streamed")
    summary = AnswerSummary()
    if is_same and not (source_streams and source.can_stream):
        return _make_verbatim(source, request, upstream, summary)
    if request.api is Api.EMBEDDINGS:
        return TranslatedEmbeddings(GeminiEmbeddingsDecoder(upstream, request, summary))
    decoder = make_decoder(source, request, upstream, summary, answer_id, has_odd_usage=has_odd_usage)
    if request.stream:
        ends_with_done = request.api in DONE_TERMINATED_APIS
        return PassthroughStream(decoder, ends_with_done=ends_with_done, hide_usage=hide_usage) if is_same else (
            TranslatedStream(decoder, make_encoder(request, created_at), make_splitter(source), is_named=not ends_with_done))
    if is_same:
        return CollectedStream(decoder, make_collector(source), make_splitter(source))
    rewrite = AnswerRewriter(make_encoder(request, created_at), make_collector(request.api))
    return CollectedStream(decoder, rewrite, make_splitter(source)) if source_streams else TranslatedAnswer(decoder, rewrite)


def _make_verbatim(api: Api, request: Request, upstream: str, summary: AnswerSummary) -> WholeAnswer:
    """The reader of a whole answer that passes in its own dialect."""
    if api in DONE_TERMINATED_APIS:
        return WholeAnswer(WholeChatDecoder(upstream, summary))
    if api is Api.RERANK:
        return RerankAnswer(RerankDecoder(upstream, request, summary))
    return WholeAnswer(make_decoder(api, request, upstream, summary) if api.can_stream
                       else UntranslatedDecoder(upstream, api, summary))


def make_splitter(api: Api) -> sse.EventSplitter | FrameSplitter:
    """The splitter of streams in dialect `api`."""
    return FrameSplitter() if api is Api.CONVERSE else sse.EventSplitter()


def make_decoder(api: Api, request: Request, upstream: str, summary: AnswerSummary, answer_id: str = "", *,
                 has_odd_usage: bool = False) -> StreamDecoder:
    """The decoder of answers in dialect `api`. has_odd_usage: see `make_transcoder`."""
    if api in DONE_TERMINATED_APIS:
        kind = OddUsageDecoder if has_odd_usage else ChatDecoder
        return kind(upstream, request.n_choices, summary, is_chat=api is _CHAT)
    if api is Api.GEMINI:
        return GeminiDecoder(upstream, summary)
    if api is Api.CONVERSE:
        return ConverseDecoder(upstream, summary, _ID_PREFIXES[request.api] + answer_id if answer_id else "")
    return MessagesDecoder(upstream, summary) if api is Api.MESSAGES else ResponsesDecoder(upstream, summary)


def make_encoder(request: Request, created_at: int) -> StreamEncoder:
    """The encoder of the client's own dialect."""
    match request.api:
        case Api.MESSAGES:
            return ToolCallSequencer(MessagesEncoder(request))
        case Api.RESPONSES:
            return ToolCallSequencer(ResponsesEncoder(request, created_at))
        case Api.COMPLETIONS:
            return CompletionsEncoder(request, created_at)
    return ChatEncoder(request, created_at)


def make_collector(api: Api) -> AnswerCollector:
    """The collector of the events of dialect `api`."""
    match api:
        case Api.MESSAGES:
            return MessagesCollector()
        case Api.RESPONSES:
            return ResponsesCollector()
    return ChatCollector(is_chat=api is Api.CHAT)
