"""Notifications within one process."""

import asyncio

from stayfast.stores.jobs.topics import Topics


def test_wait_repeated_after_a_notification_waits_for_the_next_one() -> None:
    async def count_wakes() -> int:
        topics, n_wakes = Topics(), 0

        async def listen() -> None:
            nonlocal n_wakes
            while n_wakes < 1000:  # a wait that returns without suspension would take the loop
                await topics.wait("work", 60.0)
                n_wakes += 1

        listener = asyncio.create_task(listen())
        await asyncio.sleep(0)
        for _ in range(3):
            topics.notify("work")
            for _ in range(5):
                await asyncio.sleep(0)
        listener.cancel()
        return n_wakes

    assert asyncio.run(count_wakes()) == 3


def test_wait_after_a_notification_of_a_moment_ago_returns_at_once() -> None:
    async def wait_thrice() -> None:
        topics = Topics()
        async with asyncio.timeout(10):
            for _ in range(3):
                topics.notify("work")
                await asyncio.gather(topics.wait("work", 60.0), topics.wait("work", 60.0))  # each waiter is a task
                topics.notify("work")
                await topics.wait("work", 60.0)

    asyncio.run(wait_thrice())
