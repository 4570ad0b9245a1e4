"""A gateway with admission over one scripted upstream, on virtual time."""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

from stayfast.core.errors import StayfastError
from stayfast.core.types import Request
from stayfast.pipeline.admission.controller import QueueOutlook
from stayfast.pipeline.admission.tenants import Tenant
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.policy.admission.overload import ANY_TENANT, AdmissionConfig, TenantConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.admission.queue import QueueConfig
from stayfast.policy.admission.quota import QuotaConfig
from stayfast.testing import Script, SendText, SimLoop, Wait
from tests.flow.rig import Rig, chat, read

ANSWER: Script = [Wait(0.5), SendText("hello"), Wait(0.5), SendText("world")]  # a second, whatever is asked


def quota_for_all(**quota: Any) -> Mapping[str, TenantConfig]:
    """The same terms for all."""
    return {ANY_TENANT: TenantConfig(quota=QuotaConfig(**quota))}


class AdmissionRig:
    """The rig, and what a test does with it."""

    def __init__(self, loop: SimLoop, places: int | None = None, tenants: Mapping[str, TenantConfig] | None = None,
                 script: Script = ANSWER, reserved_share: float = 0.0, *, price: Price | None = None,
                 outlook: QueueOutlook | None = None, **queue: Any) -> None:
        self.loop = loop
        self.config = config = AdmissionConfig(places, QueueConfig(**queue), reserved_share=reserved_share)
        self.admission = Admission(config, tenants or {}, loop, Random(3), outlook=outlook)
        self.gateway_rig = Rig(loop, [script], admit=self.admission, price=price)
        self._n = 0

    @property
    def places(self) -> str:
        """What an operator sees of them."""
        return repr(self.admission.places)

    def tenant(self, name: str | None) -> Tenant:
        """The record of one."""
        return self.admission.tenants.get(name, self.loop.now())

    async def request(self, tenant: str | None = None, request: Request | None = None, *, total_s: float | None = None,
                  urgency: Urgency | None = None, headers: tuple[tuple[str, str], ...] = ()) -> float:
        """Ask and read the whole answer; the instant of its end."""
        self._n += 1
        arrival = Arrival(f"req_{self._n}", self.loop.now(), tenant, headers, total_s, urgency=urgency)
        reply = await self.gateway_rig.gateway.serve(request or chat(), arrival)
        try:
            await read(reply)
        finally:
            reply.close()
        return self.loop.now()

    async def outcome(self, tenant: str | None = None, request: Request | None = None, *, total_s: float | None = None,
                      urgency: Urgency | None = None) -> str:
        """When it ended, or with what error."""
        try:
            return f"{await self.request(tenant, request, total_s=total_s, urgency=urgency):g}"
        except StayfastError as error:
            return f"{error.status} {getattr(error, 'reason', '') or error.code} at {self.loop.now():g}"

    def assert_empty(self) -> None:
        """Nobody holds or waits for anything."""
        assert (self.admission.places.n_taken, self.admission.places.queue.n, self.gateway_rig.n_in_flight,
                self.gateway_rig.n_open) == (
            0, 0, 0, 0)
        shares = [tenant.share for tenant in self.admission.tenants.newest(10**6)]
        assert all(share.n_running == share.n_waiting == share.due == 0 for share in shares)


async def run_until_queued(loop: SimLoop, *asking: asyncio.Task[str]) -> None:
    """Let tasks that have been started get as far as they can."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert all(not task.done() for task in asking)
