"""The tests of journals for every store backend. A subclass makes the backend."""

import asyncio
from collections.abc import Awaitable, Callable

from stayfast.stores.base import StoreBackend

Story = Callable[[StoreBackend, StoreBackend], Awaitable[None]]


class JournalSuite:
    """The promises of `tell` and `told`."""

    slack = 0  # records that are kept beyond the most

    def door(self) -> StoreBackend:
        """One more to the same place, as another process has it."""
        raise NotImplementedError

    def tell_it(self, story: Story) -> None:
        """What happens to two processes."""
        async def whole() -> None:
            one, other = self.door(), self.door()
            try:
                await story(one, other)
            finally:
                await one.close()
                await other.close()

        asyncio.run(whole())

    def test_backend_log_records_are_read_by_other_process_in_order(self) -> None:
        """All of it, in its order, any bytes, and only what comes after the place that is named."""
        records = [b"", b"\x00\xff\r\n", b"one", "\u00fc".encode(), b"x" * 100_000]

        async def story(one: StoreBackend, other: StoreBackend) -> None:
            assert await other.read_log("abc", "", 10) == []
            await one.append_log("abc", records[:2], 100)
            await one.append_log("abc", records[2:], 100)
            found = await other.read_log("abc", "", 10)
            assert [record for _, record in found] == records
            assert len({place for place, _ in found}) == len(records)
            assert await one.read_log("abc", found[1][0], 2) == found[2:4]
            assert await other.read_log("abc", found[-1][0], 10) == []
            await other.append_log("abc", [b"later"], 100)
            assert [record for _, record in await one.read_log("abc", found[-1][0], 10)] == [b"later"]

        self.tell_it(story)

    def test_backend_log_names_do_not_mix(self) -> None:
        """A record is told under its own."""
        async def story(one: StoreBackend, other: StoreBackend) -> None:
            await one.append_log("abc", [b"a"], 100)
            await one.append_log("abd", [b"b"], 100)
            assert [record for _, record in await other.read_log("abc", "", 10)] == [b"a"]
            assert [record for _, record in await other.read_log("abd", "", 10)] == [b"b"]

        self.tell_it(story)

    def test_backend_log_drops_oldest_records(self) -> None:
        """About the last `most` are kept, of one name, and the newest is among them."""
        async def story(one: StoreBackend, other: StoreBackend) -> None:
            await one.append_log("abd", [b"other"], 20)
            for n in range(0, 1000, 50):
                await one.append_log("abc", [b"%d" % number for number in range(n, n + 50)], 20)
            kept = [record for _, record in await other.read_log("abc", "", 2000)]
            assert 20 <= len(kept) <= 20 + self.slack
            assert kept == [b"%d" % number for number in range(1000 - len(kept), 1000)]
            assert [record for _, record in await other.read_log("abd", "", 10)] == [b"other"]

        self.tell_it(story)
