"""An attempt at a tier, from which the speed of the tier is learned."""

from typing import Any

from msgspec.structs import replace

from stayfast.core.types import Outcome, Usage
from stayfast.pipeline.attempts.attempt import Attempt
from stayfast.pipeline.routing.selector import AttemptLearner


class TieredAttempt(Attempt):
    """As `Attempt`; its end is reported to the learner of its tier, once."""

    __slots__ = ("learner",)

    def __init__(self, learner: AttemptLearner, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self.learner = learner

    def _usage(self, reported: Usage | None, outcome: Outcome, *, is_estimated: bool) -> Usage | None:
        """With the service tier of the request where the provider reports none: it is the one that is probably billed."""
        usage = super()._usage(reported, outcome, is_estimated=is_estimated)
        if usage is None or usage.tier or not self.learner.service_tier:
            return usage
        return replace(usage, tier=self.learner.service_tier)

    def end(self, outcome: Outcome, fault: str | None = None, **named: Any) -> None:
        """End it as `Attempt` does; only the first call counts."""
        is_over = self.done is not None
        super().end(outcome, fault, **named)
        if self.done is not None and not is_over:
            self.learner.learn(self.done, len(self.call.request.body), is_incremental=self.is_incremental)
