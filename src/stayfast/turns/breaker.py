"""When a step is left alone for a while because it fails: the gateway's own breaker, for one step.

    crm = Breaker()                                    # once, beside the function
    await b.run(look_up, customer, name="crm", cap=0.8, breaker=crm, fallback=None)

While it is open the step is not begun, its fallback is used at once, and now and then one call is let through as a probe.
A call that took all of its cap has failed; one that was cut short because the turn had no more time says nothing.
"""

from random import Random

from stayfast.policy import breaker as policy


class Breaker:
    """Of one step; share it among turns. Changed on one loop, nothing here awaits."""

    __slots__ = ("_of",)

    def __init__(self, config: policy.BreakerConfig | None = None, rng: Random | None = None) -> None:
        if config is not None and not isinstance(config, policy.BreakerConfig):
            raise TypeError(f"Breaker({config!r:.80}): say what opens it, or nothing, as in "
                            "Breaker(BreakerConfig(failures_in_row=3))")
        self._of = policy.Breaker(config or policy.BreakerConfig(), rng or Random())

    def why_not(self, now: float) -> str:
        """Why no call may be made now; empty where one may."""
        of = self._of
        return "" if of.state is policy.State.CLOSED or of.wants_probe(now) else f"left alone: {of.why}"

    def began(self) -> int:
        """A call begins; its mark, which comes back with what became of it."""
        return self._of.began()

    def ended(self, mark: int, now: float, *, is_good: bool | None) -> None:
        """What became of it; None: nothing that says anything."""
        if is_good is None:
            self._of.forgotten(mark)
        elif is_good:
            self._of.succeeded(mark, now)
        else:
            self._of.failed(mark, now)

    def __repr__(self) -> str:
        return repr(self._of)
