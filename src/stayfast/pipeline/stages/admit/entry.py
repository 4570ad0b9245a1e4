"""The limits of a request before it waits for a place: the size of its prompt, and the quota of its key; and its screen."""

from stayfast.core.types import JOB, Stage
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.stages.admit.key_quota import KeyQuotas
from stayfast.pipeline.stages.admit.size_limit import SizeLimit


class EntryLimits:
    """Both limits of one gateway."""

    __slots__ = ("_key_quotas", "_size")

    def __init__(self, size: SizeLimit, key_quotas: KeyQuotas) -> None:
        self._size = size
        self._key_quotas = key_quotas

    def check(self, ex: Exchange) -> Exchange:
        """The request, or a copy for the route of long prompts. It holds its key's quota. Raises Rejected (413), Shed (429).
        """
        fitting = self._size.redirect(ex)
        try:
            self._size.check(fitting)
            settle = self._key_quotas.reserve(fitting) if ex.arrival.key_id else None
        except BaseException:
            if fitting is not ex:
                fitting.timeouts.stop()  # the gateway ends the request that it has, which is the first one
            raise
        if settle is not None:
            ex.held.append(settle)
        return fitting

    async def screen(self, ex: Exchange) -> Exchange:
        """The request, or the same on the route that the class of its question has: under that route's policy, size limit
        and guard, within the time of the first route. Calls that the gateway makes on its own are not screened. Raises
        Rejected.
        """
        screen, arrival, record = ex.policy.screen, ex.arrival, ex.record
        if screen is None or arrival.role not in ("", JOB):
            return ex
        found = await screen.screen(ex.request, ex.deadline, record.note)
        if found.guard:
            record.set_guard(found.guard)
        if found.route is None:
            return ex
        record.note(f"sent to route {found.route} by its class, from {ex.route}")
        moved = self._size.move(ex, found.route, is_bounded=True)
        moved.ledger.enter(Stage.CACHE)
        try:
            if moved.policy.size is not None:
                self._size.check(moved)
            if moved.policy.screen is not None and (rule := await moved.policy.screen.check_guard(ex.request, record.note)):
                record.set_guard(rule)
        except BaseException:
            moved.timeouts.stop()  # as in `check`
            raise
        return moved
