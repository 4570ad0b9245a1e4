"""Everything that `KeyStore` states, as tests that run on any store of jobs."""

import asyncio
from typing import Any, cast

from msgspec.structs import replace

from stayfast.core.keys import DAY_S, SpendRow, StoredKey
from stayfast.stores.jobs.keys import KEEP_ENDED_S, KEEP_SPEND_DAYS, KEYS, KeyStore
from tests.services.job_store_rig import JobStoreRig, RiggedSuite, on_store

MOST = 1000


def keys_of(rig: JobStoreRig) -> KeyStore:
    """The store under test."""
    return cast("KeyStore", rig.store)


def new_key(rig: JobStoreRig, key_id: str, **fields: Any) -> StoredKey:
    """A live key with a name of its own."""
    return StoredKey(key_id, **{"tenant": "acme", "name": f"of {key_id}", "digest": key_id.encode().ljust(32, b"."),
                                "created_at": rig.now(), **fields})


async def add_key(rig: JobStoreRig, key_id: str, **fields: Any) -> StoredKey:
    """Store a key."""
    stored, is_new = await keys_of(rig).create_key(new_key(rig, key_id, **fields), MOST)
    assert stored is not None
    assert is_new
    return stored


class KeySuite(RiggedSuite):
    """Keys and spend."""

    @on_store
    async def test_created_key_is_read_with_its_version_also_after_a_restart(self, rig: JobStoreRig) -> None:
        first = await add_key(rig, "a", scopes=("admin", "routes:m"), quota={"requests_per_minute": 5.0})
        second = await add_key(rig, "b", expires_at=rig.now() + 60.0)
        assert 0 < first.version < second.version
        await rig.restart()
        page = await keys_of(rig).read_keys(0, 10)
        assert page.keys == (first, second)
        assert page.version == second.version
        assert await keys_of(rig).find_key("a") == first
        assert (await keys_of(rig).read_keys(first.version, 10)).keys == (second,)
        assert (await keys_of(rig).read_keys(0, 1)).keys == (first,)
        assert (await keys_of(rig).read_keys(second.version, 10)).keys == ()

    @on_store
    async def test_update_of_the_current_version_alone_is_stored(self, rig: JobStoreRig) -> None:
        first = await add_key(rig, "a")
        revoked = await keys_of(rig).update_key(replace(first, revoked_at=rig.now()), first.version)
        assert revoked is not None
        assert revoked.version > first.version
        assert await keys_of(rig).update_key(replace(first, scopes=("admin",)), first.version) is None
        assert await keys_of(rig).find_key("a") == revoked
        assert await keys_of(rig).update_key(new_key(rig, "unknown"), 1) is None
        assert (await keys_of(rig).read_keys(first.version, 10)).keys == (revoked,)

    @on_store
    async def test_name_of_a_live_key_is_taken_and_that_of_an_ended_one_is_free(self, rig: JobStoreRig) -> None:
        first = await add_key(rig, "a", name="ci")
        assert await keys_of(rig).create_key(new_key(rig, "b", name="ci"), MOST) == (first, False)
        await add_key(rig, "other", name="ci", tenant="beta")
        await keys_of(rig).update_key(replace(first, revoked_at=rig.now()), first.version)
        again = await add_key(rig, "b", name="ci", expires_at=rig.now() + 10.0)
        assert await keys_of(rig).create_key(new_key(rig, "b", name="ci"), MOST) == (again, False)
        await rig.advance(11.0)
        await add_key(rig, "c", name="ci")

    @on_store
    async def test_more_than_the_maximum_of_live_keys_are_refused(self, rig: JobStoreRig) -> None:
        first = await add_key(rig, "a")
        await add_key(rig, "b")
        assert await keys_of(rig).create_key(new_key(rig, "c"), 2) == (None, False)
        await keys_of(rig).update_key(replace(first, revoked_at=rig.now()), first.version)
        assert (await keys_of(rig).create_key(new_key(rig, "c"), 2))[1]

    @on_store
    async def test_record_of_an_ended_key_is_dropped_after_its_time(self, rig: JobStoreRig) -> None:
        await add_key(rig, "a", expires_at=rig.now() + 10.0)
        await rig.advance(KEEP_ENDED_S)
        await add_key(rig, "b")
        assert await keys_of(rig).find_key("a") is not None
        await rig.advance(20.0)
        await add_key(rig, "c")
        await add_key(rig, "d")
        assert await keys_of(rig).find_key("a") is None

    @on_store
    async def test_keys_are_listed_by_tenant_in_pages(self, rig: JobStoreRig) -> None:
        for n in range(5):
            await add_key(rig, f"k{n}", tenant="acme" if n % 2 else "beta")
        store = keys_of(rig)
        assert [key.id for key in await store.list_keys(None, None, 3)] == ["k0", "k1", "k2"]
        assert [key.id for key in await store.list_keys(None, "k2", 3)] == ["k3", "k4"]
        assert [key.id for key in await store.list_keys("acme", None, 9)] == ["k1", "k3"]

    @on_store
    async def test_latest_use_is_stored_without_a_new_version(self, rig: JobStoreRig) -> None:
        key = await add_key(rig, "a")
        await keys_of(rig).note_key_uses({"a": 200.0, "unknown": 1.0})
        await keys_of(rig).note_key_uses({"a": 100.0})
        assert await keys_of(rig).find_key("a") == replace(key, used_at=200.0)
        assert (await keys_of(rig).read_keys(key.version, 10)).keys == ()

    @on_store
    async def test_concurrent_creations_of_one_name_store_one_key(self, rig: JobStoreRig) -> None:
        replies = await asyncio.gather(*[keys_of(rig).create_key(new_key(rig, f"k{n}", name="ci"), MOST) for n in range(8)])
        assert sum(is_new for _, is_new in replies) == 1
        assert len({stored.id for stored, _ in replies if stored is not None}) == 1
        assert len(await keys_of(rig).list_keys(None, None, 10)) == 1

    @on_store
    async def test_concurrent_changes_all_have_a_version_of_their_own(self, rig: JobStoreRig) -> None:
        keys = [await add_key(rig, f"k{n}") for n in range(6)]
        store = keys_of(rig)
        changed = await asyncio.gather(*[store.update_key(replace(key, revoked_at=rig.now()), key.version) for key in keys],
                                       *[store.create_key(new_key(rig, f"n{n}"), MOST) for n in range(6)])
        assert None not in changed
        page = await store.read_keys(keys[-1].version, 100)
        versions = [key.version for key in page.keys]
        assert len(set(versions)) == len(versions) == 12
        assert page.version == max(versions)

    @on_store
    async def test_notification_of_keys_wakes_a_reader(self, rig: JobStoreRig) -> None:
        reading = asyncio.ensure_future(rig.store.wait(KEYS, 20.0))
        await asyncio.sleep(0.05)
        while not reading.done():  # a subscription takes a moment
            await rig.store.notify(KEYS)
            await asyncio.wait([reading], timeout=0.05)
        await reading

    @on_store
    async def test_spend_is_summed_once_for_each_number_of_a_writer(self, rig: JobStoreRig) -> None:
        store, day = keys_of(rig), int(rig.now() // DAY_S)
        row = SpendRow(day, "acme", "k1", "m", "big", 1, 100, 60, 10, 5_000_000_001, 1, 0)
        for writer, n in (("one", 1), ("two", 1), ("one", 1), ("one", 2), ("one", 1)):
            await store.add_spend(writer, n, [row, replace(row, model="small", nano_usd=3, nano_usd_list=0)])
        await rig.restart()
        (total,) = await store_sum(rig, (), day)
        assert total == SpendRow(0, "", "", "", "", 6, 600, 360, 60, 15_000_000_012, 3, 0)
        by_model = await store_sum(rig, ("model",), day)
        assert [(each.model, each.n_requests, each.nano_usd) for each in by_model] == [
            ("big", 3, 15_000_000_003), ("small", 3, 9)]

    @on_store
    async def test_spend_is_read_by_groups_days_and_tenant(self, rig: JobStoreRig) -> None:
        store, day = keys_of(rig), int(rig.now() // DAY_S)
        rows = [SpendRow(day - n % 2, f"t{n % 3}", f"k{n}", "m", "x", 1, 0, 0, 0, 10 ** n, 0, 0) for n in range(6)]
        await store.add_spend("one", 1, rows)
        assert [(row.tenant, row.nano_usd) for row in await store_sum(rig, ("tenant",), day)] == [
            ("t1", 10_000), ("t2", 100), ("t0", 1)]
        found = await store.read_spend(("day", "tenant"), day - 1, day, "t1")
        assert {(row.day, row.tenant, row.nano_usd) for row in found} == {(day - 1, "t1", 10), (day, "t1", 10_000)}
        assert [row.nano_usd for row in await store.read_spend(("key_id",), day - 1, day, None)] == [
            10 ** n for n in reversed(range(6))]
        assert await store.read_spend((), day + 1, day + 2, None) == []

    @on_store
    async def test_spend_of_a_year_ago_is_dropped(self, rig: JobStoreRig) -> None:
        store, day = keys_of(rig), int(rig.now() // DAY_S)
        await store.add_spend("one", 1, [SpendRow(day, n_requests=1)])
        await rig.advance((KEEP_SPEND_DAYS + 1) * DAY_S)
        await store.add_spend("one", 2, [SpendRow(day + KEEP_SPEND_DAYS + 1, n_requests=1)])
        assert [row.n_requests for row in await store.read_spend((), 0, day + KEEP_SPEND_DAYS + 1, None)] == [1]

    @on_store
    async def test_concurrent_writers_lose_nothing(self, rig: JobStoreRig) -> None:
        day = int(rig.now() // DAY_S)
        rows = [SpendRow(day, f"t{n}", n_requests=1, nano_usd=n) for n in range(20)]
        await asyncio.gather(*[keys_of(rig).add_spend(f"w{w}", n, rows[::1 if w % 2 else -1])
                               for w in range(4) for n in (1,)])
        (total,) = await store_sum(rig, (), day)
        assert (total.n_requests, total.nano_usd) == (80, 4 * sum(range(20)))


async def store_sum(rig: JobStoreRig, groups: tuple[str, ...], day: int) -> list[SpendRow]:
    """The sums of one day."""
    return await keys_of(rig).read_spend(groups, day, day, None)
