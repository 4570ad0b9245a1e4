"""policy/routing/block_index: what an engine holds, against a model of one and a recording of a real one."""

from random import Random
from time import process_time

from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.kv_events import AllCleared, BlocksRemoved, BlocksStored, KvBatch, KvEvent
from stayfast.policy.routing.block_index import BlockIndex, chain_root, hash_tokens
from stayfast.wire.kv_events import decode_message
from tests.kv_recording import read_recording, recorded_steps

SIZE = 4


def batch(*events: KvEvent, rank: int = 0) -> KvBatch:
    return KvBatch(0, 0.0, events, rank)


def stored(hashes: tuple[int, ...], tokens: list[int], parent: int | None = None, *, lora: str = "", medium: str = "GPU",
           group: int = 0) -> BlocksStored:
    return BlocksStored(hashes, parent, tuple(tokens), SIZE, lora, medium, group)


def complete_index(max_blocks: int = 1000) -> BlockIndex:
    index = BlockIndex(max_blocks)
    index.begin(is_complete=True)
    return index


class EngineModel:
    """A prefix cache: the tokens of each cached block, with all before it; the longest unused end leaves first."""

    def __init__(self, n_blocks: int, rng: Random) -> None:
        self.n_blocks = n_blocks
        self.rng = rng
        self.cached: dict[tuple[int, ...], int] = {}  # the whole prefix by its hash, least recently used first

    def compute(self, tokens: list[int]) -> list[KvEvent]:
        """Serve a prompt; returns its events."""
        prefixes = [tuple(tokens[:end]) for end in range(SIZE, len(tokens) + 1, SIZE)][:self.n_blocks]
        events: list[KvEvent] = []
        n_new = sum(prefix not in self.cached for prefix in prefixes)
        for prefix in reversed(prefixes):  # used now
            if prefix in self.cached:
                self.cached[prefix] = self.cached.pop(prefix)
        while len(self.cached) + n_new > self.n_blocks:
            oldest = next(iter(self.cached))
            events.append(BlocksRemoved((self.cached.pop(oldest),), "GPU"))
        for prefix in prefixes:
            if prefix not in self.cached:
                self.cached[prefix] = self.rng.getrandbits(64)
                events.append(stored((self.cached[prefix],), list(prefix[-SIZE:]),
                                     self.cached[prefix[:-SIZE]] if len(prefix) > SIZE else None))
        for prefix in reversed(prefixes):
            self.cached[prefix] = self.cached.pop(prefix)
        return events

    def n_held(self, tokens: list[int]) -> int:
        n = 0
        while (n + 1) * SIZE <= len(tokens) and tuple(tokens[:(n + 1) * SIZE]) in self.cached:
            n += 1
        return n


@settings(max_examples=200)
@given(st.integers(0, 10**6), st.integers(3, 30), st.integers(1, 40))
def test_index_follows_a_model_of_an_engine_through_evictions(seed: int, n_blocks: int, n_prompts: int) -> None:
    rng = Random(seed)
    engine, index = EngineModel(n_blocks, rng), complete_index()
    heads = [[rng.randrange(3) for _ in range(SIZE * 3)] for _ in range(3)]
    prompts: list[list[int]] = []
    for _ in range(n_prompts):
        prompts.append([*rng.choice([*heads, *prompts]), *(rng.randrange(3) for _ in range(rng.randrange(12)))])
        index.apply(batch(*engine.compute(prompts[-1])))
        assert len(index) == len(engine.cached)
        for prompt in prompts:
            chain = hash_tokens(prompt, SIZE, chain_root())
            assert (index.n_held(chain) or 0) == (engine.n_held(prompt) if chain else 0)


def test_index_agrees_with_the_usage_of_a_recorded_vllm() -> None:
    """Before each request the index holds as many tokens as the engine then reported from its cache. Only the order to clear
    it is late: vLLM publishes it with the next request's events.
    """
    index, messages, n_taken, differ = complete_index(), read_recording(), 0, []
    steps = [step for step in recorded_steps() if not step.salted]
    for number, step in enumerate(recorded_steps()):
        size = index.block_size or 32
        chain = hash_tokens(step.token_ids, size, chain_root())[:(len(step.token_ids) - 1) // size]  # it computes the last
        if not step.salted and (index.n_held(chain) or 0) * size != step.cached:
            differ.append((number, index.n_held(chain), step.cached))
        for message in messages[n_taken:step.n_frames]:
            taken = decode_message(message)
            assert isinstance(taken, KvBatch)
            index.apply(taken)
        n_taken = step.n_frames
    assert differ == [(12, 19, 0)]
    assert len({step.cached for step in steps}) >= 4  # new, whole, shared beginning, partly evicted
    assert index.n_unlinked > 0  # the salted prompt


def test_index_copies_of_one_block_stay_until_the_last_is_removed() -> None:
    index, chain = complete_index(), hash_tokens([1] * SIZE, SIZE, chain_root())
    index.apply(batch(stored((7,), [1] * SIZE), stored((7,), [1] * SIZE), BlocksRemoved((7,), "GPU")))
    assert index.n_held(chain) == 1
    index.apply(batch(BlocksRemoved((7,), "GPU")))
    assert index.n_held(chain) == 0


def test_index_ranks_media_and_groups_hold_a_block_each() -> None:
    index, chain = complete_index(), hash_tokens([1] * SIZE, SIZE, chain_root())
    index.apply(batch(stored((7,), [1] * SIZE), stored((7,), [1] * SIZE, medium="CPU"), stored((7,), [1] * SIZE, group=2)))
    index.apply(batch(stored((7,), [1] * SIZE), rank=1))
    gpu = BlocksRemoved((7,), "GPU")
    for rank, event in ((0, gpu), (0, BlocksRemoved((7,), "GPU", 2)), (1, gpu)):
        index.apply(batch(event, rank=rank))
        assert index.n_held(chain) == 1
    index.apply(batch(BlocksRemoved((7,), "CPU")))
    assert index.n_held(chain) == 0


def test_index_one_rank_cleared_leaves_the_other() -> None:
    index = complete_index()
    one, other = (hash_tokens([token] * SIZE, SIZE, chain_root()) for token in (1, 2))
    index.apply(batch(stored((7,), [1] * SIZE)))
    index.apply(batch(stored((8,), [2] * SIZE), rank=1))
    index.apply(batch(AllCleared(), rank=1))
    assert (index.n_held(one), index.n_held(other), len(index)) == (1, 0, 1)


def test_index_adapters_have_blocks_of_their_own() -> None:
    index = complete_index()
    index.apply(batch(stored((7,), [1] * SIZE, lora="sql")))
    assert index.n_held(hash_tokens([1] * SIZE, SIZE, chain_root())) == 0
    assert index.n_held(hash_tokens([1] * SIZE, SIZE, chain_root("sql"))) == 1
    assert index.loras == {"sql"}


def test_index_after_a_gap_absent_prompt_is_unknown_and_a_seen_one_certain() -> None:
    index = BlockIndex()
    prompt, other = [1] * SIZE + [2] * SIZE, [3] * SIZE
    chain = hash_tokens(prompt, SIZE, chain_root())
    assert index.n_held(chain) is None
    index.begin(is_complete=False)
    assert index.n_held(chain) is None
    index.apply(batch(stored((9,), [2] * SIZE, parent=8)))  # follows a block from before the gap
    assert (index.n_held(chain), index.n_unlinked) == (None, 1)
    index.apply(batch(stored((7,), [1] * SIZE)))
    assert index.n_held(chain) == 1
    index.apply(batch(BlocksRemoved((7,), "GPU")))
    assert index.n_held(chain) == 0  # seen leaving
    assert index.n_held(hash_tokens(other, SIZE, chain_root())) is None


def test_index_without_connection_is_unknown_until_it_resumes() -> None:
    index, chain = complete_index(), hash_tokens([1] * SIZE, SIZE, chain_root())
    index.apply(batch(stored((7,), [1] * SIZE)))
    index.lose()
    assert index.n_held(chain) is None
    index.resume()
    assert index.n_held(chain) == 1


def test_index_full_begins_again_as_after_a_gap() -> None:
    index = complete_index(max_blocks=10)
    for number in range(12):
        index.apply(batch(stored((number,), [number] * SIZE)))
    assert len(index) <= 10
    assert not index.is_complete
    assert index.n_held(hash_tokens([11] * SIZE, SIZE, chain_root())) == 1
    assert index.n_held(hash_tokens([0] * SIZE, SIZE, chain_root())) is None


@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(0, 9), max_size=40))
def test_hash_tokens_equal_exactly_for_equal_beginnings(one: list[int], other: list[int]) -> None:
    n_same = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
                  min(len(one), len(other)))
    first, second = hash_tokens(one, SIZE, 0), hash_tokens(other, SIZE, 0)
    assert sum(a == b for a, b in zip(first, second, strict=False)) == n_same // SIZE
    assert len(first) == len(one) // SIZE


def test_index_event_of_more_blocks_than_it_holds_is_not_taken() -> None:
    index = complete_index(max_blocks=3)
    index.apply(batch(stored((1, 2, 3, 4), [1] * 4 * SIZE)))
    assert (len(index), index.is_complete, index.n_unlinked) == (0, False, 4)


def test_index_many_ranks_cleared_in_turn_cost_no_scan_of_the_others() -> None:
    """A thousand clears of small ranks beside a large one: a scan of it for each would touch 40 million blocks."""
    index = complete_index(max_blocks=100_000)
    tokens = list(range(40_000 * SIZE))
    index.apply(batch(stored(tuple(range(40_000)), tokens)))
    began_at = process_time()
    for rank in range(1, 1001):
        index.apply(batch(stored((7,), [rank] * SIZE), AllCleared(), AllCleared(), rank=rank))
    assert process_time() - began_at < 1.0
    assert len(index) == 40_000
