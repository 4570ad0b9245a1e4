"""Whose limit a request waits for."""

import asyncio

import pytest

from stayfast.http.client.h1 import H1Connection
from tests.unit.http.client.fakes import FakeTransport, new_pool


@pytest.mark.parametrize(("max_connections", "is_shared", "is_full"), [
    (1, False, True), (2, False, False), (0, True, False)])
def test_pool_full_is_a_limit_of_the_gateway(max_connections: int, *, is_shared: bool, is_full: bool) -> None:
    """A wait behind busy connections is the gateway's limit; a wait behind a dial is the peer's."""

    async def main() -> None:
        pool = new_pool(max_connections, is_shared=is_shared)
        assert await pool.acquire() is None
        assert not pool.is_full
        pool.add_dialed(H1Connection("up", FakeTransport(), pool, 4096, asyncio.get_running_loop()))
        assert pool.is_full is is_full

    asyncio.run(main())
