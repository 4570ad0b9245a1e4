"""`error.type` of a call to an upstream: one of few words, the same in spans and in metrics."""

from stayfast.core.events import AttemptDone
from stayfast.core.types import Outcome


def error_type(done: AttemptDone) -> str | None:
    """The status where that was the failure, our name of the fault, or that nobody wanted the answer any more. None: it was
    answered, or another attempt was quicker, which is no failure.
    """
    if done.outcome is Outcome.SUCCESS or (done.is_lost and done.fault is None):
        return None
    if done.fault == "status" and done.upstream_status is not None:
        return str(done.upstream_status)
    return done.fault or "cancelled"
