"""A stage before the call that takes its time."""

import asyncio
from dataclasses import replace
from typing import cast

from stayfast.core.types import Stage
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.gateway import Gateway
from stayfast.pipeline.plan import Admitted
from stayfast.pipeline.stages.cache.lookup import Cache


class SlowStage:
    """A stage before the call that takes its time: admit and cache in one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_cancelled = False
        self.n_given_back = 0

    async def _wait(self) -> None:
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise

    async def admit(self, ex: Exchange) -> Admitted:
        await self._wait()
        return Admitted(self.give_back)

    def give_back(self) -> None:
        """Called when the place is free again."""
        self.n_given_back += 1

    async def lookup(self, ex: Exchange) -> None:
        await self._wait()


def replace_stage(gateway: Gateway, stage: Stage, slow: SlowStage) -> Gateway:
    """The gateway with one stage replaced; the cache is looked up on routes that have one."""
    return replace(gateway, admit=slow) if stage is Stage.ADMIT else replace(gateway, cache=cast("Cache", slow))
