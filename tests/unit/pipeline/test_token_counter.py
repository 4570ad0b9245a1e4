"""Token counts of one route's requests."""

from stayfast.core.types import Api
from stayfast.pipeline.context.token_counter import UNLEARNED, LearnedTokenCounter
from stayfast.policy.resilience.baselines import LatencyBaselines
from stayfast.wire.request_body import decode

BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"four words in all. " * 40)


def test_token_counter_without_reports_estimates_and_marks_it() -> None:
    """By the counts of words and marks, and not exact."""
    counted = UNLEARNED.count(decode(Api.CHAT, BODY))
    assert 150 < counted.n_tokens < 250
    assert not counted.is_exact


def test_token_counter_of_a_route_follows_the_upstream_that_has_shown_most() -> None:
    """An upstream that was never used has no say."""
    idle, used = LatencyBaselines(), LatencyBaselines()
    for _ in range(100):
        used.prompt_tokens.learn("r", "m", BODY, 400)
    counter = LearnedTokenCounter("r", [(idle, "big"), (used, "")])
    assert abs(counter.count(decode(Api.CHAT, BODY)).n_tokens - 400) < 10


def test_token_counter_of_a_text_leaves_out_the_template() -> None:
    """A text alone has no message around it; line breaks count as in a body."""
    assert UNLEARNED.count_text("") == 0
    assert UNLEARNED.count_text("four words in all. " * 40) < UNLEARNED.count(decode(Api.CHAT, BODY)).n_tokens
    assert UNLEARNED.count_text("a\nb\n" * 100) > UNLEARNED.count_text("a b " * 100) // 2
