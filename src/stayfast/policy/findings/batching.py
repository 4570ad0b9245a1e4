"""How an upstream batches, from the timings of its streamed answers: continuously, statically, or one at a time.

Problem: with static batching a request waits until the longest answer of the running batch has ended, so TTFT steps by whole
answers; no API states which it is. Rule: look for first tokens that come in the middle of another answer.

    joined   its first token comes APART_S after that of another answer which is written for APART_S more
    chance   a call that joined, or that started while another answer was written for more than AHEAD times the shortest
             usual TTFT (the FAST quantile) from then on
    overlap  two answers are written at the same time

    joined / chances  <= FEW    no call joins a running batch: static where answers overlap, else single
    joined / chances  >= MOST   and the speed of an answer falls with the number of its companions
                                (correlation of the logarithms <= -FALLS): continuous
    anything else               unknown

At a hosted provider calls join, too, because they run on different machines. But their speed does not depend on our own
calls, which are a small part of its load; hence the second condition. Sums of several workers are added.
Source: iteration-level scheduling (Yu et al., Orca, OSDI 2022); the test is ours.
When wrong: answers that are not streamed show nothing. An engine whose step time hardly grows with its batch counts as
unknown, and so does one of which this gateway is a small part. A client that reads slowly prolongs its answer: FEW is not 0.
Behind a load balancer, replicas with static batches look like machines of a hosted provider: unknown.
"""

from collections.abc import Iterable, Sequence
from math import log
from typing import Final, Literal, NamedTuple

import msgspec

from stayfast.policy.findings.correlation import PairSums

Batching = Literal["continuous", "static", "single", ""]
MIN_CHANCES: Final = 20
MIN_SPEEDS: Final = 40
FEW: Final = 0.1
MOST: Final = 0.7
FALLS: Final = 0.4
AHEAD: Final = 2.0
APART_S: Final = 0.03
FAST: Final = 0.01
MIN_OUTPUT: Final = 8  # tokens of an answer whose speed is used
_FEW_OVERLAPS: Final = 0.1


class CallTiming(NamedTuple):
    """One streamed answer. Instants on one axis: start of the call, first and last content."""

    began_at: float
    first_at: float
    ended_at: float
    n_output: int


class BatchingEvidence(msgspec.Struct, array_like=True, gc=False):
    """Counts of calls; `speeds`: logarithms of companions and of output tokens per second."""

    n_calls: int = 0
    n_overlapping: int = 0
    n_chances: int = 0
    n_joined: int = 0
    speeds: PairSums = msgspec.field(default_factory=PairSums)

    def merge(self, other: "BatchingEvidence") -> None:
        self.n_calls += other.n_calls
        self.n_overlapping += other.n_overlapping
        self.n_chances += other.n_chances
        self.n_joined += other.n_joined
        self.speeds.merge(other.speeds)


def weigh_calls(calls: Sequence[CallTiming]) -> BatchingEvidence:
    """The evidence of calls of one upstream, in any order. The cost grows with the square of calls at a time."""
    found = BatchingEvidence(n_calls=len(calls))
    if not calls:
        return found
    waits_s = sorted(call.first_at - call.began_at for call in calls)
    ahead_s = max(APART_S, AHEAD * waits_s[int(FAST * len(waits_s))])
    for call, others in _companions(calls):
        joined = any(other.first_at < call.first_at - APART_S and other.ended_at > call.first_at + APART_S
                     for other in others)
        found.n_joined += joined
        found.n_chances += joined or any(other.first_at <= call.began_at and other.ended_at > call.began_at + ahead_s
                                         for other in others)
        spent_s = call.ended_at - call.first_at
        if spent_s <= 0:
            continue
        shared_s = sum(max(0.0, min(call.ended_at, other.ended_at) - max(call.first_at, other.first_at)) for other in others)
        found.n_overlapping += shared_s > 0
        if call.n_output >= MIN_OUTPUT:
            found.speeds.add(log(1.0 + shared_s / spent_s), log((call.n_output - 1) / spent_s))
    return found


def judge_batching(evidence: BatchingEvidence) -> Batching:
    """The verdict; empty: unknown."""
    if evidence.n_chances < MIN_CHANCES:
        return ""
    joined = evidence.n_joined / evidence.n_chances
    if joined <= FEW:
        return "static" if evidence.n_overlapping > _FEW_OVERLAPS * evidence.n_calls else "single"
    r = evidence.speeds.correlation if evidence.speeds.n >= MIN_SPEEDS else None
    return "continuous" if joined >= MOST and r is not None and r <= -FALLS else ""


def _companions(calls: Sequence[CallTiming]) -> Iterable[tuple[CallTiming, list[CallTiming]]]:
    """Each call with the others that run at some time while it does."""
    ordered = sorted(calls)
    longest_s = max(call.ended_at - call.began_at for call in ordered)
    first = 0
    for number, call in enumerate(ordered):
        while ordered[first].began_at < call.began_at - longest_s:
            first += 1
        others = [other for other in ordered[first:number] if other.ended_at > call.began_at]
        for other in ordered[number + 1:]:
            if other.began_at >= call.ended_at:
                break
            others.append(other)
        yield call, others
