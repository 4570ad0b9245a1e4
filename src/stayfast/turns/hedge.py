"""When to ask a second time for the same read while the first one still runs: the gateway's own policy, for one step.

    search = Hedge()                                   # once, beside the function: it learns from every call
    await b.run(find, question, name="kb", hedge=search)

Only for reads: what changes something may not be done twice. The delay comes from the live distribution of the step's own
times (`policy.hedge`), second calls are a bounded share of all (`policy.extra`), and the slower of the two is cancelled.
"""

from math import inf

from stayfast.policy.extra import ExtraBudget
from stayfast.policy.hedge import NEVER, FirstTokens, HedgeConfig, Lately, Plan, aim, live, plan
from stayfast.policy.retry import RetryConfig
from stayfast.turns.amounts import is_amount, is_seconds, wrong

REFRESHED_S = 1.0  # how old a plan may be: making one takes a tenth of a millisecond
_WEIGHT = 1.0  # all calls of a step are alike
_MAX_AFTER_S = 60.0


class Hedge:
    """Of one step; share it among turns, not among steps. Changed on one loop, nothing here awaits.

    `share`: of the calls, how many may be made a second time. `after_s`: a fixed delay; None: learned, and none before 32
    calls are known. Raises ValueError and TypeError for what cannot be.
    """

    __slots__ = ("_budget", "_is_fixed", "_lately", "_of", "_plan", "_refresh_at", "_share")

    def __init__(self, share: float = 0.05, *, after_s: float | None = None) -> None:
        if not is_seconds(share) or share > 1:
            raise wrong(f"share={share!r:.80}: how many of all calls may be made twice, more than 0 and at most 1, as in "
                        "Hedge(share=0.05)", share)
        if after_s is not None and (not is_amount(after_s) or after_s > _MAX_AFTER_S):
            raise wrong(f"after_s={after_s!r:.80}: seconds before the second call, 0 to {_MAX_AFTER_S:g}, as in "
                        "Hedge(after_s=0.2); leave it out where it is to be learned", after_s)
        self._is_fixed = after_s is not None
        config = HedgeConfig(budget=share, race_after_s=0.0 if after_s is None else after_s)
        self._share = share
        self._budget = ExtraBudget(RetryConfig().budget, share)
        self._lately = Lately(share)
        self._of = FirstTokens(self._lately)
        self._plan = NEVER if after_s is None else Plan(config.race_after_s, 0.0, 0, 0.0)
        self._refresh_at = inf if self._is_fixed else -inf

    def asked(self, call: object, now: float) -> None:
        """A turn makes a first call; `call` is whatever tells it from the others."""
        self._budget.request(_WEIGHT, now)
        self._of.began(call, now)

    def after_s(self, now: float) -> float:
        """How long to wait for a call before a second one is made; infinite where none would help."""
        if now >= self._refresh_at:
            lately = live((self._of,), now)
            self._plan = plan(lately, lately, aim(self._share, self._budget.wanted_share(now)), 1)
            self._of.due_s = self._plan.after_s
            self._refresh_at = now + REFRESHED_S
        return self._plan.after_s

    def may_again(self, left_s: float, now: float) -> bool:
        """Whether the second call may be made now, with `left_s` before the step's end."""
        if not self._is_fixed:
            self._lately.late(now)
            if self._lately.is_slow(now):
                return False
        if self._plan.usual_s >= left_s:
            return False
        if self._budget.may_hedge(_WEIGHT, now):
            return True
        self._budget.miss_hedge(_WEIGHT, now)
        return False

    def asked_again(self, call: object, now: float) -> None:
        """The second call is made."""
        self._budget.take_hedge(_WEIGHT, now)
        self._of.began(call, now)

    def took(self, call: object, now: float) -> None:
        """A call brought its result."""
        self._of.took(call, now)

    def cut_off(self, call: object, now: float) -> None:
        """A call was ended before it brought anything."""
        self._of.cut_off(call, now)

    def failed(self, call: object) -> None:
        """A call failed: that says nothing about how long one takes."""
        self._of.failed(call)

    def __repr__(self) -> str:
        return f"<Hedge: {self._of!r}, {self._budget!r}>"
