"""/admin/conversations: permissions, errors and results."""

import json

import pytest
import uvloop

from stayfast.server.backend import PurgeFilter
from tests.server.fakes import FakeBackend, get, serving
from tests.server.keys import ADMIN, KEY, KEYS

ROOT = "/admin/conversations"


def delete(path: str, *headers: str) -> bytes:
    """A DELETE."""
    return get(path, *headers, method="DELETE")


@pytest.mark.sockets
def test_conversations_are_counted_for_admins_and_deleted_by_their_owner() -> None:
    """401 without a key; a client's key deletes those of its own tenant, and reads no counts."""
    async def main() -> None:
        async with serving(FakeBackend(KEYS)) as running:
            client, statuses = await running.connect(), []
            for headers in ((), (f"x-api-key: {KEY}",), (f"x-api-key: {ADMIN}",)):
                for request in (get(ROOT, *headers), delete(f"{ROOT}/s%2F1", *headers),
                                delete(f"{ROOT}/s%2F1?tenant=other", *headers)):
                    client.send(request)
                    statuses.append((await client.answer())[0])
            assert statuses == [401] * 3 + [403, 200, 403] + [200] * 3
            owner = next(name for name in KEYS.keys if name not in KEYS.admins)
            assert running.backend.forgotten == [PurgeFilter(tenant=owner, tag="s/1"), PurgeFilter(tag="s/1"),
                                                 PurgeFilter(tenant="other", tag="s/1")]

    uvloop.run(main())


@pytest.mark.sockets
@pytest.mark.parametrize(("request_", "status", "code"), [
    (delete(f"{ROOT}/nobody"), 404, "conversation_not_found"), (delete(f"{ROOT}/s?all=true"), 400, None),
    (delete(f"{ROOT}/s?tenant="), 400, None), (delete(f"{ROOT}/{'s' * 1025}"), 400, None),
    (get(f"{ROOT}/s"), 405, "method_not_allowed"), (delete(ROOT), 405, "method_not_allowed"),
    (get(f"{ROOT}s"), 404, "not_found")])
def test_conversations_with_a_wrong_request_are_refused(request_: bytes, status: int, code: str | None) -> None:
    """A 4xx that says why."""
    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(request_)
            found, _, body = await client.answer()
            assert found == status
            assert code is None or json.loads(body)["error"]["code"] == code

    uvloop.run(main())
