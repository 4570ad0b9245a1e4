"""One tenant that sends twenty times its share, in bursts, is the others' neighbour and not their trouble.

Three tenants of equal weight. Two send well below their share, evenly; their times to the first token are taken alone, and
beside the third one, in turns, over sockets and in virtual time. The third one's arrivals have the burstiness of Azure's
code trace of 2023 (coefficient of variation 13): a hundred and more requests within milliseconds, then nothing.

When wrong: load, gateway and simulator share this machine's cores, and a burst keeps all three busy; what the client's own
loop was late is part of its figures. The run in virtual time has no such share.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from random import Random
from typing import Any

from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, Sense
from stayfast.lab.harness.load import LoadSpec, ask, largest_lag_ms, simulated_gateway, waits_s
from stayfast.lab.harness.virtual import UPSTREAM, VirtualTenants, chat, run_virtual_in_thread
from stayfast.lab.load.arrivals import Gamma
from stayfast.lab.load.result import Result
from stayfast.lab.load.stats import Exact
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.server.auth import new_key
from stayfast.testing.simloop import SimLoop

WITHIN = 10.0  # %
QUIET, NOISY = ("quiet a", "quiet b"), "noisy"
TTFT_S, SIGMA, GAP_S, N_OUTPUT = 0.3, 0.25, 0.01, 40
N_PLACES = 32
WARMUP_S = 10.0  # until the gateway knows what the quiet ones use
SHARE_RPS = N_PLACES / (TTFT_S + N_OUTPUT * GAP_S) / 3
QUIET_RPS = SHARE_RPS / 2
TIMES = 20.0
BURSTS = Gamma(TIMES * SHARE_RPS, 1 / 13**2)
PROVIDER = ProviderConfig(ttft=Mixture(TTFT_S, SIGMA), gaps=GapConfig(GAP_S, 0.0, 4), fills_max_tokens=True)


@dataclass(frozen=True, slots=True)
class Noisy:
    """real_s of an extent: of each load in one round. slack: what sockets may move by, over WITHIN."""

    full: Extent = Extent(real_s=40.0, n_rounds=4, virtual_s=1000.0)
    quick: Extent = Extent(real_s=15.0, virtual_s=60.0, slack=3.0)  # a p99 of 250 requests is off by 6 % by chance
    admission: Mapping[str, Any] = field(default_factory=lambda: {"max_in_flight": N_PLACES})  # the gateway's

    name = "noisy"
    says = (f"Beside a tenant that sends {TIMES:g} times its share in bursts, the others' p99 to the first token moves by "
            f"less than {WITHIN:g} %.")

    async def run(self, conditions: Conditions) -> Finding:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        conditions.report_progress(f"{extent.virtual_s:g} s in virtual time, alone and beside")
        config = AdmissionConfig(self.admission["max_in_flight"]) if self.admission else AdmissionConfig()
        alone, _ = await run_virtual_in_thread(in_virtual_time, extent.virtual_s, config, seed, has_noise=False)
        with_noise, counts = await run_virtual_in_thread(in_virtual_time, extent.virtual_s, config, seed, has_noise=True)
        rounds = await self._over_sockets(extent, conditions)
        figures = [*_figures("virtual time", alone, with_noise, WITHIN), *_of_noisy("virtual time", counts)]
        return Finding((*figures, *_of_rounds(rounds, WITHIN * extent.slack)))

    async def _over_sockets(self, extent: Extent, conditions: Conditions) -> "list[_Round]":
        seed = conditions.seed
        keys = {name.replace(" ", "-"): new_key(os.urandom(24)) for name in (*QUIET, NOISY)}
        quiet = LoadSpec(extent.real_s, QUIET_RPS, n_output=N_OUTPUT, warmup_s=WARMUP_S)
        loads = [replace(quiet, key=key, arrivals=BURSTS if name == NOISY else None) for name, (key, _) in keys.items()]
        settings = {"defaults": {"limit": {"mode": "off"}}, "admission": self.admission,
                    "server": {"keys": {name: digest for name, (_, digest) in keys.items()}}}
        rounds = []
        async with simulated_gateway({UPSTREAM: replace(PROVIDER, seed=seed)}, seed, settings) as (_, url):
            for number in range(extent.n_rounds):
                conditions.report_progress(f"round {number + 1} of {extent.n_rounds}: alone, then beside")
                alone = await _ask_all(url, loads[:2], seed + 10 * number)
                with_noise = await _ask_all(url, loads, seed + 10 * number + 5)
                rounds.append(_Round(alone, with_noise[:2], with_noise[2]))
        return rounds


@dataclass(frozen=True, slots=True)
class _Round:
    alone: Sequence[Result]
    with_noise: Sequence[Result]
    noisy: Result


async def _ask_all(url: str, loads: Sequence[LoadSpec], seed: int) -> list[Result]:
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(load, {"gateway": url}, seed + n)) for n, load in enumerate(loads)]
    return [task.result()["gateway"] for task in asking]


async def in_virtual_time(loop: SimLoop, seconds: float, admission: AdmissionConfig, seed: int, *,
                          has_noise: bool) -> tuple[list[float], Sequence[float]]:
    """Times to the first token of the quiet ones (infinite for a failed request); of the noisy one: requests, rejected."""
    names = (*QUIET, NOISY) if has_noise else QUIET
    tenants = VirtualTenants(PROVIDER, dict.fromkeys(names, TenantConfig()), admission, loop, seed)
    tenants.books.is_open = False
    loop.call_at(WARMUP_S, tenants.books.begin)
    request = chat(20, N_OUTPUT)
    async with asyncio.TaskGroup() as group:

        async def clients(name: str, arrivals: Gamma, rng: Random) -> None:
            for at_s in arrivals.instants(rng):
                if at_s > WARMUP_S + seconds:
                    return
                await asyncio.sleep(at_s - loop.now())
                group.create_task(tenants.ask(name, request))

        for n, name in enumerate(names):
            group.create_task(clients(name, BURSTS if name == NOISY else Gamma(QUIET_RPS), Random(seed + n)))
    books = tenants.books.of
    quiet = [ttft_s for name in QUIET for ttft_s in books[name].ttft_s]
    quiet += [inf] * sum(books[name].n - len(books[name].ttft_s) for name in QUIET)
    return quiet, (books[NOISY].n, books[NOISY].n_shed) if has_noise else ()


def _of_rounds(rounds: Sequence[_Round], within: float) -> list[Figure]:
    alone, with_noise = [[[wait_s for result in results for wait_s in waits_s(result)] for results in both]
                     for both in ([each.alone for each in rounds], [each.with_noise for each in rounds])]
    by_round = [moved_percent(*pair) for pair in zip(alone, with_noise, strict=True)]
    statuses = [status for each in rounds for status in each.noisy.samples.ints["status"]]
    figures = _figures("sockets", list(chain(*alone)), list(chain(*with_noise)), within, by_round)
    return [*figures, *_of_noisy("sockets", (len(statuses), statuses.count(503))),
            Figure("sockets: the client's own loop was late by at most", largest_lag_ms([each.noisy for each in rounds]),
                   "ms")]


def _figures(where: str, alone: Sequence[float], with_noise: Sequence[float], within: float,
             by_round: Sequence[float] = ()) -> list[Figure]:
    low, high = (min(by_round), max(by_round)) if by_round else (None, None)
    return [
        Figure(f"{where}: p99 of the quiet, alone (n={len(alone)})", Exact(alone).at(0.99) * 1e3, "ms"),
        Figure(f"{where}: p99 of the quiet, beside the noisy one", Exact(with_noise).at(0.99) * 1e3, "ms"),
        Figure(f"{where}: p99 moved by", moved_percent(alone, with_noise), "%", within, low=low, high=high),
        Figure(f"{where}: quiet requests that failed", float(with_noise.count(inf)), "", 0.0),
    ]


def _of_noisy(where: str, counts: Sequence[float]) -> list[Figure]:
    n, n_shed = counts
    return [Figure(f"{where}: of the noisy one's {n:,.0f} turned away", n_shed / n * 100, "%", 50.0, Sense.AT_LEAST)]


def moved_percent(alone: Sequence[float], with_noise: Sequence[float]) -> float:
    return (Exact(with_noise).at(0.99) / Exact(alone).at(0.99) - 1) * 100
