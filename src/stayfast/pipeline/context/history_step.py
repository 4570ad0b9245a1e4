"""Sends a summary in place of the older turns of a long conversation.

No request waits for a summary: until there is one, the turns are sent as they are, and beyond the allowance the oldest are
left out (`policy.context.history`). In the middle of a turn, between a tool call and its result, a conversation keeps the
summary with which the turn began, so that the beginning of the prompt changes only between turns.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.types import JUDGE, SUMMARY, VERIFY, Api, Request
from stayfast.pipeline.context.history_jobs import HistoryState, SummaryJob, SummaryMaker
from stayfast.pipeline.context.history_records import LinkedTurns, StoredSummary, link_turns, read_summary
from stayfast.pipeline.context.history_summarizer import find_verbatim
from stayfast.pipeline.context.step import ContextFacts
from stayfast.pipeline.context.token_counter import TokenCounter
from stayfast.policy.context.history import (
    HistoryConfig,
    HistoryPlan,
    KnownSummary,
    SentHistory,
    plan_history,
    share_tokens,
)
from stayfast.policy.context.token_estimate import has_media, weigh_media
from stayfast.stores.base import Store
from stayfast.stores.memory import MemoryStore
from stayfast.wire.context.summary import render_summary
from stayfast.wire.context.turns import Turns, split_turns

APIS: Final = frozenset((Api.CHAT, Api.MESSAGES, Api.RESPONSES))
MAX_LOOKUPS: Final = 64  # of one request, in one round trip to a shared store
_LEAST_BYTES_A_TOKEN: Final = 2
_NOT_SHORTENED: Final = frozenset((JUDGE, VERIFY, SUMMARY))


class HistoryStep:
    """The history of one route's conversations. Belongs to one loop."""

    __slots__ = ("_clock", "_counter", "_maker", "_patterns", "config", "state", "store")

    def __init__(self, config: HistoryConfig, store: Store, counter: TokenCounter, maker: SummaryMaker | None,
                 state: HistoryState, *, clock: Clock) -> None:
        """maker: None: turns are only left out."""
        self.config = config
        self.store = store
        self.state = state
        self._counter = counter
        self._maker = maker
        self._clock = clock
        self._patterns = tuple(re.compile(pin) for pin in config.pins)
        state.pins.clear()  # found by the patterns of earlier settings

    async def apply(self, request: Request, facts: ContextFacts) -> Request:
        conversation = self._read_long_conversation(request, facts)
        if conversation is None:
            return request
        found = await self._find_summary(conversation, facts.deadline.at)
        known = KnownSummary(found.after, found.n_tokens) if found is not None else None
        plan = plan_history(conversation.sizes, self.config, known, tried=self.state.list_tried(conversation),
                            before=self.state.find_used(conversation))
        if plan.start is not None and self._maker is not None:
            self._maker.start(SummaryJob(conversation, plan.start, found))
        self.state.used.set(conversation.links[-2], SentHistory(plan.n_summarized, plan.cut))
        return self._rewrite(request, conversation, plan, found, facts)

    def _read_long_conversation(self, request: Request, facts: ContextFacts) -> LinkedTurns | None:
        """None: it is short, its form is unknown, or the gateway itself has made the request."""
        start_tokens = self.config.start_tokens
        if (len(request.body) < start_tokens * _LEAST_BYTES_A_TOKEN or request.api not in APIS
                or facts.role in _NOT_SHORTENED):
            return None
        turns = split_turns(request)
        if turns is None:
            return None
        n_tokens = self._counter.count(request).n_tokens
        sizes = _share_tokens(n_tokens, request.body, turns)
        if sum(sizes) <= start_tokens:
            return None
        links = link_turns(turns.turns, facts.route, facts.tenant)
        return LinkedTurns(turns, sizes, links, facts.route, facts.tenant, facts.session)

    async def _find_summary(self, conversation: LinkedTurns, until: float) -> StoredSummary | None:
        """The summary to send: the one with which the turn began; else the newest one."""
        if self._maker is None:
            return None
        links, sizes = conversation.links, conversation.sizes
        if _is_inside_turn(conversation.turns) and (used := self.state.used.get(links[-2])) is not None:
            return await self._read(conversation, used.n_summarized, until) if used.n_summarized else None
        last = len(sizes) - self.config.raw_turns
        if isinstance(self.store, MemoryStore):
            return self._find_newest_in_memory(self.store, conversation, last)
        used = self.state.used.get(links[-3]) if len(links) > 2 else None
        current = await self._read(conversation, used.n_summarized, until) if used and used.n_summarized else None
        if current is not None and current.n_tokens + sum(sizes[current.after:]) <= self.config.start_tokens:
            return current
        return await self._find_newest(conversation, current, last, until)

    def _find_newest_in_memory(self, store: MemoryStore, conversation: LinkedTurns, last: int) -> StoredSummary | None:
        now = self._clock.wall()
        for after in range(last, 0, -1):
            stored = read_summary(store.get_sync(conversation.links[after]), after, now)
            if stored is not None:
                return stored
        return None

    async def _find_newest(self, conversation: LinkedTurns, current: StoredSummary | None, last: int, until: float
                           ) -> StoredSummary | None:
        """The newest one in a shared store, which another process may have made. All look-ups are one round trip."""
        least = max(last - MAX_LOOKUPS, current.after if current is not None else 0)
        found = await asyncio.gather(*(self._read(conversation, after, until) for after in range(last, least, -1)))
        return next((stored for stored in found if stored is not None), current)

    async def _read(self, conversation: LinkedTurns, after: int, until: float) -> StoredSummary | None:
        return read_summary(await self.store.get(conversation.links[after], until), after, self._clock.wall())

    def _rewrite(self, request: Request, conversation: LinkedTurns, plan: HistoryPlan, found: StoredSummary | None,
                 facts: ContextFacts) -> Request:
        turns, counts = conversation.turns, self.state
        text = render_summary(found.summary) if found is not None else ""
        pins = self._find_pins(conversation, plan) if plan.n_dropped else ()
        body = request.body
        if plan.cut:
            body = turns.replace(0, plan.cut, text, pins) if text or pins else turns.drop(0, plan.cut)
        if len(body) >= len(request.body):
            counts.requests["raw"] += 1
            return request
        n_before, n_after = sum(conversation.sizes), plan.n_tokens + sum(map(self._counter.count_text, pins))
        counts.n_saved_tokens += max(0, n_before - n_after)
        counts.requests["trimmed" if plan.n_dropped else "summarized"] += 1
        parts = [f"{plan.n_summarized} turns as a summary of {found.n_tokens} tokens"] if found is not None else []
        if plan.n_dropped:
            facts.degrade("trimmed")
            parts.append(f"{plan.n_dropped} turns left out, {len(pins)} clauses of them pinned")
        facts.note(f"history: {', '.join(parts)}, {n_before} -> {n_after} tokens (conversation {conversation.id})")
        return msgspec.structs.replace(request, body=body)

    def _find_pins(self, conversation: LinkedTurns, plan: HistoryPlan) -> tuple[str, ...]:
        """The clauses of the turns left out that are sent verbatim; the newest, as far as a summary may be long."""
        key = conversation.links[plan.n_summarized] + conversation.links[plan.cut]
        pins = self.state.pins.get(key)
        if pins is None:
            room, found = self.config.summary_tokens, list[str]()
            for pin in reversed(find_verbatim(conversation.turns.texts_of(plan.n_summarized, plan.cut), self._patterns)):
                room -= self._counter.count_text(pin) + 1
                if room < 0:
                    break
                found.append(pin)
            pins = tuple(reversed(found))
            self.state.pins.set(key, pins)
        return pins

    def __repr__(self) -> str:
        return f"<HistoryStep {self.config.mode}: {len(self.state.jobs)} summaries in the making>"


def _share_tokens(n_tokens: int, body: bytes, turns: Turns) -> Sequence[int]:
    """The tokens of each turn, of those of the whole body."""
    n_bytes = [turn.n_bytes for turn in turns.turns]
    if not has_media(body):
        return share_tokens(n_tokens, len(body), n_bytes)
    weights = [weigh_media(turn.data) for turn in turns.turns]
    return share_tokens(n_tokens, len(body) - sum(n_bytes) + sum(weights), weights)


def _is_inside_turn(turns: Turns) -> bool:
    """Whether the newest turn has an answer or a tool's result already."""
    return any(text.role in ("assistant", "tool") for text in turns.turns[-1].texts)
