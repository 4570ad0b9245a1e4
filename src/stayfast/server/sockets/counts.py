"""How many WebSockets are open, and how many messages they have exchanged."""

from collections.abc import Iterator
from contextlib import contextmanager

from stayfast.http.server.websocket import WebSocketConnection


class SocketCounts:
    """The counts of one process, read at the scrape."""

    __slots__ = ("_ended", "_open")

    def __init__(self) -> None:
        self._open: dict[WebSocketConnection, str] = {}
        self._ended: dict[tuple[str, ...], float] = {}  # messages of WebSockets that have ended

    @contextmanager
    def counted(self, label: str, socket: WebSocketConnection) -> Iterator[None]:
        """Count a WebSocket as open."""
        self._open[socket] = label
        try:
            yield
        finally:
            del self._open[socket]
            for direction, n in _messages(socket):
                self._ended[label, direction] = self._ended.get((label, direction), 0) + n

    def open_rows(self) -> list[tuple[tuple[str, ...], float]]:
        """Open WebSockets by path; a path that had some before has a row of 0."""
        counts = dict.fromkeys((label for label, _ in self._ended), 0)
        for label in self._open.values():
            counts[label] = counts.get(label, 0) + 1
        return [((label,), n) for label, n in counts.items()]

    def message_rows(self) -> list[tuple[tuple[str, ...], float]]:
        """Messages since the start, by path and direction (received, sent)."""
        counts = dict(self._ended)
        for socket, label in self._open.items():
            for direction, n in _messages(socket):
                counts[label, direction] = counts.get((label, direction), 0) + n
        return list(counts.items())

    def __repr__(self) -> str:
        return f"<SocketCounts: {len(self._open)} open>"


def _messages(socket: WebSocketConnection) -> tuple[tuple[str, int], tuple[str, int]]:
    return ("received", socket.n_received), ("sent", socket.n_sent)
