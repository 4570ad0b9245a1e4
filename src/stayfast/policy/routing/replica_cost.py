"""The cost of sending a prompt to each of several replicas: the seconds until its first token, and what it costs others.

Problem: a cached prefix saves a prefill, but a filter ("only replicas with 80 % of it") makes a queue where the prefix is
popular, and a factor on the load follows its noise. Rule: cached tokens are only a difference of cost. The least cost goes
first; so the replica with the prefix is left as soon as its queue takes longer than to compute the prefix elsewhere:

    cost_s = (uncached + ahead + DECODE_TOKENS * n_running) / V_P + failed_s

    uncached    tokens of the prompt that are not in its cache: by the exact index, else by what was sent there
    ahead       uncached tokens of the calls there that wait for their first token: released by it, or at their end
    n_running   calls there. Each takes its share of the decode steps of the others
    V_P         prefill rate, uncached tokens per second (policy/resilience/prefill_rate.py)
    failed_s    0.1 s after a failure, doubled by each further one, a third after 10 s: a replica that fails at once is idle

Replicas whose cost is within 5 % or 2 ms of the least are equal: then the session's owner goes first, else the less loaded
of two at random. With weights, `ahead` and the running calls are divided by the weight.

Engine metrics only correct: a gauge is seconds old, so the load is what this process has in flight. Of the requests that an
engine reports as waiting or running, those beyond ours are other clients' ones, and are added. An unknown gauge adds
nothing and is no zero: it is not compared.
Source: Dynamo's KV router (prefill tokens + decode blocks), llm-d's token load; the exit rule is that of Preble.
DECODE_TOKENS: 200 decode steps that one more sequence makes 0.03 ms longer each, at 20,000 tokens a second. On simulated
conversations 0 and 128 gave the same p99 (0.36 and 0.35 s), 512 a longer one (0.42 s). FAILED_S: where 1 % of the calls fail
by chance, 0.1 gave a p99 of 0.51 s (without failures 0.45 s), 1.0 one of 1.17 s, as each failure emptied a replica, and 0
one of 0.91 s. When wrong: engines that run several prefills at once have a shorter queue than `ahead`; a full KV memory
delays prompts although no prefill waits; a slow replica shows only by its prefills that do not end, and by V_P. Adding what
recent first tokens were later than predicted was tried: noise of one replica moved requests to the others, and mean TTFT at
80 % load was 0.55 s instead of 0.32 s.
"""

from collections.abc import Sequence
from math import exp
from typing import Final

from msgspec import Struct

from stayfast.core.clock import Rng
from stayfast.core.engine_signals import EngineSignals
from stayfast.policy.resilience.prefill_rate import bound_rates
from stayfast.policy.routing.load_balancing import CandidateLoad, draw_less_loaded, move_probe_first, select_healthy

DECODE_TOKENS: Final = 128.0
NEAR, NEAR_S = 0.05, 0.002
FAILED_S: Final = 0.1
FAILED_DECAY_S: Final = 10.0
MAX_FAILED_S: Final = 60.0


class ReplicaWork(Struct, gc=False):
    """What one replica has to do for a prompt, and before it. Tokens."""

    cached: float  # of this prompt
    ahead: float
    n_running: float  # calls
    rate: float | None  # tokens per second; None: unknown
    failed_s: float = 0.0
    weight: float = 1.0


def costs_s(works: Sequence[ReplicaWork], n_prompt: float) -> list[float]:
    """The cost of each replica for a prompt of n_prompt tokens, in seconds."""
    rates = bound_rates([work.rate for work in works])
    return [(max(0.0, n_prompt - work.cached) + (work.ahead + DECODE_TOKENS * work.n_running) / work.weight) / rate
            + work.failed_s for work, rate in zip(works, rates, strict=True)]


def foreign_work(signals: EngineSignals, n_pending: float, n_in_flight: float, ahead: float,
                 usual_tokens: float) -> tuple[float, float]:
    """Tokens that wait and calls that run at an engine for other clients. n_pending: our calls without a first token;
    ahead: their tokens; n_in_flight: all our calls; usual_tokens: of a prompt.
    """
    tokens = n_running = 0.0
    if signals.waiting_tokens is not None:
        tokens = max(0.0, signals.waiting_tokens - ahead)
    elif signals.waiting is not None:
        tokens = max(0.0, signals.waiting - n_pending) * usual_tokens
    if signals.running is not None:
        n_running = max(0.0, signals.running - n_in_flight)
    return tokens, n_running


def order_by_cost(loads: Sequence[CandidateLoad], costs: Sequence[float], owner: int | None, rng: Rng) -> list[int]:
    """The candidates' indices, best first. owner: the index of the session's owner; None: no session."""
    healthy = select_healthy(loads, rng)
    least_s = min(costs[index] for index in healthy)
    most_s = max(least_s * (1 + NEAR), least_s + NEAR_S)
    near = [index for index in healthy if costs[index] <= most_s]
    first = owner if owner in near else near[0] if len(near) == 1 else draw_less_loaded(loads, near, rng)
    if len(loads) == 2:
        found = [first, 1 - first]
    else:
        is_healthy = set(healthy)
        found = sorted(range(len(loads)), key=lambda index: (index != first, index not in is_healthy, costs[index]))
    return move_probe_first(loads, found)


class FailurePenalty:
    """The seconds that recent failures of one replica add to its cost. Pure state; changed only by its owner."""

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds = self._at = 0.0

    def seconds(self, now: float) -> float:
        """At least 0."""
        return self._seconds * exp((self._at - now) / FAILED_DECAY_S) if self._seconds else 0.0

    def record_failure(self, now: float) -> None:
        """A call failed by the replica's fault."""
        self._seconds, self._at = min(MAX_FAILED_S, 2 * self.seconds(now) + FAILED_S), now

    def __repr__(self) -> str:
        return f"<FailurePenalty {self._seconds:.3g} s>"
