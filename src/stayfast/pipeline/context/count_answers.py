"""Answers requests for token counts: by the upstream's own count, the route's vocabulary, or what its usage has shown."""

from collections.abc import Callable, Sequence
from typing import Final

from stayfast.core.types import Api, Request
from stayfast.pipeline.context.token_counter import UNLEARNED, TokenCount, TokenCounter
from stayfast.wire.token_counts import UpstreamCount, check_countable, encode_count_answer, read_plain_prompt

_TOKENIZE: Final = Api.TOKENIZE
Encode = Callable[[str], Sequence[int] | None]  # None: the vocabulary is not loaded yet


class CountAnswers:
    """Of one route. May be used by other threads."""

    __slots__ = ("_count", "_counter", "_encode", "uses_upstream")

    def __init__(self, counter: TokenCounter, encode: Encode | None = None,
                 count: Callable[[Request], TokenCount] | None = None, *, uses_upstream: bool = False) -> None:
        """encode: the token ids of a text; None: no vocabulary is known. count: of a request of any length; None: the
        counter's.
        """
        self._counter = counter
        self._count = count or counter.count
        self._encode = encode
        self.uses_upstream = uses_upstream

    def answer(self, request: Request, reported: UpstreamCount | None = None) -> bytes:
        if reported is not None:
            return encode_count_answer(request.api, reported, is_estimated=False)
        if request.api is _TOKENIZE and (prompt := read_plain_prompt(request.body)) is not None:
            token_ids = self._encode(prompt) if self._encode is not None else None
            count = UpstreamCount(self._counter.count_text(prompt)) if token_ids is None else UpstreamCount(
                len(token_ids), token_ids)
            return encode_count_answer(request.api, count, is_estimated=token_ids is None)
        check_countable(request.body)
        counted = self._count(request)
        return encode_count_answer(request.api, UpstreamCount(counted.n_tokens), is_estimated=not counted.is_exact)


UNLEARNED_COUNTS: Final = CountAnswers(UNLEARNED)
