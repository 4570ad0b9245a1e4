"""Reading KV events from real ZMQ sockets: replay, gaps, restarts, and publishers that are not there."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from stayfast.core.clock import SystemClock
from stayfast.policy.routing.block_index import BlockIndex, chain_root, hash_tokens
from stayfast.policy.routing.kv_event_order import KvEventOrder
from stayfast.upstreams.kv_event_reader import KvEventReader, KvEventsConfig, NoZmq, load_zmq
from stayfast.wire.kv_events import MAX_PAYLOAD_BYTES
from tests.kv_recording import removed, stored
from tests.ports import free_port
from tests.server.kv_publisher import KvPublisher

pytestmark = pytest.mark.sockets


def run(main: Callable[[], Any]) -> None:
    """On the loop of production."""
    uvloop.run(main())


@asynccontextmanager
async def reading(endpoint: str, replay: str = "", topic: str = "") -> AsyncIterator[KvEventReader]:
    reader = KvEventReader(KvEventsConfig(endpoint, replay, topic), KvEventOrder(BlockIndex()), SystemClock(), load_zmq("a"))
    task = asyncio.create_task(reader.run())
    try:
        yield reader
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def held(reader: KvEventReader, *tokens: int) -> int | None:
    return reader.order.index.n_held(hash_tokens(tokens, 2, chain_root()))


def publisher(**options: Any) -> KvPublisher:
    return KvPublisher(free_port(), free_port(), **options)


@pytest.mark.parametrize("has_topic", [True, False])
def test_reader_events_before_the_connection_are_replayed(*, has_topic: bool) -> None:
    async def main() -> None:
        with publisher(has_topic=has_topic) as engine:
            engine.publish(stored([1, 2], [1, 2, 3, 4]))
            async with reading(engine.endpoint, engine.replay) as reader:
                await wait_until(lambda: held(reader, 1, 2, 3, 4) == 2)
                assert reader.order.index.is_complete
                engine.publish(stored([3], [5, 6], 2), removed(1))
                await wait_until(lambda: reader.order.n_events == 3)
                assert held(reader, 7, 8) == 0

    run(main)


def test_reader_batch_of_ten_thousand_blocks_is_whole_and_leaves_the_loop_to_others() -> None:
    n = 10_000

    async def main() -> None:
        with publisher() as engine:
            async with reading(engine.endpoint, engine.replay) as reader:
                await wait_until(lambda: held(reader, 1, 2) == 0)
                engine.publish(stored(list(range(n)), list(range(2 * n))))
                seen = set[int]()
                while len(reader.order.index) < n:
                    seen.add(len(reader.order.index))
                    await asyncio.sleep(0)
                assert len(seen) > 2  # others run between its pieces
                assert held(reader, *range(2 * n)) == n

    run(main)


def test_reader_message_over_the_limit_is_not_held_in_memory() -> None:
    async def main() -> None:
        with publisher() as engine:
            async with reading(engine.endpoint) as reader:
                await wait_until(lambda: reader.is_connected)
                n_largest = MAX_PAYLOAD_BYTES + 1
                engine.publish(["x" * n_largest])
                await wait_until(lambda: not reader.is_connected)
                assert reader.order.n_malformed == 0  # it was not received at all
                await wait_until(lambda: reader.is_connected)
                engine.publish(stored([1], [1, 2]))
                await wait_until(lambda: held(reader, 1, 2) == 1)

    run(main)


def test_reader_idle_engine_is_known_to_be_empty() -> None:
    async def main() -> None:
        with publisher() as engine:
            async with reading(engine.endpoint, engine.replay) as reader:
                await wait_until(lambda: held(reader, 1, 2) == 0)

    run(main)


def test_reader_gap_is_filled_by_a_replay() -> None:
    async def main() -> None:
        with publisher() as engine:
            async with reading(engine.endpoint, engine.replay) as reader:
                await wait_until(lambda: reader.order.index.is_known)
                engine.publish(stored([1], [1, 2]), is_lost=True)
                engine.publish(stored([2], [3, 4]))
                await wait_until(lambda: held(reader, 3, 4) == 1)
                assert (held(reader, 1, 2), reader.order.n_filled, reader.order.n_gaps) == (1, 1, 0)

    run(main)


def test_reader_gap_beyond_the_replay_makes_the_rest_unknown() -> None:
    async def main() -> None:
        with publisher(buffer=2) as engine:
            async with reading(engine.endpoint, engine.replay) as reader:
                await wait_until(lambda: reader.order.index.is_known)
                engine.publish(stored([9], [9, 9]))
                await wait_until(lambda: held(reader, 9, 9) == 1)
                for number in range(5):
                    engine.publish(stored([number], [number, 0]), is_lost=True)
                engine.publish(stored([7], [7, 7]))
                await wait_until(lambda: held(reader, 7, 7) == 1)
                assert (held(reader, 9, 9), held(reader, 4, 0), reader.order.n_gaps) == (None, 1, 1)

    run(main)


def test_reader_gap_without_replay_endpoint_makes_the_rest_unknown() -> None:
    async def main() -> None:
        with publisher() as engine:
            async with reading(engine.endpoint) as reader:
                await wait_until(lambda: reader.order.index.is_known)
                engine.publish(stored([1], [1, 2]))
                await wait_until(lambda: held(reader, 1, 2) == 1)
                engine.publish(stored([2], [3, 4]), is_lost=True)
                engine.publish(stored([3], [5, 6]))
                await wait_until(lambda: held(reader, 5, 6) == 1)
                assert (held(reader, 1, 2), engine.n_replays) == (None, 0)

    run(main)


def test_reader_engine_that_restarts_is_unknown_then_new() -> None:
    async def main() -> None:
        port, replay_port = free_port(), free_port()
        with KvPublisher(port, replay_port) as engine:
            engine.publish(stored([1], [1, 2]))
            engine.publish(stored([2], [3, 4]))
            task = reading(engine.endpoint, engine.replay)
            reader = await task.__aenter__()
            await wait_until(lambda: held(reader, 1, 2) == 1)
        await wait_until(lambda: held(reader, 1, 2) is None and not reader.is_connected)
        with KvPublisher(port, replay_port) as engine:
            engine.publish(stored([5], [5, 6]), ts=100.0)
            await wait_until(lambda: held(reader, 5, 6) == 1)
            assert (held(reader, 1, 2), reader.order.index.is_complete) == (0, True)
            await task.__aexit__(None, None, None)

    run(main)


def test_reader_topic_and_junk_are_passed_over() -> None:
    async def main() -> None:
        with publisher() as engine:
            async with reading(engine.endpoint, engine.replay, topic="kv-events") as reader:
                await wait_until(lambda: reader.order.index.is_known)
                engine.send_raw([b"other", b"x", b"y"])
                engine.send_raw([b"kv-events", b"x", b"y"])
                engine.publish(stored([1], [1, 2]))
                await wait_until(lambda: held(reader, 1, 2) == 1)
                assert reader.order.n_malformed == 1

    run(main)


def test_reader_without_a_publisher_waits_until_there_is_one() -> None:
    async def main() -> None:
        port, replay_port = free_port(), free_port()
        async with reading(f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{replay_port}") as reader:
            await asyncio.sleep(0.05)
            assert (reader.is_connected, held(reader, 1, 2)) == (False, None)
            with KvPublisher(port, replay_port) as engine:
                engine.publish(stored([1], [1, 2]))
                await wait_until(lambda: held(reader, 1, 2) == 1)

    run(main)


def test_load_zmq_without_the_package_names_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("stayfast.upstreams.kv_event_reader.import_module", fail)
    with pytest.raises(NoZmq, match=r"upstreams\.near\.kv_events needs the package pyzmq.*pip install '\.\[kv-events\]'"):
        load_zmq("near")


@pytest.mark.parametrize(("field", "value"), [("endpoint", "tcp://*:5557"), ("endpoint", "http://a:1"), ("replay", "a:1"),
                                              ("topic", "a b")])
def test_config_wrong_value_names_the_field(field: str, value: str) -> None:
    with pytest.raises(ValueError, match=field):
        KvEventsConfig(**{"endpoint": "tcp://a:5557", field: value})
