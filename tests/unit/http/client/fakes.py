"""Stand-ins below the HTTP client: a transport that remembers, and a clock that is set."""

import asyncio
from typing import Any

import pytest

from stayfast.http.client.pool import ConnectionPool


class SetClock:
    """A clock that a test moves."""

    def __init__(self, at: float = 0.0) -> None:
        self.at = at

    def now(self) -> float:
        """The set instant."""
        return self.at

    def wall(self) -> float:
        """The set instant."""
        return self.at

    def cpu(self) -> float:
        """None."""
        return 0.0


class FakeTransport(asyncio.Transport):
    """Records written bytes and whether reading is paused; calls nothing back."""

    def __init__(self, **extra: Any) -> None:
        super().__init__(extra)
        self.written = b""
        self.is_paused = False
        self.is_aborted = False
        self.n_unwritten = 0

    def write(self, data: Any) -> None:
        """Take bytes."""
        self.written += bytes(data)

    def is_closing(self) -> bool:
        """Whether it was aborted."""
        return self.is_aborted

    def abort(self) -> None:
        """Close at once."""
        self.is_aborted = True

    def pause_reading(self) -> None:
        """Stop."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Go on."""
        self.is_paused = False

    def get_write_buffer_size(self) -> int:
        """Bytes that the peer has not taken."""
        return self.n_unwritten

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is kept back."""


def new_pool(max_connections: int = 0, *, max_idle: int = 100, keepalive_s: float = 50.0, is_shared: bool = False,
             clock: SetClock | None = None) -> ConnectionPool:
    """A pool with defaults for tests."""
    return ConnectionPool(max_connections, max_idle, keepalive_s, is_shared, clock or SetClock())


def start_dial(pool: ConnectionPool) -> None:
    """Get the pool's permission to open a connection; `acquire` gives it without waiting."""
    with pytest.raises(StopIteration) as returned:
        pool.acquire().send(None)
    assert returned.value.value is None
