"""What a turn looks up is kept, by key and for a time; the same question in flight is asked once.

    search = CachedFunction(find, ttl_s=300, stale_while_revalidate_s=60)     # beside the function, once: all turns share it
    found = await b.run(search, question, name="kb", cap=0.4, fallback=search.kept(question))

    younger than ttl_s   given at once
    older                by the gateway's own rules (`policy.cache.freshness`): by at most stale_while_revalidate_s, given
    at once and
                         asked for again in the background, once; by at most stale_if_error_s, given where the call raises
    in flight            waited for; the call has a budget of its own, as long as the longest of those who wait for it have,
                         and ends with the last of them, never with the first. One that failed late, because it was begun
                         with less time than somebody has who joined it, is asked again for those, once
    not kept             what raised, and what `keep` refuses: a search that found nothing because half of the index was
                         down is not to be found for five minutes

The key is made of the arguments (text, numbers, None, and tuples of those); whatever else the answer depends on belongs into
it as well, first of all whose it is: `key=lambda question, user: f"{user.tenant} {question}"`. At most `max_entries` are
kept, what is asked for often the longest (`policy.cache.s3fifo`); with a `store` other processes share them, and others'
values stand beside: then it needs a `name`, which whoever looks up the same gives it as well, and nobody else. (A
function's own name would not do: the methods of two objects have the same.) Lists, dicts and sets are handed out as
copies. What will be asked for can be looked up before anybody asks, by another process with the same store: `stayfast warm
FILE --call`. When wrong: an object is handed out as it is. Whoever changes one that was found changes it for everybody.
"""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from math import inf
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from stayfast.core.clock import SystemClock
from stayfast.policy.cache.freshness import FRESH, SPARE, STALE, CacheConfig, age_of, use_of
from stayfast.policy.cache.s3fifo import OVERHEAD_BYTES, S3Fifo
from stayfast.stores.base import CachedAnswer, Store
from stayfast.turns.budget import Budget
from stayfast.turns.step_run import BudgetScope, current_scope
from stayfast.turns.validation import argument_error, is_amount, is_count, is_seconds

P = ParamSpec("P")
T = TypeVar("T")
_SIMPLE = (str, bytes, int, float, bool, type(None))
_LATE = 0.5  # of the time that a call was given: what fails before that has not failed for want of time


class _Value(msgspec.Struct, frozen=True):
    of: Any
    stored_at: float  # wall seconds


class _PendingCall:
    """One call that is under way, in a budget of its own, and how many wait for it: nobody, where it is made behind an old
    value's back. `until`: the instant up to which somebody waits.
    """

    __slots__ = ("_given_until", "_scope", "budget", "n_waiting", "task", "until")

    task: "asyncio.Task[Any]"

    def __init__(self, total_s: float, until: float) -> None:
        outer = current_scope.get()
        self.budget = Budget(total_s, {}, inf, outer.budget.start_thread if outer is not None else None)
        self.until = until
        self.n_waiting = 0
        self._given_until = inf
        self._scope: BudgetScope | None = None  # what the function stands in, once it was called

    def mark_started(self) -> None:
        self._scope = current_scope.get()
        self.extend_until(self.until)
        self._given_until = min(self.budget.deadline_at, self.until)

    def extend_until(self, until: float) -> None:
        self.until = max(self.until, until)
        if self._scope is not None:
            self._scope.ends_at = min(self.budget.deadline_at, self.until)

    def may_have_lacked_time(self, until: float) -> bool:
        """Whether it may have failed only because it had less time than until then."""
        of = self.budget
        return self._given_until < until and of.ended_at - of.began_at >= _LATE * (self._given_until - of.began_at)


class CacheCounts(msgspec.Struct):
    """What became of the questions so far."""

    n_hits: int = 0
    n_stale: int = 0  # of those, old ones
    n_shared: int = 0  # waited for another one's call
    n_misses: int = 0


class CachedFunction(Generic[P, T]):
    """See the module. Call it as the function it stands for. One loop's; `store` is any of `stayfast.stores`."""

    def __init__(self, function: Callable[P, Awaitable[T]], *, ttl_s: float, key: Callable[P, str] | None = None,
                 stale_while_revalidate_s: float = 0.0, stale_if_error_s: float = 0.0,
                 should_cache: Callable[[T], bool] | None = None, max_entries: int = 1000, refresh_timeout_s: float = 30.0,
                 store: Store | None = None, name: str | None = None, kind: Any = Any) -> None:
        """`keep`: whether a value may be given again; all may without one. `refresh_timeout_s`: time for a call in the
        background. With a `store` values are written as MessagePack, under `name`, and read back as `kind`. Raises
        ValueError and TypeError.
        """
        if not callable(function):
            raise TypeError(f"CachedFunction({function!r:.80}): give it the function itself, not what a call of it brings, "
                            f"as in "
                            "CachedFunction(find, ttl_s=300)")
        for argument, of in (("key", key), ("should_cache", should_cache)):
            if of is not None and not callable(of):
                raise TypeError(f"{argument}={of!r:.80}: a function, of the arguments for `key` and of the result for "
                                f"`keep`")
        for argument, seconds in (("ttl_s", ttl_s), ("stale_while_revalidate_s", stale_while_revalidate_s),
                              ("stale_if_error_s", stale_if_error_s)):
            if not is_amount(seconds):
                raise argument_error(f"{argument}={seconds!r:.80}: seconds, as in CachedFunction(find, ttl_s=300)", seconds)
        self._config = CacheConfig("exact", ttl_s, stale_while_revalidate_s=stale_while_revalidate_s,
                                   stale_if_error_s=stale_if_error_s)
        if not is_count(max_entries, 1):
            raise argument_error(f"max_entries={max_entries!r:.80}: how many are kept, a whole number, 1 or more",
                                 max_entries)
        if not is_seconds(refresh_timeout_s):
            raise argument_error(f"refresh_timeout_s={refresh_timeout_s!r:.80}: seconds for a call in the background, more "
                                 f"than 0",
                        refresh_timeout_s)
        if store is not None and not name:
            raise ValueError("with a store it needs a name of its own, as in name=\"acme search\": others keep theirs there")
        function_name: str = getattr(function, "__name__", type(function).__name__)
        self.__name__ = name or function_name
        self.counts = CacheCounts()
        self._function = function
        self._key = key
        self._should_cache = should_cache
        self._refresh_timeout_s = refresh_timeout_s
        self._values: S3Fifo[_Value] = S3Fifo(max_entries * OVERHEAD_BYTES)
        self._pending: dict[bytes, _PendingCall] = {}
        self._store = store
        self._kind = kind

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """What is kept, or what the function brings. Raises what that raises where nothing kept may stand in for it."""
        key, wall = self._key_of(args, kwargs), _wall_clock()
        value = await self._find_value(key, wall())
        use = use_of(self._config, age_of(value.stored_at, wall())) if value is not None else None
        if value is not None and use in (FRESH, STALE):
            self.counts.n_hits += 1
            if use is STALE:
                self.counts.n_stale += 1
                if key not in self._pending:
                    self._start_call(key, _PendingCall(self._refresh_timeout_s, inf), *args, **kwargs)
            result: T = _copy(value.of)
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
            spare: T = _copy(value.of)
            return spare

    def peek(self, *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What is kept in this process, however old, for a fallback; None where nothing is."""
        value = self._values.peek(self._key_of(args, kwargs))
        return _copy(value.of) if value is not None else None

    async def age_s(self, *args: P.args, **kwargs: P.kwargs) -> float | None:
        """How old what is kept is, here or in the store; None where nothing is."""
        wall = _wall_clock()
        value = await self._find_value(self._key_of(args, kwargs), wall())
        return age_of(value.stored_at, wall()) if value is not None else None

    async def refresh(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Look it up, whatever is kept, and keep that. Raises what the function raises."""
        return await self._call_shared(self._key_of(args, kwargs), *args, **kwargs)

    async def aclose(self) -> None:
        """Write what the store has not been told yet, and close that."""
        if self._store is not None:
            await self._store.close()

    @property
    def ttl_s(self) -> float:
        """How old what is given as it is may be."""
        return self._config.ttl_s

    @property
    def is_shared(self) -> bool:
        """Whether other processes have what is kept here."""
        return self._store is not None and self._store.is_shared

    async def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Keep nothing of this question."""
        key = self._key_of(args, kwargs)
        self._values.remove(key)
        if self._store is not None:
            await self._store.remove(key)

    def _key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        if self._key is not None:
            key = self._key(*args, **kwargs)
        else:
            key = repr((args, sorted(kwargs.items())))
            if not all(_is_simple(each) for each in (*args, *kwargs.values())):
                raise TypeError(f"{self.__name__}: its arguments are more than text and numbers: say what tells one question"
                                f" from another, as in CachedFunction({self.__name__}, ttl_s=300, key=lambda question, "
                                f"user: ...)")
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
            if outer is not None:  # whoever asks first pays, and its report says for what
                outer.inner = [*(outer.inner or ()), pending.budget]
        return await self._wait(key, pending, until)

    def _start_call(self, key: bytes, pending: _PendingCall, *args: P.args, **kwargs: P.kwargs) -> _PendingCall:
        self._pending[key] = pending
        outer = current_scope.get()
        current_scope.set(None)  # the Task's context is a copy of this one
        pending.task = asyncio.get_running_loop().create_task(self._call_and_store(key, pending, *args, **kwargs))
        current_scope.set(outer)
        pending.task.add_done_callback(lambda task: self._on_call_done(key, pending))
        return pending

    def _on_call_done(self, key: bytes, pending: _PendingCall) -> None:
        self._forget_call(key, pending)
        if not pending.task.cancelled():
            pending.task.exception()  # whoever waits has it; behind an old value's back nobody does

    def _forget_call(self, key: bytes, pending: _PendingCall) -> None:
        if self._pending.get(key) is pending:
            del self._pending[key]

    async def _wait(self, key: bytes, pending: _PendingCall, until: float) -> T:
        pending.extend_until(until)
        pending.n_waiting += 1
        try:
            made: T = _copy(await asyncio.shield(pending.task))
            return made
        finally:
            pending.n_waiting -= 1
            if not pending.n_waiting and not pending.task.done():
                self._forget_call(key, pending)  # who asks while it ends asks anew
                pending.task.cancel()

    async def _call_and_store(self, key: bytes, pending: _PendingCall, *args: P.args, **kwargs: P.kwargs) -> T:
        async with pending.budget:
            pending.mark_started()
            call = self._function(*args, **kwargs)
            if not isinstance(call, Awaitable):
                raise TypeError(f"{self.__name__} is a plain function: Cached needs an async one, which may hand it to "
                                f"a thread: return await asyncio.to_thread({self.__name__}, question)")
            made = await call
            if self._should_cache is None or self._should_cache(made):
                value = _Value(made, _wall_clock()())
                self._values.put(key, value, 0)
                if self._store is not None:
                    drop_at = value.stored_at + self._config.keep_s
                    await self._store.put(key, CachedAnswer(msgspec.msgpack.encode(made), value.stored_at, drop_at=drop_at,
                                                    route=self.__name__))
            return made

    async def _find_value(self, key: bytes, now: float) -> _Value | None:
        """What is kept here; of an old one another process may have a newer one in the store."""
        value = self._values.get(key)
        if self._store is None or (value is not None and use_of(self._config, age_of(value.stored_at, now)) is FRESH):
            return value
        stored = await self._store.get(key)
        if stored is None:
            return value
        try:
            value = _Value(msgspec.msgpack.decode(stored.body, type=self._kind), stored.kept_at)
        except msgspec.DecodeError:  # of an older shape
            return value
        self._values.put(key, value, 0)
        return value

    def __repr__(self) -> str:
        return f"<Cached {self.__name__}: {len(self._values)} kept, {len(self._pending)} asked for>"


def _is_simple(argument: Any) -> bool:
    return isinstance(argument, _SIMPLE) or (isinstance(argument, tuple) and all(_is_simple(each) for each in argument))


def _copy(value: Any) -> Any:
    """The same, whose lists, dicts and sets nobody else has."""
    kind = type(value)
    if kind is list:
        return [_copy(each) for each in value]
    if kind is tuple:
        return tuple([_copy(each) for each in value])
    if kind is dict:
        return {name: _copy(each) for name, each in value.items()}
    return set(value) if kind is set else value


def _wall_clock() -> Callable[[], float]:
    """The loop's own clock where it is in virtual time."""
    wall: Callable[[], float] = getattr(asyncio.get_running_loop(), "wall", SystemClock.wall)
    return wall
