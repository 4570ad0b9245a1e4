"""The whole answer of a stream whose events were stored."""

from collections.abc import Iterable

import msgspec

from stayfast.core.types import Api
from stayfast.wire import sse
from stayfast.wire.transcode import SHAPE_ERRORS, make_collector

_ANY = msgspec.json.Decoder()
_DONE = b"[DONE]"


class StreamedAnswer:
    """Collects the events of one stream into the body that the same request without `stream` would get."""

    __slots__ = ("_api", "_collector", "_is_broken")

    def __init__(self, api: Api) -> None:
        self._api = api
        self.clear()

    def clear(self) -> None:
        """Another attempt begins."""
        self._collector = make_collector(self._api)
        self._is_broken = False

    def add_event(self, data: bytes) -> None:
        """data: the data of one event."""
        if self._is_broken or data.strip() == _DONE:
            return
        try:
            event = _ANY.decode(data)
            self._is_broken = is_error(event)
            self._collector.add_event(event)
        except SHAPE_ERRORS:
            self._is_broken = True

    def build_body(self) -> bytes | None:
        """None: the events do not form an answer."""
        if self._is_broken:
            return None
        try:
            return self._collector.build_body()
        except SHAPE_ERRORS:
            return None


def collect_events(api: Api, events: Iterable[bytes]) -> bytes | None:
    """The whole answer of encoded events; None if they do not form one."""
    answer, splitter = StreamedAnswer(api), sse.EventSplitter()
    for event in events:
        for data, _ in sse.parse_events(splitter, event):
            answer.add_event(data)
    return answer.build_body()


def is_error(event: object) -> bool:
    """Whether an event of a stream stands for a failure in place of the rest."""
    return isinstance(event, dict) and (event.get("type") == "error" or ("type" not in event and bool(event.get("error"))))


def is_end_marker(api: Api, data: bytes, name: bytes) -> bool:
    """Whether an event ends the stream of its protocol."""
    match api:
        case Api.MESSAGES:
            return name in (b"message_stop", b"error")
        case Api.RESPONSES:
            return name in (b"response.completed", b"response.failed", b"response.incomplete", b"error")
    return data.strip() == _DONE




def renumber_event(data: bytes, n: int) -> bytes:
    """An event of a Responses stream with another `sequence_number`."""
    try:
        event = _ANY.decode(data)
    except msgspec.DecodeError:
        return data
    if not isinstance(event, dict) or "sequence_number" not in event:
        return data
    event["sequence_number"] = n
    return msgspec.json.encode(event)


def encode_reset(epoch: int) -> bytes:
    """An event before the first one of a later attempt: clients drop what they have of the answer."""
    return sse.encode_event(b'{"type":"reset","epoch":%d}' % epoch, "reset")
