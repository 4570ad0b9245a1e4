"""Calls of a store of jobs as messages between processes: MessagePack, typed by the signatures of the store."""

import asyncio
import inspect
import struct
from collections.abc import Callable
from functools import cache
from types import GenericAlias
from typing import Any, Final, cast, get_type_hints

import msgspec

from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import StoreFull
from stayfast.stores.jobs.sqlite import SqliteJobStore

NOTIFIED: Final = 0  # the number of a message that is no reply: a notification of a topic
MAX_FRAME_BYTES: Final = 1 << 30
_LENGTH: Final = struct.Struct(">I")


class CallMessage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """method: of the store; or `+`, `-` and `!` with a topic: wait for its next notification, and no longer; notify it.
    These have no reply. Or `?`: replied to at once with a notification of that topic. `arguments`: all of them, in the order
    of the signature.
    """

    number: int  # from 1
    method: str
    arguments: msgspec.Raw


class ReplyMessage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """error: the name of an exception, and `value` is its text. A notification has the number NOTIFIED and a topic."""

    number: int
    error: str
    value: msgspec.Raw


ERRORS: Final[dict[str, type[Exception]]] = {
    "StoreFull": StoreFull, "StoreUnavailable": StoreUnavailable, "ValueError": ValueError,
}
encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(CallMessage).decode
decode_reply: Final = msgspec.msgpack.Decoder(ReplyMessage).decode
decode_text: Final = msgspec.msgpack.Decoder(str).decode


class StoreMethod:
    """The types of one method of the store."""

    __slots__ = ("decode_arguments", "decode_reply", "defaults", "keywords")

    def __init__(self, name: str) -> None:
        function = getattr(SqliteJobStore, name)
        hints = get_type_hints(function)
        reply = hints.pop("return")
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self.keywords = tuple(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
        arguments: Any = GenericAlias(tuple, tuple(hints[one.name] for one in parameters))
        self.decode_arguments: Callable[[bytes], tuple[Any, ...]] = msgspec.msgpack.Decoder(arguments).decode
        self.decode_reply: Callable[[bytes], Any] = msgspec.msgpack.Decoder(reply).decode


@cache
def describe_method(name: str) -> StoreMethod:
    """The types of a method of the store. Raises AttributeError for an unknown one."""
    return StoreMethod(name)


async def call_method(store: SqliteJobStore, name: str, arguments: tuple[Any, ...]) -> Any:
    """Call a method with all its arguments in order."""
    keywords = describe_method(name).keywords
    n = len(arguments) - len(keywords)
    return await getattr(store, name)(*arguments[:n], **dict(zip(keywords, arguments[n:], strict=True)))


class FrameConnection(asyncio.Protocol):
    """A connection of frames: a length (4 bytes, big-endian) and a message. Messages of one turn of the loop are sent
    together.

    on_message: called with each message. on_lost: called once, when the connection is gone.
    """

    def __init__(self, on_message: Callable[["FrameConnection", bytes], None],
                 on_lost: Callable[["FrameConnection"], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._sending: list[bytes] = []
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at = 0
        while len(received) - at >= _LENGTH.size:
            (n_bytes,) = _LENGTH.unpack_from(received, at)
            if n_bytes > MAX_FRAME_BYTES:
                self.close()
                return
            end = at + _LENGTH.size + n_bytes
            if len(received) < end:
                break
            message = bytes(memoryview(received)[at + _LENGTH.size:end])
            at = end
            self._on_message(self, message)
        if at:
            del received[:at]

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._on_lost(self)

    def send(self, message: bytes) -> None:
        """Send a message in this turn of the loop. Dropped if the connection is lost."""
        if not self._sending:
            self._loop.call_soon(self._flush)
        self._sending.append(_LENGTH.pack(len(message)))
        self._sending.append(message)

    def _flush(self) -> None:
        sending, self._sending = self._sending, []
        if self._transport is not None and not self.is_lost:
            self._transport.writelines(sending)

    def close(self) -> None:
        """Send what is left, and close."""
        if self._transport is not None:
            self._flush()
            self._transport.close()
