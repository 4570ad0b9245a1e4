"""Counts the tokens of one route's requests by a vocabulary; what a chat template adds is learned from reported usage.

    tokens = a + b * messages + texts by the vocabulary + c * tools by the vocabulary

A count of messages is called exact once the last N_SURE reports were exactly as counted. Of a text alone it always is.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from stayfast.core.types import Request
from stayfast.pipeline.context.token_counter import TokenCount, TokenCounter
from stayfast.policy.context.token_estimate import TokenWeights
from stayfast.wire.token_counts import PromptTexts, read_prompt_texts

N_SURE: Final = 8
MAX_BYTES: Final = 64 * 1024  # of a request that is counted on the loop: 3 ms by bpe-openai, 30 ms by tokenizers
MAX_LEARNED_BYTES: Final = 16 * 1024
MAX_TEXTS: Final = 8192  # whose counts are stored: most texts of a conversation were in its last request
_START: Final = (3.0, 4.0, 1.0, 1.0)  # a request, a message, a token of its texts, a token of its tools
_SPREAD: Final = (5.0, 5.0, 1e-4, 0.5)


class Vocabulary(Protocol):
    """The vocabulary of a model. Thread-safe."""

    def encode(self, text: str) -> list[int]:
        """The ids of the tokens of a text."""


class VocabularySlot(Protocol):
    """A vocabulary that is loaded in the background."""

    name: str

    @property
    def tokenizer(self) -> Vocabulary | None:
        """None: not loaded yet."""


class ExactTokenCounter:
    """Of one route. `count_whole` and `encode` may be called by other threads."""

    __slots__ = ("_counts", "_learned", "_n_exact", "_weights", "slot")

    def __init__(self, slot: VocabularySlot, learned: TokenCounter) -> None:
        """learned: counts until the vocabulary is loaded, and requests that are too long or of unknown form."""
        self.slot = slot
        self._learned = learned
        self._weights = TokenWeights(_START, _SPREAD)
        self._n_exact = 0  # reports in a row that were as counted
        self._counts: dict[int, int] = {}  # by the hash of a text

    def count(self, request: Request) -> TokenCount:
        return self.count_whole(request) if len(request.body) <= MAX_BYTES else self._learned.count(request)

    def count_whole(self, request: Request) -> TokenCount:
        """The same for a request of any length: takes 0.05 ms a kB by bpe-openai, 0.5 ms by tokenizers."""
        vocabulary = self.slot.tokenizer
        read = read_prompt_texts(request.body) if vocabulary is not None else None
        if vocabulary is None or read is None or read.has_media:
            return self._learned.count(request)
        counts = self._measure(read, vocabulary)
        return TokenCount(max(1, round(self._weights.estimate(counts))), is_exact=self._n_exact >= N_SURE)

    def count_text(self, text: str) -> int:
        vocabulary = self.slot.tokenizer
        if vocabulary is None or len(text) > MAX_BYTES:
            return self._learned.count_text(text)
        return self._count_text(text, vocabulary)

    def encode(self, text: str) -> list[int] | None:
        """The ids of the tokens of a text; None until the vocabulary is loaded."""
        vocabulary = self.slot.tokenizer
        return vocabulary.encode(text) if vocabulary is not None else None

    def learn(self, body: bytes, n_tokens: int) -> None:
        """An upstream reported so many input tokens, at least 1, for a request with this body."""
        vocabulary = self.slot.tokenizer
        if vocabulary is None or len(body) > MAX_LEARNED_BYTES:
            return
        read = read_prompt_texts(body)
        if read is None or read.has_media:
            return
        counts = self._measure(read, vocabulary)
        self._n_exact = self._n_exact + 1 if round(self._weights.estimate(counts)) == n_tokens else 0
        self._weights.learn(counts, n_tokens)

    def _measure(self, read: PromptTexts, vocabulary: Vocabulary) -> Sequence[float]:
        n_text = sum([self._count_text(text, vocabulary) for text in read.texts])
        return (1.0, read.n_messages, n_text, self._count_text(read.tools, vocabulary))

    def _count_text(self, text: str, vocabulary: Vocabulary) -> int:
        if not text:
            return 0
        key = hash(text)
        n_tokens = self._counts.get(key)
        if n_tokens is None:
            if len(self._counts) >= MAX_TEXTS:
                self._counts.clear()
            self._counts[key] = n_tokens = len(vocabulary.encode(text))
        return n_tokens
