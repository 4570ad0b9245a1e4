"""A tenant that sends twenty times its share, in bursts, does not slow down the other tenants.

Three tenants have equal weights. Two send an even load, well below their share. Their times to the first token are measured
alone and beside the third one, in turns, over sockets and in virtual time. The third one's arrivals are as bursty as Azure's
code trace of 2023 (coefficient of variation 13): a hundred and more requests within milliseconds, then none.

When wrong: load, gateway and simulator share this machine's cores, and a burst occupies all three. The lag of the client's
event loop is part of its figures. The run in virtual time has no such disturbance.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from random import Random
from typing import Any, NamedTuple

from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, Verdict, mark_invalid
from stayfast.lab.harness.intervals import ratio_interval
from stayfast.lab.harness.load import LoadSpec, max_lag_ms, run_together, simulated_gateway, waits_s
from stayfast.lab.harness.processes import create_keys
from stayfast.lab.harness.virtual import UPSTREAM, VirtualTenants, chat_request, run_virtual_in_thread
from stayfast.lab.load.arrivals import Gamma
from stayfast.lab.load.result import Result
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.testing.simloop import SimLoop

WITHIN, SOCKETS_WITHIN = 10.0, 25.0  # %
QUIET, NOISY = ("quiet a", "quiet b"), "noisy"
TTFT_S, SIGMA, GAP_S, N_OUTPUT = 0.3, 0.25, 0.01, 40
N_PLACES = 32
WARMUP_S = 10.0  # until the gateway has measured the quiet tenants' usage
SHARE_RPS = N_PLACES / (TTFT_S + N_OUTPUT * GAP_S) / 3
QUIET_RPS = SHARE_RPS / 2
TIMES = 20.0
BURSTS = Gamma(TIMES * SHARE_RPS, 1 / 13**2)
PROVIDER = ProviderConfig(ttft=Mixture(TTFT_S, SIGMA), gaps=GapConfig(GAP_S, 0.0, 4), fills_max_tokens=True)


@dataclass(frozen=True, slots=True)
class Noisy:
    """real_s of an extent: of each load in one round. admission: the gateway's."""

    full: Extent = Extent(real_s=40.0, n_rounds=4, virtual_s=1000.0)
    quick: Extent = Extent(real_s=15.0, virtual_s=60.0)
    admission: Mapping[str, Any] = field(default_factory=lambda: {"max_in_flight": N_PLACES})

    name = "noisy"
    statement = (f"Beside a tenant that sends {TIMES:g} times its share in bursts, the other tenants' p99 to the first "
                 f"token is at most {WITHIN:g} % longer in virtual time, and at most {SOCKETS_WITHIN:g} % over sockets, "
                 "where load, gateway and simulator share the machine. None of their requests fails.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        conditions.report_progress(f"{extent.virtual_s:g} s in virtual time, alone and beside the noisy tenant")
        config = AdmissionConfig(self.admission["max_in_flight"]) if self.admission else AdmissionConfig()
        alone, _ = await run_virtual_in_thread(run_in_virtual_time, extent.virtual_s, config, seed, has_noise=False)
        with_noise, counts = await run_virtual_in_thread(run_in_virtual_time, extent.virtual_s, config, seed, has_noise=True)
        rounds = await self._run_over_sockets(extent, conditions)
        figures, spoiled = judge_rounds(rounds)
        return ClaimResult((*make_figures("virtual time", alone, with_noise, WITHIN), _noisy_figure("virtual time", *counts),
                        *figures), spoiled=spoiled)

    async def _run_over_sockets(self, extent: Extent, conditions: Conditions) -> "list[NoisyRound]":
        seed = conditions.seed
        names = [name.replace(" ", "-") for name in (*QUIET, NOISY)]
        keys, digests = create_keys(names)
        quiet = LoadSpec(extent.real_s, QUIET_RPS, n_output=N_OUTPUT, warmup_s=WARMUP_S)
        loads = [replace(quiet, key=keys[name], arrivals=BURSTS if name == NOISY else None) for name in names]
        settings = {"defaults": {"limit": {"mode": "off"}}, "admission": self.admission, "server": {"keys": digests}}
        rounds = []
        async with simulated_gateway({UPSTREAM: replace(PROVIDER, seed=seed)}, seed, settings) as (_, url):
            for number in range(extent.n_rounds):
                conditions.report_progress(f"round {number + 1} of {extent.n_rounds}: alone, then beside the noisy tenant")
                alone = await run_together(loads[:2], url, seed + 10 * number)
                *with_noise, noisy = await run_together(loads, url, seed + 10 * number + 5)
                rounds.append(NoisyRound(alone, with_noise, noisy))
        return rounds


class NoisyRound(NamedTuple):
    """The results of the quiet tenants alone and beside the noisy one, and of the noisy one."""

    alone: Sequence[Result]
    with_noise: Sequence[Result]
    noisy: Result


async def run_in_virtual_time(loop: SimLoop, seconds: float, admission: AdmissionConfig, seed: int, *,
                              has_noise: bool) -> tuple[list[float], tuple[int, int]]:
    """The quiet tenants' times to the first token (infinite for a failed request), and the noisy tenant's numbers of
    requests and of rejected requests.
    """
    names = (*QUIET, NOISY) if has_noise else QUIET
    tenants = VirtualTenants(PROVIDER, dict.fromkeys(names, TenantConfig()), admission, loop, seed)
    tenants.ledger.is_open = False
    loop.call_at(WARMUP_S, tenants.ledger.open)
    request = chat_request(20, N_OUTPUT)
    async with asyncio.TaskGroup() as group:

        async def send_requests(name: str, arrivals: Gamma, rng: Random) -> None:
            for at_s in arrivals.instants(rng):
                if at_s > WARMUP_S + seconds:
                    return
                await asyncio.sleep(at_s - loop.now())
                group.create_task(tenants.send(name, request))

        for n, name in enumerate(names):
            group.create_task(send_requests(name, BURSTS if name == NOISY else Gamma(QUIET_RPS), Random(seed + n)))
    totals = tenants.ledger.by_tenant
    quiet = [ttft_s for name in QUIET for ttft_s in totals[name].ttft_s]
    quiet += [inf] * sum(totals[name].n - len(totals[name].ttft_s) for name in QUIET)
    return quiet, (totals[NOISY].n, totals[NOISY].n_shed) if has_noise else (0, 0)


def judge_rounds(rounds: Sequence[NoisyRound]) -> tuple[tuple[Figure, ...], str | None]:
    """The figures over sockets. Also the reason why they are invalid, if they fall short while this process was late by half
    of what they allow.
    """
    figures = _socket_figures(rounds)
    lag_ms = max_lag_ms([each.noisy for each in rounds])
    is_late = any(figure.unit == "%" and figure.verdict is Verdict.FALLS_SHORT for figure in figures)
    allowed_ms = figures[0].value * SOCKETS_WITHIN / 100
    spoiled = (f"the client's own loop stood still for {lag_ms:.0f} ms, which may explain the longer p99"
               if is_late and lag_ms > allowed_ms / 2 else None)
    judged = [figure for each in figures for figure in mark_invalid((each,), spoiled if each.unit == "%" else None)]
    return tuple(judged), spoiled


def _socket_figures(rounds: Sequence[NoisyRound]) -> list[Figure]:
    alone, with_noise = [[[wait_s for result in results for wait_s in waits_s(result)] for results in both]
                         for both in ([each.alone for each in rounds], [each.with_noise for each in rounds])]
    statuses = [status for each in rounds for status in each.noisy.samples.ints["status"]]
    return [*make_figures("sockets", list(chain(*alone)), list(chain(*with_noise)), SOCKETS_WITHIN),
            _noisy_figure("sockets", len(statuses), statuses.count(503)),
            Figure("sockets: the client's own loop was late by at most", max_lag_ms([each.noisy for each in rounds]), "ms")]


def make_figures(where: str, alone: Sequence[float], with_noise: Sequence[float], within: float) -> list[Figure]:
    low, high = ratio_interval(with_noise, alone, 0.99, is_paired=False)
    return [
        Figure(f"{where}: p99 of the quiet, alone (n={len(alone)})", ExactDistribution(alone).quantile(0.99) * 1e3, "ms"),
        Figure(f"{where}: p99 of the quiet, beside the noisy one", ExactDistribution(with_noise).quantile(0.99) * 1e3, "ms"),
        Figure(f"{where}: p99 moved by", moved_percent(alone, with_noise), "%", within,
               low=(low - 1) * 100, high=(high - 1) * 100),
        Figure.count(f"{where}: quiet requests that failed", with_noise.count(inf)),
    ]


def _noisy_figure(where: str, n: int, n_shed: int) -> Figure:
    return Figure.exact(f"{where}: of the noisy one's {n:,} rejected", n_shed / n * 100, "%", 50.0, Sense.AT_LEAST)


def moved_percent(alone: Sequence[float], with_noise: Sequence[float]) -> float:
    """By how many percent the p99 with noise is above the p99 alone."""
    return (ExactDistribution(with_noise).quantile(0.99) / ExactDistribution(alone).quantile(0.99) - 1) * 100
