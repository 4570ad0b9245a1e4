"""Finds out whether the smaller tiers of a route are enough: advice before a call, and comparisons after it, off the path.

    advise       the smallest tier below the settings' start for which it is proven (`policy/tiers/evidence.py`)
    observe      of a random sample of the answers, the same request is answered by the other tier as well, in the
                 background, and the answers are compared. The large tier's answer is the measure
    note_failed  an answer that failed its checks, and was replaced, is a label, too

The calls have the role SHADOW: they are looked up in no cache, wait behind all clients, and belong to no tenant. Only
requests that may be sent twice are compared. Nothing of an answer is stored: a label is a vector and a yes or no.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.types import AnswerSummary, Api, Chunk, Request
from stayfast.pipeline.tasks import BackgroundTasks
from stayfast.pipeline.tiers.answer_verifier import CheckedAnswers, read_compared_text
from stayfast.pipeline.tiers.evidence_book import EvidenceBook
from stayfast.pipeline.tiers.tier_comparison import TierComparison
from stayfast.pipeline.tiers.verification import SHADOW, OnAnswer, TierFacts
from stayfast.policy.tiers.enough import EnoughConfig
from stayfast.policy.tiers.exploration import ExplorationBudget

if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats

_COMPARED_APIS: Final = frozenset((Api.CHAT, Api.COMPLETIONS, Api.MESSAGES, Api.RESPONSES))
_MAX_COUNTS: Final = 64
QuestionVector = Callable[[Request], "Floats | None"]  # None: the request has no question that can be embedded


class TrialReply(Protocol):
    """As `stages.relay.Reply`."""

    @property
    def summary(self) -> AnswerSummary: ...

    @property
    def degraded(self) -> str | None:
        """What was done instead of failing; None: the tier itself answered."""

    async def next(self) -> Chunk | None:
        """The next part; None after the last."""

    async def aclose(self) -> None:
        """Release it."""


ServeTier = Callable[[Request, str], Awaitable[TrialReply]]  # the request, answered by the tier of this name


class _Trial(msgspec.Struct, frozen=True):
    """A comparison. small: the tier that is judged. other: the tier that answers in the background."""

    request: Request
    facts: TierFacts
    small: str
    other: str
    was_given: bool
    p_drawn: float


class TierTrials:
    """The evidence of one route, and how it is collected. A `TierAdvisor`. Belongs to one loop."""

    def __init__(self, route: str, config: EnoughConfig, book: EvidenceBook, *, checks: CheckedAnswers,
                 comparison: TierComparison, serve: ServeTier, vector_of: QuestionVector | None, holds_streams: bool,
                 clock: Clock, rng: Random) -> None:
        """vector_of: None: there is no embedder. rng: draws the sample."""
        self.config = config
        self.book = book
        self.budget = ExplorationBudget(config.tokens_per_hour, config.max_running)
        self.counts: dict[tuple[str, str], int] = {}  # by tier and result: enough, not_enough, unclear, failed
        self.comparison = comparison
        self._route = route
        self.checks = checks
        self._serve = serve
        self._vector_of = vector_of
        self._holds_streams = holds_streams
        self._clock = clock
        self._rng = rng
        self._tasks = BackgroundTasks()

    def advise(self, request: Request, facts: TierFacts) -> str | None:
        """The smallest tier that is proven to be enough; None: no opinion. Its reason is noted."""
        tier, why = self.explain(request, facts)
        if why:
            facts.note(why)
        return tier

    def explain(self, request: Request, facts: TierFacts) -> tuple[str | None, str]:
        """The advice, and its reason for the record of the request; empty without advice."""
        mode = self.config.mode
        if facts.role.startswith(SHADOW):
            return facts.role[len(SHADOW) + 1:], ""
        if mode not in ("cascade", "learned") or facts.role or (
                mode == "cascade" and request.stream and not self._holds_streams):
            return None, ""
        smaller = _tiers_below(facts)
        row = self._vector_of(request) if mode == "learned" and self._vector_of is not None and smaller else None
        for tier in smaller:
            opinion = self.book.judge(facts.tenant, tier, row, self._clock.now())
            if opinion is not None:
                return tier, f"{tier} is enough: {opinion.describe()}"
            if mode == "cascade" and self.config.trust_checks and not self.book.is_dropped(facts.tenant, tier):
                return tier, f"{tier} is enough if its answer passes the checks"
        return None, ""

    def observe(self, request: Request, facts: TierFacts, served: str, advised: str) -> OnAnswer | None:
        """What is to be called with the whole answer of the tier `served`; None: this answer is not compared: by chance, or
        because another tier was advised, and had no time or failed.
        """
        if facts.role or served != advised or request.api not in _COMPARED_APIS:
            return None
        smaller = _tiers_below(facts)
        was_given = served in smaller
        if was_given:
            self.book.note_answered(facts.tenant, served, self._clock.now())
        p_drawn = self.config.audit if was_given else self.config.share
        if not smaller or self._rng.random() >= p_drawn or not _may_repeat(request):
            return None
        self.comparison.note_call()
        now = self._clock.now()
        if not self.budget.may_start(now):
            return None
        small = served if was_given else smaller[self._rng.randrange(len(smaller))]
        trial = _Trial(request, facts, small, facts.start if was_given else small, was_given, p_drawn / (
            1 if was_given else len(smaller)))

        def compare(data: bytes, summary: AnswerSummary) -> None:
            if self.budget.may_start(self._clock.now()):
                self.budget.start()
                self._tasks.spawn(self._compare(trial, data, summary))

        return compare

    def note_failed(self, request: Request, facts: TierFacts, tier: str) -> None:
        """A tier's answer failed its checks, and was replaced. In a cascade this is no evidence about answers that pass."""
        if self.config.mode == "learned" and not facts.role:
            self._learn(request, facts, tier, is_enough=False, p_drawn=1.0, was_given=False)

    async def _compare(self, trial: _Trial, data: bytes, summary: AnswerSummary) -> None:
        """Answer the request by the other tier, and learn from the comparison."""
        n_tokens: int | None = 0
        try:
            reply = await self._serve(trial.request, trial.other)
            async with aclosing(reply):
                other = await _read_all(reply)
            usage = reply.summary.usage
            n_tokens = None if usage is None else usage.input_total + usage.output
            if reply.degraded is None:
                await self._judge(trial, (data, summary), (other, reply.summary))
            else:
                self._count(trial.small, "failed")
        except StayfastError:
            self._count(trial.small, "failed")
        finally:
            self.budget.end(n_tokens)

    async def _judge(self, trial: _Trial, served: tuple[bytes, AnswerSummary], made: tuple[bytes, AnswerSummary]) -> None:
        small, large = (served, made) if trial.was_given else (made, served)
        request = trial.request
        is_passed = trial.was_given or not await self.checks.find_failure(request, *small)
        if not is_passed and self.config.mode == "cascade":
            self._count(trial.small, "replaced")  # it would not be given to a client
            return
        is_enough: bool | None = False
        if is_passed:
            one, other = read_compared_text(request, small[0]), read_compared_text(request, large[0])
            if one is None or other is None:
                self._count(trial.small, "unclear")
                return
            is_enough = await self.comparison.is_same(one, other, "", request.model)
        if is_enough is None:
            self._count(trial.small, "unclear")
            return
        self._learn(request, trial.facts, trial.small, is_enough=is_enough, p_drawn=trial.p_drawn, was_given=trial.was_given)

    def _learn(self, request: Request, facts: TierFacts, tier: str, *, is_enough: bool, p_drawn: float,
               was_given: bool) -> None:
        row = self._vector_of(request) if self._vector_of is not None and self.config.mode != "cascade" else None
        has_dropped = self.book.learn(facts.tenant, tier, row, is_enough=is_enough, p_drawn=p_drawn, was_given=was_given,
                                      miss_share=self.comparison.miss_share)
        self._count(tier, "enough" if is_enough else "not_enough")
        if has_dropped:
            self._count(tier, "dropped")

    def _count(self, tier: str, result: str) -> None:
        if (tier, result) in self.counts or len(self.counts) < _MAX_COUNTS:
            self.counts[tier, result] = self.counts.get((tier, result), 0) + 1

    def __repr__(self) -> str:
        return f"<TierTrials of {self._route}: {self.book!r}, {self.budget!r}>"


def _tiers_below(facts: TierFacts) -> tuple[str, ...]:
    """The tiers that are smaller than the settings' start."""
    return facts.tiers[:facts.tiers.index(facts.start)] if facts.start in facts.tiers else ()


def _may_repeat(request: Request) -> bool:
    return not (request.is_stateful or request.is_stored or request.is_background or request.n_choices > 1)


async def _read_all(reply: TrialReply) -> bytes:
    parts = []
    while (chunk := await reply.next()) is not None:
        parts.append(chunk.data)
    return b"".join(parts)
