"""policy.speculation.controller: the faster arm is found, tries are bounded, and the rules for off hold."""

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.policy.speculation.controller import (
    MAX_EXTRA,
    MIN_SAMPLES,
    DecodeSample,
    SpeculationController,
)
from tests.unit.policy.speculation_rig import ArmRun, count_arms, count_tries

GAINS = st.floats(0.3, 3.0)
SEEDS = st.integers(0, 10_000)


@given(run=st.builds(ArmRun, st.fixed_dictionaries({"off": st.just(1.0), "ngram": GAINS, "draft": GAINS}), SEEDS,
                     noise=st.floats(0.0, 0.6), accepted=st.floats(0.0, 1.0), explore_share=st.floats(0.0, 0.2)))
@settings(max_examples=60, deadline=None)
def test_controller_tries_are_bounded(run: ArmRun) -> None:
    """At each moment of any run: the share of all requests, and a constant."""
    run.run(600)
    n_tried, share = 0, run.explore_share
    for n_requests, choice in enumerate(run.choices, start=1):
        n_tried += choice.why == "tried"
        assert n_tried <= MAX_EXTRA + share * n_requests


@given(draft=st.floats(0.3, 0.85), ngram=st.floats(0.3, 0.85), seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_controller_slower_arms_are_never_in_use(draft: float, ngram: float, seed: int) -> None:
    """Whatever their accepted share is: 80 % here."""
    choices = ArmRun({"off": 1.0, "ngram": ngram, "draft": draft}, seed).run(800)
    assert not any(choice.why == "proven" for choice in choices)


@given(draft=st.floats(1.4, 3.0), seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_controller_faster_arm_comes_into_use(draft: float, seed: int) -> None:
    run = ArmRun({"off": 1.0, "ngram": 0.8, "draft": draft}, seed)
    run.run(2500)
    assert count_arms(run.run(300))["draft"] >= 270


@given(later=st.floats(0.3, 0.8), seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_controller_arm_that_becomes_slower_is_left(later: float, seed: int) -> None:
    """With the same acceptance: tries of plain decoding find it out."""
    run = ArmRun({"off": 1.0, "draft": 1.6}, seed)
    run.run(1500)
    run.run(1500, gains={"draft": later})
    assert count_arms(run.run(100))["off"] >= 90


def test_controller_both_are_faster_uses_the_fastest() -> None:
    run = ArmRun({"off": 1.0, "ngram": 1.3, "draft": 2.0}, noise=0.1)
    run.run(3000)
    assert count_arms(run.run(300))["draft"] >= 270


def test_controller_guesses_below_half_accepted_are_off_at_any_speed() -> None:
    choices = ArmRun({"off": 1.0, "draft": 2.0}, accepted=0.4).run(2000)
    assert not any(choice.why == "proven" for choice in choices)


def test_controller_acceptance_falls_is_off_at_once() -> None:
    """The counts of guesses fade, so that some tens of answers outweigh all before."""
    run = ArmRun({"off": 1.0, "draft": 2.0})
    run.run(1500)
    assert run.choices[-1].arm == "draft"
    run.accepted = 0.1
    assert count_arms(run.run(60)[-10:])["off"] >= 10 - 3  # a try may be among them


@pytest.mark.parametrize(("n_slots", "n_in_flight", "is_full"), [
    (32, 15, False), (32, 16, True), (4, 1, False), (4, 2, True), (1, 1, False), (1, 2, True)])
def test_controller_batch_of_half_the_slots_is_off(n_slots: int, n_in_flight: int, is_full: bool) -> None:
    run = ArmRun({"off": 1.0, "draft": 3.0}, n_slots=n_slots)
    choices = run.run(400, n_in_flight=n_in_flight)
    assert (choices[-1].why == "full_batch") is is_full
    assert ("draft" in count_arms(choices)) is not is_full


def test_controller_short_answers_are_off() -> None:
    """By the limit of the request, or by the lengths of the route's answers; a first answer may be long."""
    limited = ArmRun({"off": 1.0, "draft": 3.0}).run(400, limit=31)
    assert {choice.why for choice in limited} == {"short"}
    usual = ArmRun({"off": 1.0, "draft": 3.0}).run(400, n_tokens=20)
    assert usual[0].why == "unproven"
    assert {choice.why for choice in usual[8:]} == {"short"}


def test_controller_batch_sizes_have_their_own_arm() -> None:
    run = ArmRun({"off": 1.0, "draft": 1.8})
    run.run(1500)
    run.run(1500, n_in_flight=8, gains={"draft": 0.6})
    assert run.choices[-1].arm == "off"
    assert run.run(1, gains={"draft": 1.8})[0].arm == "draft"


def test_controller_refuted_arms_are_tried_less() -> None:
    run = ArmRun({"off": 1.0, "draft": 0.5}, noise=0.05)
    run.run(1000)
    assert count_tries(run.run(4000)) <= 0.25 * 0.02 * 4000 + 3


def test_controller_old_evidence_is_dropped() -> None:
    """After a night without requests the arm must be proven again."""
    run = ArmRun({"off": 1.0, "draft": 1.8})
    run.run(1500)
    assert run.choices[-1].arm == "draft"
    run.now += 8 * 3600
    assert run.run(1)[0].why == "unproven"


def test_controller_idle_process_first_answer_is_no_sample() -> None:
    """Its first answer after a change takes ten times as long, and counts nowhere."""
    controller, rng = SpeculationController(("off", "draft"), 32, Random(1)), Random(2)
    now = 0.0
    for _ in range(2000):
        now += 1.0
        choice = controller.choose("route", 1, None, now)
        speed = 100.0 * (1.6 if choice.arm == "draft" else 1.0) * rng.uniform(0.9, 1.1)
        controller.record(choice, DecodeSample(100, speed if choice.is_warm else speed / 10, 0, 0), now)
    assert choice.arm == "draft"
    ((_, _, _, gains),) = controller.gains(now)
    assert 1.4 < gains["draft"].low <= gains["draft"].ratio <= gains["draft"].high < 1.8


@given(speed=st.sampled_from([0.0, -1.0, inf, float("nan")]), n_tokens=st.integers(0, 1000))
def test_controller_impossible_speed_is_no_sample(speed: float, n_tokens: int) -> None:
    controller = SpeculationController(("off", "draft"), 4, Random(1))
    choice = controller.choose("route", 1, None, 0.0)
    controller.record(choice, DecodeSample(n_tokens, speed), 0.0)
    assert controller.choose("route", 1, None, 1.0).arm == "off"


def test_controller_same_seed_same_choices() -> None:
    first, second = (ArmRun({"off": 1.0, "ngram": 1.2, "draft": 1.4}).run(1000) for _ in range(2))
    assert first == second


def test_controller_many_routes_stay_bounded() -> None:
    """Beyond the bound, routes are served without speculation."""
    controller = SpeculationController(("off", "draft"), 4, Random(1))
    for number in range(2000):
        choice = controller.choose(f"route {number}", 1, None, 0.0)
        controller.record(choice, DecodeSample(100, 50.0), 0.0)
    assert sum(1 for _ in controller.gains(0.0)) == 512
    assert controller.choose("route 1999", 1, None, 1.0).arm == "off"


def test_controller_description_has_the_gain_and_acceptance() -> None:
    run = ArmRun({"off": 1.0, "draft": 0.8}, noise=0.02)
    choices = run.run(600)
    text = run.controller.describe(choices[-1]._replace(arm="off", why="unproven"), run.now)
    assert text.startswith("speculation: off (unproven), draft 0.8")
    assert "80% accepted" in text
    assert MIN_SAMPLES == 8


def test_controller_without_the_plain_arm_is_refused() -> None:
    with pytest.raises(ValueError, match="arms must contain off"):
        SpeculationController(("draft",), 4, Random(1))
