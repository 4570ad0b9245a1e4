"""The claim about silent calls holds in virtual time, and falls short of the faults that it is to find."""

from collections.abc import Iterable

import pytest

from stayfast.lab.claims import silent
from stayfast.lab.claims.silent import (
    CONSTANTS_S,
    QUICK,
    REASONING,
    StreamCheck,
    compare_constants,
    make_figures,
    run_in_virtual_time,
    simulate_constants,
)
from stayfast.lab.harness.claim import Figure
from stayfast.lab.harness.virtual import run_virtual
from stayfast.pipeline.attempts.attempt import Attempt
from stayfast.pipeline.routing.selector import Target
from stayfast.wire.chat.stream_decoder import ChatDecoder

SECONDS = 200.0


@pytest.fixture(autouse=True)
def _short_warmups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silent, "WARMUP_S", 150.0)


def _measure() -> list[Figure]:
    results = run_virtual(run_in_virtual_time, SECONDS, 1)
    return [figure for model, result in results.items() for figure in make_figures(model, result)]


def _missed(figures: Iterable[Figure]) -> set[str]:
    """The figures whose value is on the wrong side of the goal; the runs are too short for intervals."""
    return {figure.name for figure in figures if figure.goal is not None and not figure.value <= figure.goal}


def test_silent_claim_virtual_time_meets_its_goals() -> None:
    assert _missed(_measure()) == set()


def test_silent_claim_models_share_statistics_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one distribution for both models, hedges of the quick one wait for as long as the reasoning model thinks."""
    monkeypatch.setattr(Target, "upstream_model", lambda target, requested: (target.member.upstream.name, ""))
    monkeypatch.setattr(Attempt, "upstream_model", property(lambda attempt: (attempt.name, "")))
    assert f"{QUICK}: TTFT p99" in _missed(_measure())


def test_silent_claim_role_counts_as_content_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is committed to a call that sends nothing else."""
    read_event = ChatDecoder.read_event

    def read_role(decoder: ChatDecoder, data: bytes, name: bytes) -> int:
        return read_event(decoder, data, name) or int(b'"role":' in data)

    monkeypatch.setattr(ChatDecoder, "read_event", read_role)
    missed = _missed(_measure())
    assert {f"{model}: requests without an answer" for model in (QUICK, REASONING)} <= missed


def test_silent_claim_every_constant_is_short_of_a_goal() -> None:
    """Short ones repeat the reasoning model's calls, long ones hold the quick model's clients."""
    runs = simulate_constants(SECONDS, 1)
    assert len(runs) == 3 * len(CONSTANTS_S)
    assert all(run.missed for run in runs)
    none, best = compare_constants(runs)
    assert none.holds
    assert best.holds
    short = next(run for run in runs if run.policy.name == "one hedge after 2 s")
    assert [words.split()[0] for words in short.missed] == [QUICK, REASONING]


ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
END = b"data: [DONE]\n\n"


@pytest.mark.parametrize(("body", "expected"), [
    (ROLE + silent.N_TOKENS * WORD + END, True),
    (b": keep-alive\n\n" + ROLE + silent.N_TOKENS * WORD + END, True),
    (ROLE + ROLE + silent.N_TOKENS * WORD + END, False),  # the roles of two attempts
    (ROLE + (silent.N_TOKENS - 1) * WORD + WORD.replace(b'"c"', b'"d"') + END, False),
    (ROLE + (silent.N_TOKENS - 1) * WORD + END, False),
    (ROLE + silent.N_TOKENS * WORD, False),
    (b"", False)])
def test_stream_check_finds_parts_of_two_attempts(body: bytes, expected: bool) -> None:
    check = StreamCheck(QUICK)
    check.body = body
    assert check.is_of_one_attempt is expected
