"""/debug/state: for admins only; open if no key is configured."""

import json

import pytest
import uvloop

from tests.server.fakes import FakeBackend, get, serving
from tests.server.keys import ADMIN, KEY, KEYS


@pytest.mark.sockets
def test_debug_state_needs_admin_key() -> None:
    """401 without a key, 403 with any key, the state with an admin's."""
    async def main() -> None:
        async with serving(FakeBackend(KEYS)) as running:
            client = await running.connect()
            told = []
            for headers in ((), (f"x-api-key: {KEY}",), (f"x-api-key: {ADMIN}",)):
                client.send(get("/debug/state", *headers))
                status, _, body = await client.answer()
                told.append((status, json.loads(body).get("error", {}).get("code")))
            assert told == [(401, "invalid_api_key"), (403, "admins_only"), (200, None)]
        async with serving() as running:
            client = await running.connect()
            client.send(get("/debug/state"))
            assert json.loads((await client.answer())[2]) == {"upstreams": {}}

    uvloop.run(main())
