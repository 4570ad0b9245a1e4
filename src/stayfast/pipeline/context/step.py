"""The steps of the context stage: each may shorten a request before it is laid out and routed."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from stayfast.core.deadline import Deadline
from stayfast.core.types import Request


class ContextFacts(msgspec.Struct, frozen=True, gc=False):
    """What a step may know of a request besides its body."""

    route: str
    tenant: str | None
    session: bytes  # that its headers name; empty: none
    role: str  # of a request that no client sent: refresh, audit, judge, verify, summary, job
    deadline: Deadline
    note: Callable[[str], None]  # for the record: names and figures only
    degrade: Callable[[str], None]  # marks the answer in `x-stayfast-degraded`


class ContextStep(Protocol):
    """One change of one route's requests. Belongs to one loop; holds no state of a request."""

    async def apply(self, request: Request, facts: ContextFacts) -> Request:
        """The request to send instead, in the client's dialect and valid; the same object if nothing changes. Never raises
        for a prompt of unknown form.
        """
