"""The token ids of prompts that an engine tokenized, found again by the text of their beginning.

Problem: an engine's cache is known by tokens, a request by its text, and the template between them belongs to the engine. To
tokenize each request before it is routed would cost a call. Rule: a prompt is tokenized once, in the background, and the
next one that begins with the same text has the same tokens there:

    text blocks (policy/routing/affinity.py)  ->  the newest prompt with them, and its tokens up to the end of each

    tokens up to byte b = from the last anchor on, in proportion to bytes
    anchor: where the tokens of two prompts part that share their first text blocks

so a system prompt's length in tokens is exact to one text block as soon as two prompts have shared it.
Memory: `max_tokens`, 4 bytes each and 8 for each block of an engine; the oldest prompts go first.
Source: the tokenizer endpoints of vLLM and SGLang; approximate prefix routing by text, as in llm-d.
When wrong: before the first anchor by as much as tokens per byte differ within a prompt. A template that rewrites earlier
turns (some drop reasoning) changes the tokens of a known text: the newest prompt counts.
"""

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from stayfast.policy.routing.block_index import hash_tokens

MAX_TOKENS: Final = 2_000_000


class LearnedPrompt:
    """One prompt. `n_tokens`: its tokens up to the end of each text block."""

    __slots__ = ("_chains", "blocks", "n_bytes", "n_tokens", "token_ids")

    def __init__(self, blocks: Sequence[int], n_bytes: int, token_ids: "array[int]", n_tokens: list[int]) -> None:
        self.blocks = blocks
        self.n_bytes = n_bytes
        self.token_ids = token_ids
        self.n_tokens = n_tokens
        self._chains: dict[tuple[int, int], array[int]] = {}

    def chain(self, block_size: int, root: int) -> "array[int]":
        """The ids of its blocks of tokens, computed once for each form."""
        found = self._chains.get((block_size, root))
        if found is None:
            self._chains[block_size, root] = found = hash_tokens(self.token_ids, block_size, root)
        return found


class KnownBeginning(NamedTuple):
    """What is known of a request's prompt: the first `n_blocks` blocks of its text are those of `prompt`."""

    prompt: LearnedPrompt
    n_blocks: int

    @property
    def n_tokens(self) -> int:
        return self.prompt.n_tokens[self.n_blocks - 1]


class LearnedPrompts:
    """Pure state; changed only by its owner. Text blocks are identified with the model and all text before them."""

    __slots__ = ("_by_block", "_max_tokens", "_prompts", "n_tokens")

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._prompts: dict[LearnedPrompt, None] = {}  # oldest first
        self._by_block: dict[int, LearnedPrompt] = {}
        self.n_tokens = 0

    def find(self, blocks: Sequence[int]) -> KnownBeginning | None:
        """The longest known beginning of a prompt; None: it is not known."""
        by_block = self._by_block
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high) // 2
            if blocks[middle] in by_block:
                low = middle + 1
            else:
                high = middle
        return KnownBeginning(by_block[blocks[low - 1]], low) if low else None

    def learn(self, blocks: Sequence[int], n_bytes: int, token_ids: Sequence[int], block_bytes: int) -> None:
        """An engine tokenized a prompt. blocks: of its text, `block_bytes` each, not empty; n_bytes: of all of it."""
        ids = array("i", token_ids)
        known = self.find(blocks)
        n_tokens = _count_tokens(len(blocks), n_bytes, ids, block_bytes, known)
        learned = LearnedPrompt(tuple(blocks), n_bytes, ids, n_tokens)
        self._prompts[learned] = None
        self.n_tokens += len(ids)
        for block in blocks:
            self._by_block[block] = learned
        while self.n_tokens > self._max_tokens and len(self._prompts) > 1:
            self._forget(next(iter(self._prompts)))

    def _forget(self, prompt: LearnedPrompt) -> None:
        del self._prompts[prompt]
        self.n_tokens -= len(prompt.token_ids)
        for block in prompt.blocks:
            if self._by_block.get(block) is prompt:
                del self._by_block[block]

    def __len__(self) -> int:
        return len(self._prompts)


def _count_tokens(n_blocks: int, n_bytes: int, ids: "array[int]", block_bytes: int, known: KnownBeginning | None
                  ) -> list[int]:
    """The tokens up to the end of each text block."""
    if known is None:
        return [len(ids) * (at * block_bytes) // n_bytes for at in range(1, n_blocks + 1)]
    n_same, other = _n_common(ids, known.prompt.token_ids), known.prompt
    same_bytes = min((known.n_blocks + 0.5) * block_bytes, other.n_bytes, n_bytes)  # where they part, to half a block
    n_here = int(n_same * known.n_blocks * block_bytes / same_bytes)
    before = known.n_tokens or 1
    counted = [n * n_here // before for n in other.n_tokens[:known.n_blocks]]
    rest = (len(ids) - n_same) / max(1.0, n_bytes - same_bytes)
    return counted + [min(len(ids), int(n_same + (at * block_bytes - same_bytes) * rest))
                      for at in range(known.n_blocks + 1, n_blocks + 1)]


def _n_common(one: "array[int]", other: "array[int]") -> int:
    """The number of equal items at the beginning, by bisection."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
