"""What a real Redis reports of its memory."""

import asyncio
from collections.abc import Iterator

import pytest

from stayfast.stores.redis_memory import MemoryInfo, read_memory_info
from tests.services.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.sockets


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


def read(url: str) -> MemoryInfo | None:
    return asyncio.run(read_memory_info(url))


def test_redis_memory_without_a_limit_is_unlimited(server: RedisServer) -> None:
    found = read(server.url)
    assert found is not None
    assert (found.n_evicted, found.eviction_policy, found.max_bytes) == (0, "noeviction", 0)
    assert found.used_bytes > 100_000


def test_redis_memory_full_server_counts_evictions(server: RedisServer) -> None:
    server.say(b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-random")
    server.say(b"CONFIG", b"SET", b"maxmemory", b"3mb")
    for number in range(400):
        server.say(b"SET", b"k%d" % number, b"x" * 20_000)
    found = read(server.url)
    assert found is not None
    assert found.n_evicted > 100
    assert (found.eviction_policy, found.max_bytes) == ("allkeys-random", 3 << 20)


def test_redis_memory_dead_server_is_unknown(server: RedisServer) -> None:
    server.kill()
    assert read(server.url) is None
