"""Quotas of stored keys, on virtual time: reserved before a request, settled at its end, in addition to the tenant's."""

from random import Random

import pytest

from stayfast.core.errors import Shed
from stayfast.core.events import RequestDone
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.pipeline.stages.admit.key_quota import KeyQuotas
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.quota import QuotaConfig
from stayfast.testing import SendText, SimLoop, run
from tests.flow.admission_rig import quota_for_all
from tests.flow.rig import Rig, chat, read


class KeyRig:
    """A gateway whose keys have quotas."""

    def __init__(self, loop: SimLoop, quotas: dict[str, QuotaConfig], *, tenant: int | None = None) -> None:
        self.loop = loop
        self.quotas = quotas
        admit = None if tenant is None else Admission(AdmissionConfig(), quota_for_all(requests_per_minute=tenant), loop,
                                                      Random(1))
        self.rig = Rig(loop, [[SendText("hello")]], admit=admit,
                       key_quotas=KeyQuotas(loop, quotas.get))

    async def request(self, key_id: str) -> None:
        """Raises Shed."""
        reply = await self.rig.gateway.serve(chat(), Arrival("r", self.loop.now(), "acme", key_id=key_id))
        try:
            await read(reply)
        finally:
            reply.close()


def test_key_quota_refuses_beyond_the_limit_and_refills() -> None:
    async def main(loop: SimLoop) -> None:
        rig = KeyRig(loop, {"key_1": QuotaConfig(requests_per_minute=2)})
        for _ in range(2):
            await rig.request("key_1")
        with pytest.raises(Shed, match="this key on requests per minute") as refused:
            await rig.request("key_1")
        assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (429, "rate_limit_exceeded", 30.0)
        await rig.request("key_2")  # without a quota
        await loop_sleep(loop, 30.0)
        await rig.request("key_1")
        ended = [fact for fact in rig.rig.sink.facts if isinstance(fact, RequestDone)]
        assert [fact.key_id for fact in ended] == ["key_1", "key_1", "key_1", "key_2", "key_1"]
        assert [fact.status for fact in ended] == [200, 200, 429, 200, 200]

    run(main)


async def loop_sleep(loop: SimLoop, seconds: float) -> None:
    """Virtual seconds."""
    done = loop.create_future()
    loop.call_later(seconds, done.set_result, None)
    await done


def test_key_quota_gives_back_what_the_tenants_quota_refused() -> None:
    """The tenant's limit is 1: the second request is refused there, and costs the key nothing."""
    async def main(loop: SimLoop) -> None:
        rig = KeyRig(loop, {"key_1": QuotaConfig(requests_per_minute=2)}, tenant=1)
        await rig.request("key_1")
        for _ in range(3):
            with pytest.raises(Shed, match="for acme on requests per minute"):
                await rig.request("key_1")

    run(main)


def test_key_quota_of_tokens_charges_what_was_used() -> None:
    """Reserved are hundreds of tokens for an answer of unknown length; charged are the few that it had."""
    async def main(loop: SimLoop) -> None:
        rig = KeyRig(loop, {"key_1": QuotaConfig(tokens_per_day=1000)})
        for _ in range(5):
            await rig.request("key_1")

    run(main)


def test_changed_key_quota_is_in_force_with_the_next_request() -> None:
    async def main(loop: SimLoop) -> None:
        rig = KeyRig(loop, {"key_1": QuotaConfig(requests_per_day=1)})
        await rig.request("key_1")
        with pytest.raises(Shed):
            await rig.request("key_1")
        rig.quotas["key_1"] = QuotaConfig(requests_per_day=2)
        await rig.request("key_1")
        with pytest.raises(Shed):
            await rig.request("key_1")
        del rig.quotas["key_1"]
        await rig.request("key_1")

    run(main)
