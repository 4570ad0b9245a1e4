"""The interface of the store that holds the shared limits."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from stayfast.policy.fleet.slices import LeaseGrant, LeaseReport

MAX_CALLS: Final = 200  # in one trip


class QuotaStoreLost(Exception):
    """The store did not answer in time, or refused. Its text names the kind of error only."""


class QuotaCall(NamedTuple):
    """The report of one gateway for one tenant. `number` increases with each call of the gateway for the tenant. `epoch`: of
    the last reply; empty: none. `limits`: by LIMIT@CAPACITY.
    """

    tenant: str
    number: int
    epoch: str
    limits: Mapping[str, LeaseReport]


class QuotaReply(NamedTuple):
    epoch: str
    limits: Mapping[str, LeaseGrant]


class QuotaStore(Protocol):
    async def exchange(self, gateway: str, calls: Sequence[QuotaCall]) -> list[QuotaReply | None]:
        """One trip for at most MAX_CALLS calls, within the store's time limit. None: a later call has already arrived.
        Raises QuotaStoreLost.
        """

    async def close(self) -> None: ...
