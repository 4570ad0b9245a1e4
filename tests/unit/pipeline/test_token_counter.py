"""Token counts of one route's requests."""

from stayfast.core.types import Api
from stayfast.pipeline.context.token_counter import UNLEARNED, LearnedTokenCounter
from stayfast.policy.resilience.baselines import LatencyBaselines
from stayfast.wire.request_body import decode

BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"four words in all. " * 40)


def test_token_counter_without_reports_estimates_and_marks_it() -> None:
    """Four bytes a token, and not exact."""
    counted = UNLEARNED.count(decode(Api.CHAT, BODY))
    assert counted.n_tokens == len(BODY) // 4
    assert not counted.is_exact


def test_token_counter_of_a_route_follows_the_first_upstream() -> None:
    """What the usage of its first choice has shown."""
    first, second = LatencyBaselines(), LatencyBaselines()
    for _ in range(20):
        first.prompt_tokens.learn("big", len(BODY), 100)
        second.prompt_tokens.learn("m", len(BODY), 900)
    counter = LearnedTokenCounter([(first, "big"), (second, "")])
    assert counter.count(decode(Api.CHAT, BODY)).n_tokens == 100


def test_token_counter_of_an_empty_text_is_zero() -> None:
    """A text alone has no template."""
    assert UNLEARNED.count_text("") == 0
    assert UNLEARNED.count_text("x" * 400) == 100
