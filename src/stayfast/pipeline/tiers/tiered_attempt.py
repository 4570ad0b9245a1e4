"""An attempt at a tier, from which the speed of the tier is learned."""

from typing import Any

from stayfast.core.types import Outcome
from stayfast.pipeline.attempts.attempt import Attempt
from stayfast.pipeline.routing.selector import AttemptLearner


class TieredAttempt(Attempt):
    """As `Attempt`; its end is reported to the learner of its tier, once."""

    __slots__ = ("learner",)

    def __init__(self, learner: AttemptLearner, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self.learner = learner

    def end(self, outcome: Outcome, fault: str | None = None, **named: Any) -> None:
        """End it as `Attempt` does; only the first call counts."""
        is_over = self.done is not None
        super().end(outcome, fault, **named)
        if self.done is not None and not is_over:
            self.learner.learn(self.done, len(self.call.request.body), is_incremental=self.is_incremental)
