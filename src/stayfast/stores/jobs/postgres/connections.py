"""Connections to PostgreSQL with a time limit for everything, and errors that contain no password and no request.

Problem: a server that restarts, hangs or is unreachable must not make a caller wait. Rule: every call has LIMIT_S in all,
for the connection and the statement; a connection whose statement did not end in time is closed, not reused. After a failed
connection the next attempts wait, with growing pauses, and calls fail at once meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final, TypeVar

import asyncpg

from stayfast.core.clock import Clock
from stayfast.policy.resilience.retry import backoff_s
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import StoreFull
from stayfast.stores.jobs.postgres.address import PostgresAddress

LIMIT_S: Final = 1.8  # for a call, its connection included
CONNECT_S: Final = 1.0
MIGRATE_S: Final = 30.0
BACKOFF_S, BACKOFF_MAX_S = 0.05, 1.0
N_REPEATS: Final = 3  # of a transaction that the server has rolled back because of another one
_CODE_CHARACTERS: Final = 5
# The statements are look-ups by index, and the statistics of a queue are wrong most of the time: it was empty when they were
# made. A plan that reads the whole table would be chosen just when the table is large.
_SETTINGS: Final = {
    "application_name": "stayfast",
    "idle_in_transaction_session_timeout": "10s",
    "statement_timeout": f"{round(LIMIT_S * 1e3)}ms",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
_FULL: Final = frozenset(("53100", "25006"))  # disk full; the server is read-only
_ROLLED_BACK: Final = frozenset(("40001", "40P01"))  # serialization failure, deadlock
_GONE: Final = frozenset(("57P01", "57P02", "57P03", "57P05", "08003", "08006"))  # the server ended the connection
# What the driver raises for a connection that has ended; InternalClientError for one that ended between two of its steps.
BROKEN: Final = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)
R = TypeVar("R")


class PostgresPool:
    """Connections of one event loop, opened when they are needed. Raises StoreUnavailable and StoreFull only."""

    def __init__(self, address: PostgresAddress, clock: Clock, rng: Random | None = None) -> None:
        self.address = address
        self._clock = clock
        self._rng = rng or Random()
        self._idle: list[Any] = []
        self._free = asyncio.Semaphore(address.max_connections)
        self._n_failed = 0  # attempts to connect, in a row
        self._closed_until = 0.0  # no attempt before
        self._is_closed = False

    async def fetch(self, query: str, *values: object) -> list[Any]:
        """Execute one statement, as its own transaction."""
        return await self.run(lambda connection: connection.fetch(query, *values))

    async def fetch_row(self, query: str, *values: object) -> Any:
        """The only row, or None."""
        rows = await self.fetch(query, *values)
        return rows[0] if rows else None

    async def run_transaction(self, body: Callable[[Any], Awaitable[R]]) -> R:
        """Execute `body(connection)` in a transaction: all of it or nothing."""
        async def run_body(connection: Any) -> R:
            await connection.execute("BEGIN")  # its end by an error is the end of the connection, which needs no reply
            result = await body(connection)
            await connection.execute("COMMIT")
            return result

        return await self.run(run_body)

    async def run(self, body: Callable[[Any], Awaitable[R]], limit_s: float = LIMIT_S) -> R:
        """Execute `body(connection)`, repeated if the server has rolled it back because of another transaction, and once if
        an idle connection was closed in the meantime.
        """
        n_left = N_REPEATS
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    n_left -= 1
                    try:
                        async with self._connection() as connection:
                            return await body(connection)
                    except _Repeat:
                        if n_left <= 0:
                            raise StoreUnavailable("the database rolled the transaction back repeatedly") from None
        except TimeoutError:
            raise StoreUnavailable("the database did not reply in time") from None

    async def connect(self, **options: Any) -> Any:
        """A new connection, which the caller closes."""
        now = self._clock.now()
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        if now < self._closed_until:
            raise StoreUnavailable("the database is unreachable")
        settings = {} if self.address.is_pooled else {**_SETTINGS, **options}
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await asyncpg.connect(
                    self.address.dsn, timeout=CONNECT_S, server_settings=settings,
                    statement_cache_size=0 if self.address.is_pooled else 200)
        except (*BROKEN, ValueError, asyncpg.PostgresError) as error:
            self._n_failed += 1
            self._closed_until = self._clock.now() + backoff_s(self._n_failed, BACKOFF_S, BACKOFF_MAX_S, self._rng)
            described = describe_error(error)
            if isinstance(described, StoreFull):
                raise described from None
            raise StoreUnavailable(f"no connection to the database of jobs.store: {described}") from None
        self._n_failed = 0
        return connection

    async def close(self) -> None:
        self._is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.terminate()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        async with self._free:
            connection, is_new = self._take_idle(), False
            if connection is None:
                connection, is_new = await self.connect(), True
            try:
                yield connection
            except asyncpg.PostgresError as error:
                connection.terminate()
                if error.sqlstate in _ROLLED_BACK:
                    raise _Repeat from None
                if not is_new and error.sqlstate in _GONE:
                    self._drop_idle()
                    raise _Repeat from None
                raise describe_error(error) from None
            except BROKEN as error:
                connection.terminate()
                if is_new or isinstance(error, TimeoutError):
                    raise describe_error(error) from None
                self._drop_idle()  # the server has restarted
                raise _Repeat from None
            except BaseException:
                connection.terminate()
                raise
            self._give_back(connection)

    def _take_idle(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _give_back(self, connection: Any) -> None:
        if self._is_closed or connection.is_closed():
            connection.terminate()
        else:
            self._idle.append(connection)

    def _drop_idle(self) -> None:
        for connection in self._idle:
            connection.terminate()
        self._idle.clear()

    def __repr__(self) -> str:
        return f"<PostgresPool: {len(self._idle)} idle>"


class _Repeat(Exception):
    """The transaction did not happen, or can be repeated."""


def describe_error(error: BaseException) -> StoreUnavailable:
    """The error for callers: its class and code, never its text, which may contain values of a statement or a password."""
    state = getattr(error, "sqlstate", None)
    if state in _FULL:
        return StoreFull("the database has no space, or is read-only")
    return StoreUnavailable(_name_error(error))


def _name_error(error: BaseException) -> str:
    state = getattr(error, "sqlstate", None)
    return type(error).__name__ if state is None else f"{type(error).__name__} ({state[:_CODE_CHARACTERS]})"


def make_sql(template: str, **parts: str) -> str:
    """A statement with its parts `{name}` filled in. Values of users are never parts: they are parameters."""
    for name, part in parts.items():
        template = template.replace(f"{{{name}}}", part)
    return template


def to_text(value: str) -> str:
    """Text that PostgreSQL can store: without zero bytes and lone surrogates."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def columns(rows: Sequence[Sequence[Any]], n: int) -> list[list[Any]]:
    """Rows as `n` arrays, for unnest."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(n)]
