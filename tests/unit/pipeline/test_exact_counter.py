"""Token counts of one route by a vocabulary."""

import json
from typing import Any

import pytest

from stayfast.core.types import Api, Request
from stayfast.pipeline.context.exact_counter import MAX_BYTES, N_SURE, ExactTokenCounter
from stayfast.pipeline.context.token_counter import UNLEARNED
from stayfast.stores.exact_tokenizer import ExactTokenizer, TokenizerSlot
from stayfast.wire.request_body import decode
from tests.unit.policy.context.mixed_traffic import TEMPLATE_TOKENS, CountedRequest, MixedTraffic, texts_of

SLOT = TokenizerSlot("o200k_base")


@pytest.fixture(name="vocabulary", scope="module")
def load_vocabulary() -> ExactTokenizer:
    return SLOT.load()


def chats(vocabulary: ExactTokenizer, n: int, seed: int = 1) -> list[CountedRequest]:
    """Conversations, code and passages, as an upstream with this vocabulary and template counts them."""
    return MixedTraffic(lambda text: len(vocabulary.encode(text)), seed, ("chat", "code", "rag")).take(n)


def request(body: bytes) -> Request:
    return decode(Api.CHAT, body)


def one_message(content: Any) -> Request:
    return request(json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode())


def test_exact_counter_learns_the_template_and_is_then_exact(vocabulary: ExactTokenizer) -> None:
    """What a template adds for a request and a message is known after some reports; before that a count is an estimate."""
    counter = ExactTokenCounter(SLOT, UNLEARNED)
    first, then = (found := chats(vocabulary, 80))[:60], found[60:]
    assert not counter.count(request(first[0].body)).is_exact
    for one in first:
        counter.learn(one.body, one.n_tokens)
    counts = [counter.count(request(one.body)) for one in then]
    assert [count.n_tokens for count in counts] == [one.n_tokens for one in then]
    assert all(count.is_exact for count in counts)


def test_exact_counter_is_not_exact_once_a_report_differs(vocabulary: ExactTokenizer) -> None:
    """A provider that adds a hidden instruction is noticed at once."""
    counter = ExactTokenCounter(SLOT, UNLEARNED)
    found = chats(vocabulary, 60)
    for one in found:
        counter.learn(one.body, one.n_tokens)
    assert counter.count(request(found[0].body)).is_exact
    counter.learn(found[0].body, found[0].n_tokens + 40)
    assert not counter.count(request(found[0].body)).is_exact


def test_exact_counter_text_is_that_of_the_vocabulary(vocabulary: ExactTokenizer) -> None:
    """Without a template, and again from memory."""
    counter = ExactTokenCounter(SLOT, UNLEARNED)
    for _ in range(2):
        assert counter.count_text("hello world") == 2
    assert counter.encode("hello world") == [24912, 2375]


def test_exact_counter_until_the_vocabulary_is_loaded_estimates() -> None:
    """The route serves meanwhile."""
    counter = ExactTokenCounter(TokenizerSlot("o200k_base"), UNLEARNED)
    asked = one_message("four words in all")
    counter.learn(asked.body, 10)
    assert counter.count(asked) == UNLEARNED.count(asked)
    assert counter.count_text("four words in all") == UNLEARNED.count_text("four words in all")
    assert counter.encode("a") is None


def test_exact_counter_image_is_estimated(vocabulary: ExactTokenizer) -> None:
    """No vocabulary counts it, and it teaches nothing of the template."""
    counter = ExactTokenCounter(SLOT, UNLEARNED)
    asked = one_message([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "https://x/y"}}])
    before = counter.count(one_message("a"))
    counter.learn(asked.body, 5000)
    assert counter.count(asked) == UNLEARNED.count(asked)
    assert counter.count(one_message("a")) == before


def test_exact_counter_long_request_is_exact_only_off_the_loop(vocabulary: ExactTokenizer) -> None:
    """On the loop it would take too long."""
    counter = ExactTokenCounter(SLOT, UNLEARNED)
    asked = one_message("Every request has one deadline. " * 4000)
    assert len(asked.body) > MAX_BYTES
    assert counter.count(asked) == UNLEARNED.count(asked)
    n_text = len(vocabulary.encode("Every request has one deadline. " * 4000))
    assert counter.count_whole(asked).n_tokens == n_text + 3 + TEMPLATE_TOKENS
    assert list(texts_of([{"content": "a"}])) == ["a"]
    assert N_SURE > 1
