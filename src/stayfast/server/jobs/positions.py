"""Where a client goes on in a stream: after the event that it had, or at the start of a later epoch.

The client may have got events that its gateway lost when it died. The numbers of the next epoch begin after the last event
that was stored, so such a client's number lies inside that epoch. It goes on at the epoch's first event, the `reset`.
"""

from stayfast.jobs.service import JobService, store_error
from stayfast.stores.base import StoreUnavailable

_PAGE = 500


async def find_position(service: JobService, job_id: str, epoch: int, n: int) -> int:
    """The number after which a client goes on whose last event was number `n` of `epoch`, if there is a later epoch by now.
    Raises Shed (503).
    """
    at = n
    try:
        while at >= 0:
            before = max(-1, at - _PAGE)
            page = await service.store.read_events(job_id, before, at - before)
            for event in reversed(page.events):
                if event.epoch <= epoch:
                    return min(n, event.n)
            at = before
    except StoreUnavailable as error:
        raise store_error(error) from None
    return -1
