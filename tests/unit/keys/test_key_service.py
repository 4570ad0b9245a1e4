"""Changes of stored keys, and how the table of a process follows them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stayfast.core.errors import Rejected, Shed, StayfastError
from stayfast.core.keys import KeyChanged
from stayfast.keys.service import KeyChange, KeyService, NewKey
from stayfast.keys.sync import PAGE, KeySync
from stayfast.stores.base import StoreUnavailable
from stayfast.testing import RecordingSink
from tests.unit.keys.keys_rig import KeyServiceRig, digest_of, stored_key


class LostStore:
    """A store that cannot be used while `is_lost`."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_lost = False

    def __getattr__(self, name: str) -> Any:
        if self.is_lost:
            raise StoreUnavailable("it is down")
        return getattr(self._store, name)


def code_of(error: StayfastError) -> tuple[int, str]:
    return error.status, error.code


def test_created_key_is_shown_once_and_stored_as_a_digest(tmp_path: Path) -> None:
    async def main() -> None:
        rig = KeyServiceRig(tmp_path)
        stored, secret = await rig.service.create(
            NewKey("acme", "ci", ["routes:m", "metrics"], {"requests_per_minute": 5.0}, 60.0), "ops")
        assert stored.digest == digest_of(secret)
        assert (stored.scopes, stored.expires_at, stored.created_by) == (("metrics", "routes:m"), rig.clock.at + 60.0, "ops")
        assert await rig.service.find(stored.id) == stored
        assert rig.sink.facts == [KeyChanged("created", stored.id, "acme", "ci", "ops")]
        assert secret.encode() not in (tmp_path / "jobs.db").read_bytes()

    asyncio.run(main())


@pytest.mark.parametrize(("new", "param"), [
    (NewKey("no tenant", "ci"), "tenant"), (NewKey("acme", ""), "name"), (NewKey("acme", "ci", ["root"]), "scopes"),
    (NewKey("acme", "ci", quota={"requests_per_hour": 1.0}), "quota"),
    (NewKey("acme", "ci", quota={"cost_per_day": -1.0}), "quota"),
    (NewKey("acme", "ci", expires_in_s=0.0), "expires_in_s"),
    (NewKey("acme", "ci", expires_in_s=float("nan")), "expires_in_s")])
def test_create_refuses_a_wrong_value_by_its_name(tmp_path: Path, new: NewKey, param: str) -> None:
    with pytest.raises(Rejected) as refused:
        asyncio.run(KeyServiceRig(tmp_path).service.create(new, "ops"))
    assert (refused.value.status, refused.value.param) == (400, param)


def test_create_of_a_taken_name_or_beyond_the_maximum_is_a_conflict(tmp_path: Path) -> None:
    async def main() -> None:
        rig = KeyServiceRig(tmp_path, max_keys=2)
        first, _ = await rig.service.create(NewKey("acme", "ci"), "ops")
        with pytest.raises(Rejected, match=first.id) as refused:
            await rig.service.create(NewKey("acme", "ci"), "ops")
        assert code_of(refused.value) == (409, "key_exists")
        await rig.service.create(NewKey("acme", "two"), "ops")
        with pytest.raises(Rejected) as refused:
            await rig.service.create(NewKey("acme", "three"), "ops")
        assert code_of(refused.value) == (409, "too_many_keys")

    asyncio.run(main())


def test_concurrent_changes_of_a_key_are_all_in_force(tmp_path: Path) -> None:
    """Neither undoes the other, and a revocation stays."""
    async def main() -> None:
        rig = KeyServiceRig(tmp_path)
        key, _ = await rig.service.create(NewKey("acme", "ci"), "ops")
        (rotated, secret), *_ = await asyncio.gather(
            rig.service.rotate(key.id, 60.0, "one"), rig.service.change(key.id, KeyChange(scopes=["admin"]), "two"),
            rig.service.change(key.id, KeyChange(quota={"tokens_per_day": 9.0}), "three"))
        found = await rig.service.find(key.id)
        assert (found.scopes, found.quota, found.digest, found.old_digest) == (
            ("admin",), {"tokens_per_day": 9.0}, digest_of(secret), key.digest)
        assert rotated.id == key.id
        results = await asyncio.gather(rig.service.revoke(key.id, "one"), rig.service.rotate(key.id, 0.0, "two"),
                                       rig.service.revoke(key.id, "three"), return_exceptions=True)
        assert (await rig.service.find(key.id)).revoked_at is not None
        failures = [each for each in results if isinstance(each, BaseException)]
        assert all(isinstance(each, Rejected) and code_of(each) == (409, "key_revoked") for each in failures)

    asyncio.run(main())


def test_ended_and_unknown_keys_cannot_be_changed(tmp_path: Path) -> None:
    async def main() -> None:
        rig = KeyServiceRig(tmp_path)
        key, _ = await rig.service.create(NewKey("acme", "ci"), "ops")
        revoked = await rig.service.revoke(key.id, "ops")
        assert await rig.service.revoke(key.id, "ops") == revoked
        with pytest.raises(Rejected) as refused:
            await rig.service.change(key.id, KeyChange(name="b"), "ops")
        assert code_of(refused.value) == (409, "key_revoked")
        with pytest.raises(Rejected) as refused:
            await rig.service.revoke("key_unknown", "ops")
        assert code_of(refused.value) == (404, "key_not_found")

    asyncio.run(main())


def test_lost_store_is_a_503_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        rig = KeyServiceRig(tmp_path)
        lost: Any = LostStore(rig.store)
        service = KeyService(lost, lost, rig.clock, RecordingSink(), lambda _: True)
        lost.is_lost = True
        for call in (service.create(NewKey("a", "b"), "x"), service.find("a"), service.revoke("a", "x"),
                     service.list(None, None, 5)):
            with pytest.raises(Shed) as refused:
                await call
            assert code_of(refused.value) == (503, "keys_unavailable")

    asyncio.run(main())


def test_sync_applies_pages_of_changes_and_those_after(tmp_path: Path) -> None:
    async def main() -> None:
        rig = KeyServiceRig(tmp_path, max_keys=10_000)
        n_keys = PAGE + 10
        for n in range(n_keys):
            await rig.store.create_key(stored_key(f"key_{n}", f"secret-number-{n:06}"), 10_000)
        sync = KeySync(rig.live, rig.store, rig.store, lambda: True, lambda _: None)
        assert await sync.step()
        assert len(rig.live) == n_keys
        await rig.service.revoke("key_5", "ops")
        assert await sync.step()
        assert len(rig.live) == n_keys - 1
        assert rig.live.find(digest_of("secret-number-000005")) is None

    asyncio.run(main())


def test_sync_with_a_lost_store_leaves_the_table_in_force_until_keys_expire(tmp_path: Path) -> None:
    """One message when it is lost, one when it is back."""
    async def main() -> None:
        rig = KeyServiceRig(tmp_path)
        lost: Any = LostStore(rig.store)
        messages: list[str | None] = []
        sync = KeySync(rig.live, lost, lost, lambda: True, messages.append)
        _, secret = await rig.service.create(NewKey("acme", "ci", expires_in_s=100.0), "ops")
        assert await sync.step()
        lost.is_lost = True
        assert [await sync.step() for _ in range(3)] == [False] * 3
        assert rig.live.find(digest_of(secret)) is not None
        rig.clock.at += 100.0
        assert rig.live.find(digest_of(secret)) is None
        lost.is_lost = False
        assert await sync.step()
        assert messages == ["it is down", None]

    asyncio.run(main())


def test_sync_of_an_older_copy_of_the_store_starts_anew(tmp_path: Path) -> None:
    """A restored backup: keys that it does not have end."""
    async def main() -> None:
        (tmp_path / "new").mkdir()
        rig, restored = KeyServiceRig(tmp_path / "new"), KeyServiceRig(tmp_path / "old")
        for name in ("a", "b", "c"):
            await rig.service.create(NewKey("acme", name), "ops")
        _, secret = await restored.service.create(NewKey("acme", "old"), "ops")
        assert await KeySync(rig.live, rig.store, rig.store, lambda: True, lambda _: None).step()
        assert await KeySync(rig.live, restored.store, restored.store, lambda: True, lambda _: None).step()
        assert len(rig.live) == 1
        assert rig.live.find(digest_of(secret)) is not None

    asyncio.run(main())


def test_sync_without_a_store_knows_that_there_are_no_keys(tmp_path: Path) -> None:
    async def main() -> None:
        rig = KeyServiceRig(tmp_path)
        rig.live.is_known = False
        exists = False
        sync = KeySync(rig.live, rig.store, rig.store, lambda: exists, lambda _: None)
        assert not await sync.step()
        assert rig.live.is_known

    asyncio.run(main())
