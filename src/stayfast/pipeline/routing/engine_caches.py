"""What engines hold of a prompt, by their KV events: the exact index for routes with prefix affinity.

A request is known by its text, a cache by its tokens. `LearnedPrompts` leads from one to the other: a prompt with new text
is queued, and a background task lets an engine tokenize it, with its chat template. Until then the prompt's known beginning
counts, and a prompt without one is unknown.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.types import Request
from stayfast.policy.routing.affinity import BLOCK_BYTES, hash_blocks
from stayfast.policy.routing.block_index import BlockIndex, chain_root
from stayfast.policy.routing.learned_prompts import LearnedPrompts
from stayfast.wire.prompt import read_prompt

AT_A_TIME: Final = 2  # prompts that engines tokenize for this process
MAX_WAITING: Final = 256  # beyond it the newest is not learned
MAX_WAITING_BYTES: Final = 16 << 20
MAX_BODY_BYTES: Final = 1 << 20
MAX_TOKEN_ID: Final = (1 << 31) - 1  # another engine's answer than a tokenizer's must not end the learning


class PromptTokenizer(Protocol):
    """An engine that tokenizes a request as it would to answer it."""

    async def tokenize(self, request: Request) -> Sequence[int]:
        """The token ids of its prompt; empty: the engine gave none. Raises nothing."""

    def model_of(self, requested: str) -> str:
        """The model's name there. requested: as the client names it."""


class EngineCache(NamedTuple):
    """One upstream whose events are read."""

    held: BlockIndex
    tokenizer: PromptTokenizer


class _Unlearned(NamedTuple):
    request: Request
    blocks: list[int]
    n_bytes: int
    upstreams: tuple[str, ...]


class EngineCaches:
    """Of all routes. Belongs to one loop. `run` learns; without it no new prompt is known."""

    __slots__ = ("_learned", "_n_bytes", "_pending", "_turn", "_waiting", "_wake", "caches", "tokenized")

    def __init__(self, caches: Mapping[str, EngineCache]) -> None:
        """caches: by upstream; another mapping after a reload."""
        self.caches = caches
        self._learned = LearnedPrompts()
        self._waiting: deque[_Unlearned] = deque()
        self._pending: set[int] = set()  # last text blocks of prompts that wait
        self._n_bytes = 0
        self._turn = 0
        self._wake = asyncio.Event()
        self.tokenized: dict[str, int] = {"learned": 0, "failed": 0, "skipped": 0}

    def cached_tokens(self, request: Request, upstreams: Sequence[str], now: float) -> Sequence[float | None]:
        """In tokens of BYTES_A_TOKEN bytes, as the selector counts prompts. Of a prompt with a known beginning, at most that
        beginning.
        """
        caches = self.caches
        if caches.keys().isdisjoint(upstreams):
            return [None] * len(upstreams)
        prompt = read_prompt(request.body).prompt
        blocks = hash_blocks(prompt, request.model)
        known = self._learned.find(blocks)
        if blocks and (known is None or known.n_blocks < len(blocks)):
            self._queue(_Unlearned(request, blocks, len(prompt), tuple(upstreams)))
        if known is None:
            return [None] * len(upstreams)
        found, n_known = list[float | None](), known.n_blocks * BLOCK_BYTES / BYTES_A_TOKEN
        for name in upstreams:
            cache = caches.get(name)
            size = cache.held.block_size if cache is not None else 0
            if cache is None or not size:
                found.append(0.0 if cache is not None and cache.held.is_known and cache.held.is_complete else None)
                continue
            model = cache.tokenizer.model_of(request.model)
            chain = known.prompt.chain(size, chain_root(model if model in cache.held.loras else ""))
            n_held = cache.held.n_held(chain[:known.n_tokens // size])
            share = min(1.0, n_held * size / max(1, known.n_tokens)) if n_held is not None else None
            found.append(share * n_known if share is not None else None)
        return found

    def _queue(self, prompt: _Unlearned) -> None:
        key, n_bytes = prompt.blocks[-1], len(prompt.request.body)
        if key in self._pending:
            return
        if n_bytes > MAX_BODY_BYTES or len(self._waiting) >= MAX_WAITING or self._n_bytes + n_bytes > MAX_WAITING_BYTES:
            self.tokenized["skipped"] += 1
            return
        self._waiting.append(prompt)
        self._pending.add(key)
        self._n_bytes += n_bytes
        self._wake.set()

    async def run(self) -> None:
        """Learn until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_A_TIME):
                group.create_task(self._learn_forever())

    async def _learn_forever(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            prompt = self._waiting.popleft()
            self._n_bytes -= len(prompt.request.body)
            try:
                await self._learn(prompt)
            finally:
                self._pending.discard(prompt.blocks[-1])

    async def _learn(self, prompt: _Unlearned) -> None:
        """Let the engines take turns; the next one, where one has no answer."""
        caches = [self.caches[name] for name in prompt.upstreams if name in self.caches]  # a reload may change them
        self._turn = turn = self._turn + 1
        for at in range(min(2, len(caches))):
            token_ids = await caches[(turn + at) % len(caches)].tokenizer.tokenize(prompt.request)
            if token_ids and min(token_ids) >= 0 and max(token_ids) <= MAX_TOKEN_ID:
                self._learned.learn(prompt.blocks, prompt.n_bytes, token_ids, BLOCK_BYTES)
                self.tokenized["learned"] += 1
                return
        self.tokenized["failed"] += 1

    def __repr__(self) -> str:
        return f"<EngineCaches {', '.join(self.caches)}: {len(self._learned)} prompts>"
