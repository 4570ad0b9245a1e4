"""What a request has used, for quotas."""

from typing import NamedTuple

from stayfast.core.events import AttemptDone
from stayfast.core.types import Outcome, Usage
from stayfast.pipeline.attempts.attempt import Attempt
from stayfast.pipeline.exchange import OutcomeRecord
from stayfast.policy.admission.quota import NOTHING, Amount


class Used(NamedTuple):
    """Tokens in and out, cost, time to the first token, prompt tokens that an upstream computed, and whether the client left
    before that token.
    """

    n_input: float
    n_output: float
    cost_usd: float
    ttft_s: float | None
    n_read: int | None
    has_left: bool

    def amount(self, record: OutcomeRecord) -> Amount:
        """What a quota is charged: nothing for a request that was rejected before any upstream was called."""
        return (1.0, self.n_input + self.n_output, self.cost_usd) if record.attempts else NOTHING


def count_used(record: OutcomeRecord, n_estimated: float) -> Used:
    """Figures that no upstream reported are estimated, except for the prompt tokens that it computed. n_estimated: prompt
    tokens. Attempts that lost to a hedge, or gave no token before our timeout, are not charged.
    """
    n_input = n_output = cost_usd = 0.0
    ttft_s, n_read, was_left = None, None, False
    for attempt in record.attempts:
        done = attempt.done
        if done is None or done.is_lost:
            continue
        ttft_s = done.ttft_s if done.ttft_s is not None else ttft_s
        reported = _reported(attempt, done)
        if reported is not None:
            n_read = reported.uncached
        if reported is not None or done.ttft_s is not None:
            usage = done.usage or Usage(output=attempt.n_content)
            n_input += usage.input_total
            n_output += usage.output
        was_left = done.outcome is Outcome.IGNORED and done.fault is None
        if was_left or reported is not None or done.ttft_s is not None:
            cost_usd += done.cost_usd or 0.0
    if n_read is None and (ttft_s is not None or was_left):
        n_input = n_estimated
    return Used(n_input, n_output, cost_usd, ttft_s, n_read, was_left and ttft_s is None)


def _reported(attempt: Attempt, done: AttemptDone) -> Usage | None:
    """The usage that the upstream reported; of an abandoned attempt, what it had reported until then."""
    if not done.is_estimated:
        return done.usage
    return attempt.stream.summary.usage if attempt.stream is not None else None
