"""pipeline/routing/engine_caches: what engines hold of a request, once its prompt was tokenized."""

import asyncio
from collections.abc import Sequence

import msgspec

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.kv_events import BlocksRemoved, BlocksStored, KvBatch
from stayfast.core.types import Api, Request
from stayfast.pipeline.routing.engine_caches import MAX_WAITING, EngineCache, EngineCaches
from stayfast.policy.routing.block_index import BlockIndex
from stayfast.testing import SimLoop, run
from stayfast.wire.request_body import decode

SIZE = 16


class Tokenizer:
    """Four bytes of the body's text a token. fails: it has no answer."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.n_calls = 0

    async def tokenize(self, request: Request) -> Sequence[int]:
        self.n_calls += 1
        await asyncio.sleep(0.01)
        return [] if self.fails else ids_of(request)

    def model_of(self, requested: str) -> str:
        return requested


def ids_of(request: Request) -> list[int]:
    text = "".join(message["content"] for message in msgspec.json.decode(request.body)["messages"])
    return [int.from_bytes(text[at:at + 4].encode(), "big") for at in range(0, len(text), 4)]


def ask(text: str) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return decode(Api.CHAT, msgspec.json.encode(body))


def stored(ids: Sequence[int], lora: str = "") -> KvBatch:
    """All whole blocks of a prompt; the hash of a block is the number of its first token."""
    n = len(ids) // SIZE
    return KvBatch(0, 0.0, (BlocksStored(tuple(range(n)), None, tuple(ids[:n * SIZE]), SIZE, lora, "GPU"),))


def caches_of(*tokenizers: Tokenizer) -> EngineCaches:
    """Upstreams a, b, ... with complete indexes."""
    found = {}
    for name, tokenizer in zip("abc", tokenizers, strict=False):
        found[name] = EngineCache(BlockIndex(), tokenizer)
        found[name].held.begin(is_complete=True)
    return EngineCaches(found)


async def learn(caches: EngineCaches, *requests: Request) -> None:
    """Let the background task learn these prompts."""
    for request in requests:
        caches.cached_tokens(request, list(caches.caches), 0.0)
    task = asyncio.create_task(caches.run())
    await asyncio.sleep(10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_cached_tokens_follow_the_events_once_the_prompt_is_learned() -> None:
    async def main(loop: SimLoop) -> None:
        caches, request = caches_of(Tokenizer(), Tokenizer()), ask("many words " * 1000)
        assert caches.cached_tokens(request, ["a", "b", "other"], 0.0) == [None, None, None]
        await learn(caches, request)
        ids = ids_of(request)
        caches.caches["a"].held.apply(stored(ids))
        caches.caches["b"].held.apply(stored(ids[:len(ids) // 2]))
        whole, half, other = caches.cached_tokens(request, ["a", "b", "other"], 0.0)
        assert whole is not None
        assert half is not None
        assert other is None
        assert abs(whole - len(request.body) / BYTES_A_TOKEN) < 300  # to one text block
        assert abs(half / whole - 0.5) < 0.02
        caches.caches["a"].held.apply(KvBatch(1, 0.0, (BlocksRemoved(tuple(range(len(ids))), "GPU"),)))
        assert caches.cached_tokens(request, ["a"], 0.0) == [0.0]

    run(main)


def test_cached_tokens_longer_prompt_has_its_known_beginning() -> None:
    async def main(loop: SimLoop) -> None:
        caches, request = caches_of(Tokenizer()), ask("many words " * 1000)
        await learn(caches, request)
        caches.caches["a"].held.apply(stored(ids_of(request)))
        known = caches.cached_tokens(request, ["a"], 0.0)
        assert caches.cached_tokens(ask("many words " * 1000 + "and more " * 500), ["a"], 0.0) == known

    run(main)


def test_cached_tokens_short_prompt_and_unread_upstreams_are_unknown_and_cost_no_call() -> None:
    async def main(loop: SimLoop) -> None:
        tokenizer = Tokenizer()
        caches = caches_of(tokenizer)
        assert caches.cached_tokens(ask("short"), ["a"], 0.0) == [None]
        assert caches.cached_tokens(ask("many words " * 1000), ["other"], 0.0) == [None]
        await learn(caches)
        assert tokenizer.n_calls == 0

    run(main)


def test_learn_same_prompt_is_tokenized_once_and_engines_take_turns() -> None:
    async def main(loop: SimLoop) -> None:
        tokenizers = Tokenizer(), Tokenizer()
        caches = caches_of(*tokenizers)
        requests = [ask(f"{number} many words " * 200) for number in range(4)]
        await learn(caches, *requests, *requests)
        await learn(caches, *requests)
        assert [tokenizer.n_calls for tokenizer in tokenizers] == [2, 2]
        assert caches.tokenized == {"learned": 4, "failed": 0, "skipped": 0}

    run(main)


def test_learn_engine_without_answer_the_next_is_called() -> None:
    async def main(loop: SimLoop) -> None:
        caches = caches_of(Tokenizer(fails=True), Tokenizer())
        await learn(caches, *(ask(f"{number} many words " * 200) for number in range(4)))
        assert caches.tokenized["learned"] == 4
        lonely = caches_of(Tokenizer(fails=True))
        await learn(lonely, ask("many words " * 200))
        assert lonely.tokenized == {"learned": 0, "failed": 1, "skipped": 0}
        assert lonely.cached_tokens(ask("many words " * 200), ["a"], 0.0) == [None]

    run(main)


def test_learn_beyond_the_bound_prompts_are_skipped() -> None:
    async def main(loop: SimLoop) -> None:
        caches = caches_of(Tokenizer())
        await learn(caches, *(ask(f"{number} many words " * 200) for number in range(MAX_WAITING + 10)))
        assert caches.tokenized == {"learned": MAX_WAITING, "failed": 0, "skipped": 10}

    run(main)


def test_cached_tokens_of_an_adapter_are_those_of_its_own_blocks() -> None:
    async def main(loop: SimLoop) -> None:
        caches, request = caches_of(Tokenizer(), Tokenizer()), ask("many words " * 1000)
        await learn(caches, request)
        caches.caches["a"].held.apply(stored(ids_of(request), lora="m"))  # the client's model is the adapter
        caches.caches["b"].held.apply(stored(ids_of(request), lora="other"))
        one, other = caches.cached_tokens(request, ["a", "b"], 0.0)
        assert one is not None
        assert one > 2000
        assert other == 0.0

    run(main)


def test_learn_ids_that_are_none_count_as_no_answer() -> None:
    class Odd(Tokenizer):
        async def tokenize(self, request: Request) -> Sequence[int]:
            return [1 << 40, -1]

    async def main(loop: SimLoop) -> None:
        caches = caches_of(Odd())
        await learn(caches, ask("many words " * 200), ask("other words " * 200))
        assert caches.tokenized["failed"] == 2

    run(main)


def test_learn_goes_on_when_a_reload_removes_the_upstream_that_comes_next() -> None:
    async def main(loop: SimLoop) -> None:
        caches, other = caches_of(Tokenizer(fails=True), Tokenizer(fails=True)), caches_of(Tokenizer())
        first, second = ask("many words " * 1000), ask("other words " * 1000)
        caches.cached_tokens(first, ["a", "b"], 0.0)
        task = asyncio.create_task(caches.run())
        await asyncio.sleep(0.005)  # one of them tokenizes
        caches.caches = {"c": other.caches["a"]}
        await asyncio.sleep(1)
        caches.cached_tokens(second, ["c"], 0.0)
        await asyncio.sleep(1)
        assert caches.tokenized == {"learned": 1, "failed": 1, "skipped": 0}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main)
