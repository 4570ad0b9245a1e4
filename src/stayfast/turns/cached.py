"""A cache around an async function: results by arguments for a time, and one call for concurrent equal requests.

    search = CachedFunction(find, ttl_s=300, stale_while_revalidate_s=60)     # next to the function, shared by all turns
    found = await b.run(search, question, name="kb", cap=0.4, fallback=search.peek(question))

    younger than ttl_s   returned at once
    older                by the rules of `policy.cache.freshness`: up to stale_while_revalidate_s it is returned at once and
                         refreshed in the background; up to stale_if_error_s it is returned if the call raises
    in flight            joined. The call has its own budget, as long as the longest of its waiters, and ends with the last
                         waiter, not with the first. If it fails late, and may have failed only for lack of time, a waiter
                         with more time repeats it once
    not stored           exceptions, and results that `should_cache` rejects, such as a search of half an index

The key is the repr of the arguments (text, numbers, None, tuples of them). Anything else that the result depends on, above
all the user or tenant, must be part of it: `key=lambda question, user: f"{user.tenant} {question}"`. At most `max_entries`
stay in memory, frequent ones longest (`policy.cache.s3fifo`). With a `store`, processes share the entries; then a `name` is
required that identifies the function, because methods of different objects have the same `__name__`. Lists, dicts and sets
are returned as copies. `stayfast warm FILE --call` fills a shared store in advance.
When wrong: other objects are returned without a copy; a caller that changes one changes it for all callers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from math import inf
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from stayfast.core.clock import SystemClock
from stayfast.policy.cache.freshness import FRESH, SPARE, STALE, CacheConfig, age_of, freshness_of
from stayfast.policy.cache.s3fifo import OVERHEAD_BYTES, S3Fifo
from stayfast.stores.base import CachedAnswer, Store
from stayfast.turns.budget import Budget
from stayfast.turns.step_run import BudgetScope, current_scope
from stayfast.turns.validation import argument_error, is_amount, is_count, is_seconds

P = ParamSpec("P")
T = TypeVar("T")
_SIMPLE = (str, bytes, int, float, bool, type(None))
_LATE = 0.5  # a call that failed after this share of its time may have failed for lack of time


class _StoredValue(msgspec.Struct, frozen=True):
    result: Any
    stored_at: float  # wall seconds


class _PendingCall:
    """A call in flight, with its own budget. `until`: the latest instant at which one of its waiters gives up.
    A background refresh has no waiters.
    """

    __slots__ = ("_initial_until", "_scope", "budget", "n_waiting", "task", "until")

    task: "asyncio.Task[Any]"

    def __init__(self, total_s: float, until: float) -> None:
        outer = current_scope.get()
        self.budget = Budget(total_s, {}, inf, outer.budget.start_thread if outer is not None else None)
        self.until = until
        self.n_waiting = 0
        self._initial_until = inf
        self._scope: BudgetScope | None = None  # of the function, once it was called

    def mark_started(self) -> None:
        self._scope = current_scope.get()
        self.extend_until(self.until)
        self._initial_until = min(self.budget.deadline_at, self.until)

    def extend_until(self, until: float) -> None:
        self.until = max(self.until, until)
        if self._scope is not None:
            self._scope.ends_at = min(self.budget.deadline_at, self.until)

    def may_have_lacked_time(self, until: float) -> bool:
        """Whether the call may have failed only because it started with less time than `until`."""
        budget = self.budget
        is_late = budget.ended_at - budget.began_at >= _LATE * (self._initial_until - budget.began_at)
        return self._initial_until < until and is_late


class CacheCounts(msgspec.Struct):
    """Lookups so far, by result."""

    n_hits: int = 0
    n_stale: int = 0  # hits with a stale value
    n_shared: int = 0  # joined a call in flight
    n_misses: int = 0


class CachedFunction(Generic[P, T]):
    """Call it like the function. Bound to one loop; `store` is any of `stayfast.stores`."""

    def __init__(self, function: Callable[P, Awaitable[T]], *, ttl_s: float, key: Callable[P, str] | None = None,
                 stale_while_revalidate_s: float = 0.0, stale_if_error_s: float = 0.0,
                 should_cache: Callable[[T], bool] | None = None, max_entries: int = 1000, refresh_timeout_s: float = 30.0,
                 store: Store | None = None, name: str | None = None, kind: Any = Any) -> None:
        """`should_cache`: whether a result may be stored; by default all are. `refresh_timeout_s`: for a refresh in the
        background. With a `store`, results are written as MessagePack under `name`, and read as type `kind`. Raises
        ValueError and TypeError.
        """
        if not callable(function):
            raise TypeError(f"CachedFunction({function!r:.80}): pass the function itself, not a call of it, as in "
                            "CachedFunction(find, ttl_s=300)")
        for argument, value in (("key", key), ("should_cache", should_cache)):
            if value is not None and not callable(value):
                raise TypeError(f"{argument}={value!r:.80}: a function: `key` of arguments, `should_cache` of results")
        for argument, seconds in (("ttl_s", ttl_s), ("stale_while_revalidate_s", stale_while_revalidate_s),
                                  ("stale_if_error_s", stale_if_error_s)):
            if not is_amount(seconds):
                raise argument_error(f"{argument}={seconds!r:.80}: seconds, as in CachedFunction(find, ttl_s=300)", seconds)
        self._config = CacheConfig("exact", ttl_s, stale_while_revalidate_s=stale_while_revalidate_s,
                                   stale_if_error_s=stale_if_error_s)
        if not is_count(max_entries, 1):
            raise argument_error(f"max_entries={max_entries!r:.80}: entries in memory, an integer, 1 or more", max_entries)
        if not is_seconds(refresh_timeout_s):
            raise argument_error(f"refresh_timeout_s={refresh_timeout_s!r:.80}: seconds for a refresh in the background, "
                                 "above 0", refresh_timeout_s)
        if store is not None and not name:
            raise ValueError("with a store a name is required, as in name=\"acme search\": it separates the entries of this "
                             "function from others in the store")
        function_name: str = getattr(function, "__name__", type(function).__name__)
        self.__name__ = name or function_name
        self.counts = CacheCounts()
        self._function = function
        self._key = key
        self._should_cache = should_cache
        self._refresh_timeout_s = refresh_timeout_s
        self._values: S3Fifo[_StoredValue] = S3Fifo(max_entries * OVERHEAD_BYTES)
        self._pending: dict[bytes, _PendingCall] = {}
        self._store = store
        self._kind = kind

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """A stored result, or that of a call. Raises the function's exception if no stale result may replace it."""
        key, wall = self._key_of(args, kwargs), _wall_clock()
        value = await self._find_value(key, wall())
        use = freshness_of(self._config, age_of(value.stored_at, wall())) if value is not None else None
        if value is not None and use in (FRESH, STALE):
            self.counts.n_hits += 1
            if use is STALE:
                self.counts.n_stale += 1
                if key not in self._pending:
                    self._start_call(key, _PendingCall(self._refresh_timeout_s, inf), *args, **kwargs)
            result: T = _copy(value.result)
            return result
        if key in self._pending:
            self.counts.n_shared += 1
        else:
            self.counts.n_misses += 1
        try:
            return await self._call_shared(key, *args, **kwargs)
        except Exception:
            if value is None or use is not SPARE:
                raise
            self.counts.n_stale += 1
            stale: T = _copy(value.result)
            return stale

    def peek(self, *args: P.args, **kwargs: P.kwargs) -> T | None:
        """The stored result in this process, of any age, for a fallback; None if there is none."""
        value = self._values.peek(self._key_of(args, kwargs))
        return _copy(value.result) if value is not None else None

    async def age_s(self, *args: P.args, **kwargs: P.kwargs) -> float | None:
        """The age of the stored result, in memory or in the store; None if there is none."""
        wall = _wall_clock()
        value = await self._find_value(self._key_of(args, kwargs), wall())
        return age_of(value.stored_at, wall()) if value is not None else None

    async def refresh(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, whatever is stored, and store the result. Raises the function's exception."""
        return await self._call_shared(self._key_of(args, kwargs), *args, **kwargs)

    async def aclose(self) -> None:
        """Flush and close the store."""
        if self._store is not None:
            await self._store.close()

    @property
    def ttl_s(self) -> float:
        return self._config.ttl_s

    @property
    def is_shared(self) -> bool:
        """Whether other processes see the stored results."""
        return self._store is not None and self._store.is_shared

    async def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Remove the stored result of these arguments."""
        key = self._key_of(args, kwargs)
        self._values.remove(key)
        if self._store is not None:
            await self._store.remove(key)

    def _key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        if self._key is not None:
            key = self._key(*args, **kwargs)
        else:
            key = repr((args, sorted(kwargs.items())))
            if not all(_is_simple(value) for value in (*args, *kwargs.values())):
                raise TypeError(f"{self.__name__}: its arguments are not only text and numbers: pass a key function, as in "
                                f"CachedFunction({self.__name__}, ttl_s=300, key=lambda question, user: ...)")
        return sha256(f"{self.__name__}\n{key}".encode()).digest()

    async def _call_shared(self, key: bytes, *args: P.args, **kwargs: P.kwargs) -> T:
        outer = current_scope.get()
        until = inf if outer is None else outer.ends_at
        pending = self._pending.get(key)
        if pending is not None:
            try:
                return await self._wait(key, pending, until)
            except Exception:
                if not pending.may_have_lacked_time(until):
                    raise
        pending = self._pending.get(key)
        if pending is None:
            pending = self._start_call(key, _PendingCall(inf, until), *args, **kwargs)
            if outer is not None:  # the first caller is charged, and has the call in its report
                outer.inner = [*(outer.inner or ()), pending.budget]
        return await self._wait(key, pending, until)

    def _start_call(self, key: bytes, pending: _PendingCall, *args: P.args, **kwargs: P.kwargs) -> _PendingCall:
        self._pending[key] = pending
        outer = current_scope.get()
        current_scope.set(None)  # the Task copies the context
        pending.task = asyncio.get_running_loop().create_task(self._call_and_store(key, pending, *args, **kwargs))
        current_scope.set(outer)
        pending.task.add_done_callback(lambda task: self._on_call_done(key, pending))
        return pending

    def _on_call_done(self, key: bytes, pending: _PendingCall) -> None:
        self._forget_call(key, pending)
        if not pending.task.cancelled():
            pending.task.exception()  # retrieved, so that asyncio does not log it if no caller waits

    def _forget_call(self, key: bytes, pending: _PendingCall) -> None:
        if self._pending.get(key) is pending:
            del self._pending[key]

    async def _wait(self, key: bytes, pending: _PendingCall, until: float) -> T:
        pending.extend_until(until)
        pending.n_waiting += 1
        try:
            result: T = _copy(await asyncio.shield(pending.task))
            return result
        finally:
            pending.n_waiting -= 1
            if not pending.n_waiting and not pending.task.done():
                self._forget_call(key, pending)  # later callers start a new call
                pending.task.cancel()

    async def _call_and_store(self, key: bytes, pending: _PendingCall, *args: P.args, **kwargs: P.kwargs) -> T:
        async with pending.budget:
            pending.mark_started()
            call = self._function(*args, **kwargs)
            if not isinstance(call, Awaitable):
                raise TypeError(f"{self.__name__} is a plain function: CachedFunction needs an async one, which may call it "
                                f"in a thread: return await asyncio.to_thread({self.__name__}, question)")
            result = await call
            if self._should_cache is None or self._should_cache(result):
                value = _StoredValue(result, _wall_clock()())
                self._values.put(key, value, 0)
                if self._store is not None:
                    drop_at = value.stored_at + self._config.storage_s
                    await self._store.put(key, CachedAnswer(msgspec.msgpack.encode(result), value.stored_at, drop_at=drop_at,
                                                            route=self.__name__))
            return result

    async def _find_value(self, key: bytes, now: float) -> _StoredValue | None:
        """The value in memory if it is fresh; else the store may have a newer one from another process."""
        value = self._values.get(key)
        if self._store is None or (value is not None and freshness_of(self._config, age_of(value.stored_at, now)) is FRESH):
            return value
        stored = await self._store.get(key)
        if stored is None:
            return value
        try:
            value = _StoredValue(msgspec.msgpack.decode(stored.body, type=self._kind), stored.kept_at)
        except msgspec.DecodeError:  # written with an older type
            return value
        self._values.put(key, value, 0)
        return value

    def __repr__(self) -> str:
        return f"<CachedFunction {self.__name__}: {len(self._values)} entries, {len(self._pending)} in flight>"


def _is_simple(argument: Any) -> bool:
    return isinstance(argument, _SIMPLE) or (isinstance(argument, tuple) and all(map(_is_simple, argument)))


def _copy(value: Any) -> Any:
    """The value with new lists, dicts and sets, so that callers can change theirs."""
    kind = type(value)
    if kind is list:
        return [_copy(item) for item in value]
    if kind is tuple:
        return tuple([_copy(item) for item in value])
    if kind is dict:
        return {name: _copy(item) for name, item in value.items()}
    return set(value) if kind is set else value


def _wall_clock() -> Callable[[], float]:
    """The loop's own clock if it runs in virtual time."""
    wall: Callable[[], float] = getattr(asyncio.get_running_loop(), "wall", SystemClock.wall)
    return wall
