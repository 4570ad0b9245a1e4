"""Requests the prefixes of prompts again, shortly before their provider's cache drops them.

`policy/prompt_cache/learned.py` selects the prefixes.
"""

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.errors import StayfastError
from stayfast.core.events import Sink
from stayfast.core.types import Api, Outcome, Request
from stayfast.pipeline.attempts.attempt import Attempt, AttemptTerms
from stayfast.pipeline.prompt_cache.planner import PromptCachePlanner
from stayfast.policy.prompt_cache.learned import HotPrefixes, PrefixRefresh
from stayfast.upstreams.base import Call
from stayfast.upstreams.state.upstream_state import UpstreamState

WARM_ROUTE: Final = "(warm)"
CHECK_EVERY_S: Final = 15.0
AT_A_TIME: Final = 8  # of a hundred prefixes that expire together, the last is still requested in time
TIMEOUT_S: Final = 20.0
CONNECT_S: Final = 5.0


class PrefixRefresher:
    """Refreshes prefixes for all routes with a budget for it."""

    def __init__(self, routes: Sequence[PromptCachePlanner], members: Mapping[str, UpstreamState], clock: Clock,
                 sink: Sink) -> None:
        self._routes = routes
        self._members = members
        self._clock = clock
        self._sink = sink

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_A_TIME):
                    group.create_task(self._refresh_due_prefixes())

    async def _refresh_due_prefixes(self) -> None:
        """Refresh due prefixes until none is left; AT_A_TIME tasks run this together."""
        for route in self._routes:
            while route.hot is not None and (due := route.hot.take_due(self._clock.now())) is not None:
                await self._refresh_prefix(route, route.hot, *due)

    async def _refresh_prefix(self, route: PromptCachePlanner, hot: HotPrefixes, key: Hashable,
                              opening: PrefixRefresh) -> None:
        """Request one prefix. No client waits for it, and its outcome counts neither for breakers nor for limits."""
        member, now = self._members.get(opening.upstream), self._clock.now()
        if member is None or not member.has_room or not member.is_healthy(now, opening.model):
            return
        request = Request(Api.MESSAGES, opening.model, False, opening.body, max_output_tokens=0)
        deadline = Deadline(now + TIMEOUT_S)
        call = Call(request, opening.model, "req_warm", deadline, CONNECT_S)
        attempt = Attempt(member, call, AttemptTerms(WARM_ROUTE, is_incremental=False), self._clock, self._sink)
        try:
            async with asyncio.timeout_at(deadline.at):
                attempt.stream = await member.upstream.open(call)
                while await attempt.stream.next() is not None:
                    pass
            hot.record_refresh(key)
            route.note_refresh(opening, attempt.stream.summary.usage)
        except (StayfastError, TimeoutError):
            route.note_refresh(opening, None)
        finally:
            attempt.end(Outcome.IGNORED, is_failure=False)
