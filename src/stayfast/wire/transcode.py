"""An upstream's body in, bytes for the client out, and a `Sight` of what was seen on the way.

Four shapes. Same dialect, streamed: whole events pass verbatim and are only looked at. Across dialects, streamed: each
event becomes deltas (wire.deltas), and these the client's events. Streamed for a client that wants it whole: the events
are folded. Whole for whole: verbatim, or translated by way of the very same deltas, so that each pair has one meaning.
"""

from typing import Final, Protocol

from stayfast.core.types import Api, Chunk, Request, Sight, Usage
from stayfast.wire.chat.fold import ChatFold
from stayfast.wire.chat.source import ChatSource
from stayfast.wire.chat.writer import ChatWriter, CompletionsWriter
from stayfast.wire.deltas import Begin, Delta, Finish, Fold, Source, TextDelta, Writer
from stayfast.wire.encode import can_translate
from stayfast.wire.in_turn import InTurn
from stayfast.wire.messages.fold import MessagesFold
from stayfast.wire.messages.source import MessagesSource
from stayfast.wire.messages.writer import MessagesWriter
from stayfast.wire.plain import PlainSource
from stayfast.wire.responses.fold import ResponsesFold
from stayfast.wire.responses.source import ResponsesSource
from stayfast.wire.responses.writer import ResponsesWriter
from stayfast.wire.shapes import Collection, Passthrough, Rewrite, TranslatedWhole, Translation, Whole, said_in_events

__all__ = ["Transcoder", "can_translate", "recite", "source_of", "transcoder", "writer_of"]

_CHAT: Final = Api.CHAT
_ENDS_WITH_DONE: Final = (Api.CHAT, Api.COMPLETIONS)


class Transcoder(Protocol):
    """One answer on its way from an upstream to a client. One task owns it."""

    sight: Sight

    @property
    def has_ended(self) -> bool:
        """The protocol's own end was seen: call `finish`, whatever else the body may hold."""
        ...

    def feed(self, data: bytes) -> Chunk | None:
        """Take what was read, split anywhere; returns what the client gets now. Failures show in `sight.failure`."""
        ...

    def finish(self) -> Chunk | None:
        """The upstream's body ended cleanly. Where the answer is not whole, `sight.failure` says so after this."""
        ...

    def cut(self) -> Chunk | None:
        """End an answer that has begun here, as its protocol ends one that has met its length limit; `sight.is_cut` says
        so after this. None where that cannot be said, or where it has ended by itself.
        """
        ...


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
    sight = Sight()
    if not source.can_stream:
        return Whole(PlainSource(upstream, source, sight), sight, upstream)
    reader = source_of(source, request, upstream, sight)
    says_done = request.api in _ENDS_WITH_DONE
    if request.stream and is_same:
        return Passthrough(reader, sight, upstream, says_done=says_done, hide_usage=hide_usage)
    if request.stream:
        is_named = not says_done
        return Translation(reader, sight, upstream, writer_of(request, created_at), is_named=is_named)
    if is_same:
        return Collection(reader, sight, upstream, _fold(source)) if source_streams else Whole(reader, sight, upstream)
    rewrite = Rewrite(writer_of(request, created_at), _fold(request.api))
    if source_streams:
        return Collection(reader, sight, upstream, rewrite)
    return TranslatedWhole(reader, sight, upstream, rewrite)


def recite(request: Request, text: str, *, answer_id: str, created_at: int) -> bytes:
    """The whole body of an answer that is `text`, of no tokens, in the form that `request` asks for. `created_at`:
    seconds since the epoch. Raises ValueError for requests that ask for no text.
    """
    if not request.api.can_stream:
        raise ValueError(f"{request.api.value} requests ask for no text")
    deltas: list[Delta] = [Begin(answer_id, request.model, created_at, Usage()), TextDelta(text), Finish("stop")]
    writer = writer_of(request, created_at)
    if not request.stream:
        sight = Sight()
        sight.usage = Usage()
        rewrite = Rewrite(writer, _fold(request.api))
        rewrite.add(deltas)
        return rewrite.end(sight)
    events = [said for delta in deltas for said in writer.events(delta)] + writer.end(Usage())
    return said_in_events(events, says_done=request.api in _ENDS_WITH_DONE)


def source_of(api: Api, request: Request, upstream: str, sight: Sight) -> Source:
    """Who reads the answers that upstreams give in `api`."""
    if api in _ENDS_WITH_DONE:
        return ChatSource(upstream, request.n_choices, sight, is_chat=api is _CHAT)
    return MessagesSource(upstream, sight) if api is Api.MESSAGES else ResponsesSource(upstream, sight)


def writer_of(request: Request, created_at: int) -> Writer:
    """Who says an answer in the client's own dialect."""
    match request.api:
        case Api.MESSAGES:
            return InTurn(MessagesWriter(request))
        case Api.RESPONSES:
            return InTurn(ResponsesWriter(request, created_at))
        case Api.COMPLETIONS:
            return CompletionsWriter(request, created_at)
    return ChatWriter(request, created_at)


def _fold(api: Api) -> Fold:
    match api:
        case Api.MESSAGES:
            return MessagesFold()
        case Api.RESPONSES:
            return ResponsesFold()
    return ChatFold(is_chat=api is Api.CHAT)
