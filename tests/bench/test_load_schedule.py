"""Arrivals, lengths, prompts, traces, and the schedule."""

import json
from collections import Counter
from itertools import islice, pairwise
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.units import parse_duration
from stayfast.lab.load.arrivals import Arrivals, ConstantArrivals, Gamma, Mmpp, Ramp, RateStage, parse_arrivals, read_trace
from stayfast.lab.load.lengths import CONV_INPUT, Lognormal, NormalLength, Uniform, parse_length
from stayfast.lab.load.lengths import ConstantLength as Always
from stayfast.lab.load.schedule import PoolConfig, Prompts, ScheduleLimit, Shot, TurnsConfig, Workload, generate_shots

RATES = st.floats(0.01, 10_000)
PROCESSES = st.one_of(
    st.builds(ConstantArrivals, RATES), st.builds(Gamma, RATES, st.floats(0.05, 20)),
    st.builds(Mmpp, RATES, RATES, st.floats(0.1, 60), st.floats(0.1, 60)),
    st.builds(lambda stages: Ramp(tuple(stages)),
              st.lists(st.builds(RateStage, st.floats(0.1, 60), RATES, st.floats(0, 1000)),
                                                          min_size=1, max_size=4)))


def first(process: Arrivals, n: int, seed: int = 0) -> list[float]:
    return list(islice(process.instants(Random(seed)), n))


@settings(deadline=None)
@given(PROCESSES, st.integers(0, 2**32))
def test_arrivals_are_sorted_and_repeat_by_seed(process: Arrivals, seed: int) -> None:
    """Any process: instants from 0 on, in order, the same for the same seed."""
    found = first(process, 200, seed)
    assert all(0 <= a <= b for a, b in pairwise([0.0, *found]))
    assert found == first(process, 200, seed)


@pytest.mark.parametrize(("process", "rate_rps", "cv"), [
    (ConstantArrivals(50), 50, 0.0), (Gamma(50), 50, 1.0), (Gamma(50, 0.25), 50, 2.0), (Gamma(50, 4), 50, 0.5)])
def test_arrivals_have_their_rate_and_burstiness(process: Arrivals, rate_rps: float, cv: float) -> None:
    """Over 50,000 arrivals the mean rate is within 3 % and the coefficient of variation within 5 %."""
    gaps_s = [b - a for a, b in pairwise(first(process, 50_000))]
    assert 1 / fmean(gaps_s) == pytest.approx(rate_rps, rel=0.03)
    assert pstdev(gaps_s) / fmean(gaps_s) == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_ramp_follows_its_stages() -> None:
    """0 to 100/s in 100 s, then 100/s for 50 s: half of the first stage's arrivals are in its last 29.3 s."""
    ramp = parse_arrivals("ramp:0..100:100s,100:50s", None)
    assert isinstance(ramp, Ramp)
    found = first(ramp, 100_000)
    assert len(found) == pytest.approx(10_000, rel=0.05)
    assert found[-1] < 150
    rising = [at_s for at_s in found if at_s < 100]
    assert sum(at_s > 100 / 2**0.5 for at_s in rising) / len(rising) == pytest.approx(0.5, abs=0.03)


def test_mmpp_alternates_calm_and_storm() -> None:
    """Two states of 10 s each at 10 and 100/s: counts a second vary far more than Poisson's."""
    counts = Counter(int(at_s) for at_s in first(Mmpp(10, 100, 10, 10), 50_000))
    n = [counts[second] for second in range(max(counts))]
    assert fmean(n) == pytest.approx(55, rel=0.15)
    assert pstdev(n) ** 2 / fmean(n) > 10


@pytest.mark.parametrize(("text", "rate_rps", "expected"), [
    ("poisson", None, "needs --rate"), ("gamma:x", 1.0, "not a number"), ("gamma:0", 1.0, "shape"),
    ("poisson:3", 1.0, "colon"), ("ramp:1..2:9", None, "is not a duration"), ("ramp:1..2:9s", 3.0, "no meaning"),
    ("ramp:5", None, "RATE:TIME"), ("mmpp:1:2s", None, "two states"), ("often", 1.0, "known are"),
    ("constant", 0.0, "above 0"), ("ramp:0:5s", None, "above 0")])
def test_parse_arrivals_refuses_wrong_texts(text: str, rate_rps: float | None, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_arrivals(text, rate_rps)


def test_lengths_have_their_distribution() -> None:
    """Means and medians of 20,000 draws; presets end at their trace's maximum; the minimum is 1."""
    def drawn(length: object) -> list[int]:
        assert isinstance(length, Uniform | NormalLength | Lognormal | Always)
        rng = Random(1)
        return sorted(length.draw(rng) for _ in range(20_000))

    assert set(drawn(Always(7))) == {7}
    uniform = drawn(Uniform(10, 20))
    assert (uniform[0], uniform[-1]) == (10, 20)
    assert fmean(drawn(NormalLength(200, 20))) == pytest.approx(200, rel=0.01)
    assert drawn(NormalLength(1, 50))[0] == 1
    conv = drawn(CONV_INPUT)
    assert conv[10_000] == pytest.approx(757, rel=0.05)
    assert conv[-1] == 14_050


@pytest.mark.parametrize(("text", "expected"), [
    ("", "write N"), ("0", "must be 1"), ("uniform:9", "write N"), ("uniform:9-3", "must be 9"), ("normal:5", "write N"),
    ("lognormal:0,1", "must be 1"), ("lognormal:5,99", "sigma"), ("x", "write N")])
def test_parse_length_refuses_wrong_texts(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=f"--input-tokens {text}.*{expected}"):
        parse_length(text, "input")


def test_length_presets_differ_by_side() -> None:
    """conv has long questions and shorter answers."""
    assert parse_length("conv", "input") != parse_length("conv", "output")


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("1m30s", 90), ("2h", 7200), ("1.5s", 1.5)])
def test_parse_duration_reads_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "5x", "5s5", "-1s", "1 s"])
def test_parse_duration_without_a_unit_is_refused(text: str) -> None:
    """Other tools read a bare number in other units."""
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


WORKLOAD = Workload(Uniform(5, 50), Always(8), Gamma(20))
PROMPTS = Prompts(3)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 5), st.floats(0.5, 20), st.integers(1, 300))
def test_schedule_is_sorted_bounded_and_repeats(seed: int, warmup_s: float, until_s: float, n_requests: int) -> None:
    """In order of t0, from the start of the warm-up to the end, with the limit of measured requests."""
    limit = ScheduleLimit(until_s, n_requests, warmup_s)
    found = list(generate_shots(WORKLOAD, seed, limit))
    assert found == list(generate_shots(WORKLOAD, seed, limit))
    assert all(-warmup_s <= a.at_s <= b.at_s < until_s for a, b in pairwise(found))
    assert sum(shot.at_s >= 0 for shot in found) <= n_requests
    assert [shot.number for shot in found] == list(range(len(found)))


def test_schedule_differs_by_seed() -> None:
    one, other = (list(generate_shots(WORKLOAD, seed, ScheduleLimit(5))) for seed in (1, 2))
    assert [shot.at_s for shot in one[:5]] != [shot.at_s for shot in other[:5]]
    assert Prompts(1).user_message(one[0]) != Prompts(2).user_message(one[0])
    assert Prompts(1).user_message(one[0]) == Prompts(1).user_message(one[0])


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 3000), st.integers(0, 9))
def test_prompts_have_the_requested_length(number: int, n_tokens: int, wording: int) -> None:
    """As many words as tokens, for any number and wording."""
    shot = Shot(0, 0.0, number, n_tokens, 1, wording=wording)
    assert len(PROMPTS.user_message(shot).split()) == n_tokens


def test_prompts_differ_in_their_first_words() -> None:
    """10,000 prompts of 30 tokens: no two have the same first twelve words, so no prefix cache helps."""
    prompts = Prompts(0)
    starts = {" ".join(prompts.user_message(Shot(n, 0, n, 30, 1)).split()[:12]) for n in range(10_000)}
    assert len(starts) == 10_000


def test_prompt_pool_repeats_by_zipf_and_rewords() -> None:
    """The first prompt is drawn twice as often as the second; about half are reworded; each has one length."""
    workload = Workload(Uniform(20, 90), Uniform(1, 99), Gamma(100), pool=PoolConfig(50, 0.8, 1.0, 0.5))
    found = list(generate_shots(workload, 4, ScheduleLimit(n_requests=20_000)))
    pooled = [shot for shot in found if shot.prompt < 50]
    counts = Counter(shot.prompt for shot in pooled)
    assert len(pooled) / len(found) == pytest.approx(0.8, abs=0.02)
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.15)
    assert fmean(shot.wording > 0 for shot in pooled) == pytest.approx(0.5, abs=0.03)
    assert len({(shot.prompt, shot.n_input, shot.n_output) for shot in pooled}) == len(counts)
    assert str(workload.pool) == "80% drawn from 50 prompts (Zipf 1), 50% of them reworded, the rest different"
    prompts = Prompts(4)
    same = [prompts.user_message(shot) for shot in pooled if shot.prompt == 0]
    assert 2 <= len(set(same)) <= 5


def test_conversation_history_grows() -> None:
    """Each turn has all earlier ones; think times are drawn before the run."""
    workload = Workload(Always(6), Always(4), ConstantArrivals(1), turns=TurnsConfig(3, 2.0), n_system=5)
    [opening, following] = generate_shots(workload, 0, ScheduleLimit(n_requests=4))
    second = opening.next_turn
    assert second is not None
    assert second.next_turn is not None
    assert second.next_turn.next_turn is None
    assert (second.think_s > 0, following.number) == (True, 3)
    prompts = Prompts(0, 5)
    assert len(prompts.system.split()) == 5
    one, two, three = (prompts.messages(turn) for turn in (opening, second, second.next_turn))
    assert [role for role, _ in three] == ["user", "assistant", "user", "assistant", "user"]
    assert (two[:1], three[:3]) == (one, two)
    assert len(three[1][1].split()) == 4


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"


def test_read_trace_azure_formats() -> None:
    """Both forms; times count from the first request."""
    raw = read_trace(AZURE.splitlines())
    assert [(row.n_input, row.n_output) for row in raw] == [(374, 44), (396, 109)]
    assert raw[0].at_s == 0
    assert raw[1].at_s == pytest.approx(4.314579, abs=1e-5)
    ours = read_trace(["arrival_s,input_tokens,output_tokens", "3,1,2", "1,5,6"], time_scale=0.5)
    assert [(row.at_s, row.n_input) for row in ours] == [(0, 5), (1, 1)]


def test_read_trace_spreads_rounded_timestamps() -> None:
    """Mooncake's batches are spread evenly up to the next timestamp; equal blocks are equal text."""
    lines = [json.dumps({"timestamp": at_ms, "input_length": 1000, "output_length": 3, "hash_ids": [7, n]})
             for n, at_ms in enumerate((0, 0, 0, 3000, 3000))]
    found = read_trace(lines)
    assert [row.at_s for row in found] == pytest.approx([0, 1, 2, 3, 4.5])
    made = list(generate_shots(Workload(Always(1), Always(1), trace=found), 0, ScheduleLimit()))
    prompts = Prompts(0)
    one, two = (prompts.user_message(shot).split() for shot in made[:2])
    assert one[:512] == two[:512]
    assert one[512:524] != two[512:524]
    assert len(one) == 1000


def test_trace_shared_prefix_is_shared_text() -> None:
    """Mooncake's CSV has the number of leading tokens shared with others."""
    trace = read_trace(["arrival_s,input_tokens,output_tokens,reusable_prefix_tokens", "0,40,3,0", "3,60,3,20", "6,70,3,20"])
    prompts = Prompts(0)
    _, one, two = (prompts.user_message(shot).split() for shot in generate_shots(Workload(Always(1), Always(1), trace=trace),
                                                                                 0,
                                                                ScheduleLimit()))
    assert one[:20] == two[:20]
    assert one[20:24] != two[20:24]
    assert (len(one), len(two)) == (60, 70)


@pytest.mark.parametrize(("text", "expected"), [
    ("", "columns"), ("a,b,c\n1,2,3", "columns"), ("arrival_s,input_tokens,output_tokens", "no requests"),
    ("arrival_s,input_tokens,output_tokens\n1,2", "line 2"),
    ("arrival_s,input_tokens,output_tokens\n1,2,3\nx,2,3", "line 3"),
    ("arrival_s,input_tokens,output_tokens\nnan,2,3", "line 2"), ("arrival_s,input_tokens,output_tokens\n1,-2,3", "line 2"),
    ('{"timestamp":1}', "line 1"), ('{"timestamp":1,"input_length":2,"output_length":3}\n{', "line 2")])
def test_read_trace_refuses_wrong_files(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        read_trace(text.splitlines())


@settings(deadline=None)
@given(st.text(max_size=200))
def test_read_trace_any_text_is_read_or_refused(text: str) -> None:
    for head in ("", "arrival_s,input_tokens,output_tokens\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "{"):
        try:
            read_trace((head + text).splitlines())
        except ValueError:
            continue
