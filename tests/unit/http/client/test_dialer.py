"""DNS: off the request path, shared, and stale results during a refresh."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from stayfast.http.client.dialer import RETRY_AFTER_S, STALE_FOR_S, Resolver
from tests.unit.http.client.fakes import SetClock


class Names:
    """A look-up that counts, and can be held up or made to fail."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.ip = "10.0.0.1"
        self.failure: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, host: str, port: None, **options: Any) -> list[tuple[Any, ...]]:
        self.n_calls += 1
        assert self.gate.wait(5)
        if self.failure is not None:
            raise self.failure
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.ip, 0)),
                (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::9", 0, 0, 0)),
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.ip, 0))]


async def refreshed(resolver: Resolver) -> None:
    """Wait for the end of the running look-up."""
    assert resolver.is_refreshing
    while resolver.is_refreshing:
        await asyncio.sleep(0.001)


def test_resolver_literal_address_needs_no_lookup() -> None:
    """A literal address is its own answer, for ever."""

    async def main() -> None:
        names = Names()
        assert await Resolver("127.0.0.1", 30, SetClock(1e9), names).resolve() == ((socket.AF_INET, "127.0.0.1"),)
        six = Resolver("::1", 30, SetClock(), names)
        six.drop_result()
        assert await six.resolve() == ((socket.AF_INET6, "::1"),)
        assert names.n_calls == 0

    asyncio.run(main())


def test_resolver_result_is_used_for_its_ttl() -> None:
    """One look-up per `ttl_s`, shared by concurrent callers; each address once, in the system's order."""

    async def main() -> None:
        names, clock = Names(), SetClock()
        resolver = Resolver("h", 30, clock, names)
        found = await asyncio.gather(*(resolver.resolve() for _ in range(5)))
        assert set(found) == {((socket.AF_INET, "10.0.0.1"), (socket.AF_INET6, "::9"))}
        clock.at = 29.9
        await resolver.resolve()
        assert names.n_calls == 1

    asyncio.run(main())


def test_resolver_stale_result_is_used_during_the_refresh() -> None:
    """An aged result is used at once while the new one is looked up; a very old one is not."""

    async def main() -> None:
        names, clock = Names(), SetClock()
        resolver = Resolver("h", 30, clock, names)
        await resolver.resolve()
        names.gate.clear()
        names.ip = "10.0.0.2"
        clock.at = 31
        assert (await resolver.resolve())[0][1] == "10.0.0.1"
        names.gate.set()
        await refreshed(resolver)
        assert (await resolver.resolve())[0][1] == "10.0.0.2"
        names.ip = "10.0.0.3"
        clock.at = 31 + 30 + STALE_FOR_S
        assert (await resolver.resolve())[0][1] == "10.0.0.3"

    asyncio.run(main())


def test_resolver_failed_refresh_keeps_the_old_result() -> None:
    """A failed refresh leaves the old addresses in use, and is tried again a little later."""

    async def main() -> None:
        names, clock = Names(), SetClock()
        resolver = Resolver("h", 30, clock, names)
        await resolver.resolve()
        names.failure = socket.gaierror(-3, "Temporary failure")
        clock.at = 31
        await resolver.resolve()
        await refreshed(resolver)
        assert (await resolver.resolve())[0][1] == "10.0.0.1"
        assert names.n_calls == 2
        names.failure = None
        clock.at += RETRY_AFTER_S
        await resolver.resolve()
        await refreshed(resolver)
        assert names.n_calls == 3

    asyncio.run(main())


def test_resolver_first_lookup_failure_raises() -> None:
    """All waiting callers fail, and the next caller starts a new look-up."""

    async def main() -> None:
        names = Names()
        names.failure = socket.gaierror(-2, "Name or service not known")
        resolver = Resolver("h", 30, SetClock(), names)
        found = await asyncio.gather(resolver.resolve(), resolver.resolve(), return_exceptions=True)
        assert all(isinstance(one, socket.gaierror) for one in found)
        names.failure = None
        assert await resolver.resolve()
        assert names.n_calls == 2

    asyncio.run(main())


def test_resolver_forget_starts_a_new_lookup() -> None:
    """After `forget` nothing old is used."""

    async def main() -> None:
        names = Names()
        resolver = Resolver("h", 30, SetClock(), names)
        await resolver.resolve()
        resolver.drop_result()
        await resolver.resolve()
        assert names.n_calls == 2

    asyncio.run(main())


def test_resolver_cancelled_caller_does_not_cancel_the_lookup() -> None:
    """Other callers still get its result."""

    async def main() -> None:
        names = Names()
        names.gate.clear()
        resolver = Resolver("h", 30, SetClock(), names)
        loop = asyncio.get_running_loop()
        gone, stays = loop.create_task(resolver.resolve()), loop.create_task(resolver.resolve())
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        names.gate.set()
        assert await stays
        assert names.n_calls == 1

    asyncio.run(main())
