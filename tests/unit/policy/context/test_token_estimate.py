"""Tokens of prompts by their bytes, learned from what was reported."""

import json
import sys
from collections.abc import Callable
from random import Random

import bpe_openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.context.token_estimate import (
    IMAGE_TOKENS,
    MAX_BYTES,
    MAX_WEIGHTS,
    N_COUNTS,
    N_WARM,
    PromptTokens,
    measure_text,
)
from tests.unit.policy.context.mixed_traffic import KINDS, CountedRequest, MixedTraffic

ROUTE, MODEL = "r", "m"


def count_by(vocabulary: str) -> Callable[[str], int]:
    """The exact count of a text by one of OpenAI's vocabularies."""
    encoding = bpe_openai.get_encoding(vocabulary)
    return lambda text: len(encoding.encode_ordinary(text))


def chat(text: str) -> bytes:
    """A request with one message."""
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}]}, separators=(",", ":")).encode()


def mean_error(known: PromptTokens, requests: list[CountedRequest]) -> float:
    """The mean absolute error of the estimates, relative to the counts; nothing is learned meanwhile."""
    errors = [abs(known.estimate(ROUTE, MODEL, one.body) / one.n_tokens - 1) for one in requests]
    return sum(errors) / len(errors)


def learn_all(known: PromptTokens, requests: list[CountedRequest]) -> None:
    for one in requests:
        known.learn(ROUTE, MODEL, one.body, one.n_tokens)


def test_estimate_after_200_mixed_requests_errs_by_less_than_3_percent(capsys: pytest.CaptureFixture[str]) -> None:
    """Chats, code, tools, retrieved passages and seven other languages on one route, against the exact counts, on average
    of several runs; four bytes a token, and one learned ratio of the route, err by far more."""
    runs: list[tuple[float, float, float]] = []
    for vocabulary, seed in (("o200k_base", 1), ("o200k_base", 2), ("cl100k_base", 3), ("cl100k_base", 4)):
        traffic = MixedTraffic(count_by(vocabulary), seed)
        known, first = PromptTokens(), traffic.take(200)
        learn_all(known, first)
        then = traffic.take(300)
        ratio = sum(one.n_tokens for one in first) / sum(len(one.body) for one in first)
        by_ratio, by_four = (sum(abs(len(one.body) * each / one.n_tokens - 1) for one in then) / len(then)
                             for each in (ratio, 0.25))
        runs.append((mean_error(known, then), by_ratio, by_four))
        with capsys.disabled():
            sys.stdout.write(f"\n{vocabulary}, seed {seed}: learned {runs[-1][0]:.2%}, one ratio {by_ratio:.2%}, "
                             f"four bytes {by_four:.2%}")
    assert sum(error for error, *_ in runs) / len(runs) < 0.03
    assert all(error < min(0.04, 0.4 * by_ratio, 0.4 * by_four) for error, by_ratio, by_four in runs)


@pytest.mark.parametrize("kind", KINDS)
def test_estimate_of_one_kind_of_requests_errs_by_less_than_4_percent(kind: str) -> None:
    """A route of one application, of whatever kind."""
    traffic = MixedTraffic(count_by("o200k_base"), 5, (kind,))
    known = PromptTokens()
    learn_all(known, traffic.take(200))
    assert mean_error(known, traffic.take(100)) < 0.04


def test_estimate_of_escaped_text_is_that_of_the_characters() -> None:
    """Python's json.dumps writes other scripts as \\uXXXX, six bytes a character."""
    known = PromptTokens()
    plain, escaped = ({"model": MODEL, "messages": [{"role": "user", "content": "请帮我总结 😀 Résumé" * 20}]}, ) * 2
    as_utf8 = json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    assert known.estimate(ROUTE, MODEL, json.dumps(escaped, separators=(",", ":")).encode()) == known.estimate(
        ROUTE, MODEL, as_utf8)


def test_estimate_of_a_long_body_measures_parts_of_it() -> None:
    """A megabyte is estimated like its parts."""
    known = PromptTokens()
    part = known.estimate(ROUTE, MODEL, chat("Every request has one deadline, and 2 of 3 retries are late. " * 100))
    whole = known.estimate(ROUTE, MODEL, chat("Every request has one deadline, and 2 of 3 retries are late. " * 20_000))
    assert len(chat("x" * 20_000 * 60)) > MAX_BYTES
    assert whole == pytest.approx(200 * part, rel=0.05)


def test_estimate_of_an_image_is_independent_of_its_bytes() -> None:
    """An image counts by its size on the screen, and its base64 teaches nothing."""
    known = PromptTokens()
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * 9000}}]}]}).encode()
    assert IMAGE_TOKENS < known.estimate(ROUTE, MODEL, body) < IMAGE_TOKENS + 100
    known.learn(ROUTE, MODEL, body, 765)
    assert known.n_learned(ROUTE, MODEL) == 0


def test_estimate_follows_another_vocabulary_behind_the_same_name() -> None:
    """Once a route is known few requests are measured, until two in a row were wrong."""
    known, other = PromptTokens(), PromptTokens()
    before = MixedTraffic(count_by("o200k_base"), 7, ("chat", "code"))
    learn_all(known, before.take(1000))
    assert known.n_learned(ROUTE, MODEL) < N_WARM + 40
    half_more = [one._replace(n_tokens=one.n_tokens * 3 // 2) for one in before.take(500)]
    learn_all(known, half_more)
    assert mean_error(known, half_more[-50:]) < 0.04
    assert mean_error(other, half_more[-50:]) > 0.1


def test_estimate_of_a_new_route_begins_with_the_model_elsewhere() -> None:
    """Another route at the same upstream has shown the vocabulary."""
    known, traffic = PromptTokens(), MixedTraffic(count_by("cl100k_base"), 8, ("chat",))
    learn_all(known, traffic.take(200))
    body = traffic.take(1)[0].body
    assert known.estimate("new", MODEL, body) == known.estimate(ROUTE, MODEL, body)
    for sample in traffic.take(50):
        known.learn("new", MODEL, sample.body, 2 * known.estimate(ROUTE, MODEL, sample.body))
    assert known.estimate("new", MODEL, body) != known.estimate(ROUTE, MODEL, body)


def test_estimate_wrong_reports_do_not_upset_it() -> None:
    """One prompt that was cut or counted twice moves the estimates a little; a count of 0 teaches nothing."""
    known, traffic = PromptTokens(), MixedTraffic(count_by("o200k_base"), 9, ("chat",))
    learn_all(known, traffic.take(150))
    known.learn(ROUTE, MODEL, traffic.take(1)[0].body, 1_000_000)
    known.learn(ROUTE, MODEL, traffic.take(1)[0].body, 0)
    assert mean_error(known, traffic.take(50)) < 0.05


def test_estimate_too_many_models_forgets_the_oldest() -> None:
    """Clients choose models, so the pairs are bounded."""
    known, rng = PromptTokens(), Random(1)
    body = chat("one two three " * 50)
    for n in range(MAX_WEIGHTS + 10):
        known.learn(ROUTE, f"m{n}", body, rng.randrange(900, 1000))
    assert known.n_learned(ROUTE, "m0") == 0
    assert known.n_learned(ROUTE, f"m{MAX_WEIGHTS}") == 1


@given(text=st.one_of(st.binary(max_size=400), st.text(alphabet="\\ud8Ff00 aA\"", max_size=60).map(str.encode)),
       n_tokens=st.integers(0, 10**9))
def test_estimate_of_any_bytes_is_bounded(text: bytes, n_tokens: int) -> None:
    """From 1 token to one a byte, whatever was learned before; N_COUNTS figures of at least 0."""
    known = PromptTokens()
    known.learn(ROUTE, MODEL, text, n_tokens)
    counts = measure_text(text)
    assert len(counts) == N_COUNTS
    assert min(counts) >= 0
    assert 1 <= known.estimate(ROUTE, MODEL, b"x" + text) <= len(text) + 1
    assert 0 <= known.estimate_text(ROUTE, MODEL, text) <= len(text)
