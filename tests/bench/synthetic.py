"""Results as a run would give them, from a seed: a jagged target with a bad minute, stalls, errors and a 429 storm."""

from dataclasses import dataclass
from math import nan
from random import Random

from stayfast.lab.load.result import ClientHealth, Error, GapCounts, LoadSlo, Mode, Result, Sample, Samples, Subject


@dataclass(frozen=True)
class Scenario:
    """What the synthetic target does."""

    n: int = 2000
    rps: float = 20.0
    ttft_s: float = 0.55
    tail_share: float = 0.03
    tail_s: float = 3.6
    error_share: float = 0.01
    bad_from: float = 0.55  # shares of the run between which everything is slower
    bad_to: float = 0.65
    bad_factor: float = 3.0
    token_s: float = 0.015
    n_output: int = 120
    lateness_s: float = 0.0003


def result(scenario: Scenario | None = None, seed: int = 1, label: str = "gateway", *, health: ClientHealth | None = None,
           slo: LoadSlo | None = None, model: str = "gpt-4o-like") -> Result:
    """One result; the same seed gives the same."""
    scenario = scenario or Scenario()
    rng = Random(seed)
    samples, gaps = Samples(), GapCounts()
    at_s = 0.0
    for number in range(scenario.n):
        at_s += rng.expovariate(scenario.rps)
        samples.add(_sample(number, at_s, scenario, rng, gaps))
    return Result(
        label=label, subject=Subject(label, "http://127.0.0.1:8090/v1", "openai-chat", model),
        command=f"stayfast bench --target {label}=http://127.0.0.1:8090/v1 --rate {scenario.rps:g} --seed {seed}",
        machine={"CPU": "synthetic, 2 cores", "Python": "3.11.2", "stayfast": "0.1.0"}, began_at_wall=1.8e9, seed=seed,
        mode=Mode.OPEN, workload={"arrivals": "poisson", "rate": f"{scenario.rps:g}/s", "output tokens": "lognormal, conv"},
        duration_s=at_s, offered_rps=scenario.rps, samples=samples, gaps=gaps,
        health=health or ClientHealth(0.0002, 0.0014, 0.006, 0.0001, 0.002, 0.008, scenario.rps, scenario.rps, 0.34),
        slo=slo if slo is not None else LoadSlo(ttft_s=1.5, e2e_s=8.0, gap_max_s=1.0))


def _sample(number: int, at_s: float, scenario: Scenario, rng: Random, gaps: GapCounts) -> Sample:
    when = at_s * scenario.rps / scenario.n
    slow = scenario.bad_factor if scenario.bad_from <= when < scenario.bad_to else 1.0
    sent_s = at_s + rng.expovariate(1 / scenario.lateness_s)
    queue_s = rng.expovariate(1 / 0.002) * slow ** 3
    is_tail = rng.random() < scenario.tail_share
    call_s = rng.lognormvariate(0, 0.45 if is_tail else 0.28) * (scenario.tail_s if is_tail else scenario.ttft_s) * slow
    headers_s = sent_s + queue_s + call_s
    first_s = headers_s + 0.004
    if rng.random() < scenario.error_share * slow:
        return _failed(number, at_s, sent_s, headers_s, rng)
    n_output = max(1, int(rng.lognormvariate(0, 0.8) * scenario.n_output))
    n_chunks = min(n_output, 12)
    now_s, gap_max_s = first_s, nan
    for _ in range(n_chunks - 1):
        gap_s = rng.lognormvariate(0, 0.3) * scenario.token_s * n_output / n_chunks + (rng.random() < 0.002) * 1.5
        now_s += gap_s
        gaps.add(now_s, gap_s)
        gap_max_s = gap_s if not gap_max_s > gap_s else gap_max_s
    timing = (f'admit;dur={queue_s * 1e3:.2f};desc="of 500", cache;dur=0.08;desc="of 50", route;dur=0.05, '
              f'call;dur={call_s * 1e3:.2f};desc="of 4000", relay;dur={(now_s - first_s) * 1e3:.2f}')
    return Sample(number, at_s, sent_s, headers_s, first_s, now_s, now_s + 0.001, rng.randrange(50, 4000), n_output,
                  n_chunks, gap_max_s, shown_s=first_s, status=200, n_upstream_attempts=1 + is_tail, server_timing=timing)


def _failed(number: int, at_s: float, sent_s: float, headers_s: float, rng: Random) -> Sample:
    error = rng.choice((Error.TIMEOUT, Error.RATE_LIMITED, Error.RATE_LIMITED, Error.STATUS, Error.TRUNCATED, Error.RESET))
    if error is Error.TIMEOUT:
        return Sample(number, at_s, sent_s, ended_s=sent_s + 10, error=error)
    if error is Error.TRUNCATED:
        return Sample(number, at_s, sent_s, headers_s, headers_s, headers_s + 0.3, headers_s + 0.3, 80, 9, 9,
                      0.1, status=200, error=error)
    status = {Error.RATE_LIMITED: 429, Error.STATUS: 503}.get(error, 0)
    return Sample(number, at_s, sent_s, sent_s + 0.01 if status else nan, ended_s=sent_s + 0.011, status=status,
                  error=error)
