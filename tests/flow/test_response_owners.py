"""Stored responses belong to the tenant that made them."""

from pathlib import Path

import msgspec
import pytest

from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.admission.response_owners import N_CELLS, ResponseOwners
from stayfast.testing import SendText, SimLoop, run
from stayfast.wire.request_body import decode
from stayfast.workers.shared_memory import create_files, shared_owner_table
from tests.flow.rig import MODEL, Rig, read


def rig_with(owners: ResponseOwners, loop: SimLoop) -> Rig:
    """A gateway that notes who was answered with which response."""
    return Rig(loop, [[SendText("a")]], owners=owners)


async def respond(rig: Rig, tenant: str | None, previous: str | None = None) -> str:
    """One whole response, as this tenant; its id, as the client sees it."""
    request = decode(Api.RESPONSES, msgspec.json.encode({"model": MODEL, "input": "hi", "previous_response_id": previous}))
    answer = await read(await rig.gateway.serve(request, Arrival("r", rig.loop.now(), tenant)))
    return str(msgspec.json.decode(answer)["id"])


def test_response_owner_other_tenant_gets_the_unknown_id_error() -> None:
    """The owner may continue; another tenant gets the error of an unknown id, and no call is made."""

    async def main(loop: SimLoop) -> None:
        rig = rig_with(ResponseOwners(), loop)
        made = await respond(rig, "acme")
        await respond(rig, "acme", made)
        n_asked = rig.scripted[0].n_calls
        with pytest.raises(Rejected) as refused:
            await respond(rig, "beta", made)
        assert (refused.value.status, refused.value.code, refused.value.param) == (
            400, "previous_response_not_found", "previous_response_id")
        assert rig.scripted[0].n_calls == n_asked
        await respond(rig, None, made)  # without keys there are no tenants
        await respond(rig, "beta", "resp_of_before_the_start")

    run(main)


def test_response_owners_are_shared_by_workers(tmp_path: Path) -> None:
    """Without shared memory each worker has its own table."""
    create_files(tmp_path)
    one, other = (ResponseOwners(lambda: shared_owner_table(tmp_path)) for _ in range(2))
    one.record("resp_1", "acme")
    assert (other.belongs_to_other("resp_1", "beta"), other.belongs_to_other("resp_1", "acme")) == (True, False)
    for alone in (ResponseOwners(lambda: shared_owner_table(None)),
                  ResponseOwners(lambda: shared_owner_table(tmp_path / "none"))):
        assert not alone.belongs_to_other("resp_1", "beta")


def test_response_given_to_two_tenants_is_open_to_any() -> None:
    """Tenants that share a cache may both continue from the same answer."""
    owners = ResponseOwners()
    for tenant in ("acme", "acme", "beta"):
        owners.record("resp_1", tenant)
    assert not any(owners.belongs_to_other("resp_1", tenant) for tenant in ("acme", "beta", "gamma"))


def test_response_owners_are_bounded_and_ids_do_not_collide() -> None:
    """With far more ids than cells the newest are known; an id that was never recorded has no owner."""
    owners = ResponseOwners()
    for n in range(N_CELLS + N_CELLS // 2):
        owners.record(f"resp_{n}", "acme")
    newest = range(N_CELLS + N_CELLS // 2 - 1000, N_CELLS + N_CELLS // 2)
    assert sum(owners.belongs_to_other(f"resp_{n}", "beta") for n in newest) > 990
    assert not any(owners.belongs_to_other(f"other_{n}", "beta") for n in range(100_000))
