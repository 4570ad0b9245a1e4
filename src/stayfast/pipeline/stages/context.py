"""The context stage: the steps of the route, in their order, each on what the one before it left."""

from stayfast.core.types import Request
from stayfast.pipeline.context.step import ContextFacts
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.routing.selector import session_of


async def shorten_request(ex: Exchange) -> Request:
    """The request to send, as the steps of the route changed it."""
    arrival, record, request = ex.arrival, ex.record, ex.request
    facts = ContextFacts(ex.route or "", arrival.tenant, session_of(arrival.headers), arrival.role, ex.deadline, record.note,
                         record.degrade)
    for step in ex.policy.context:
        request = await step.apply(request, facts)
    return request
