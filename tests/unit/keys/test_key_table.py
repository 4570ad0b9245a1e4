"""The table of live keys of one process."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stayfast.keys.table import NOTE_USE_EVERY_S, LiveKeys
from tests.services.sqlite_jobs_rig import START, MovedClock
from tests.unit.keys.keys_rig import SECRET, digest_of, stored_key


def test_table_finds_a_key_until_it_expires_and_not_after_its_revocation() -> None:
    clock = MovedClock()
    live, key = LiveKeys(clock), stored_key(expires_at=START + 10.0)
    live.apply([key])
    found = live.find(digest_of(SECRET))
    assert found is not None
    assert (found.caller.tenant, found.caller.key_id, found.digest) == ("acme", "key_1", digest_of(SECRET))
    assert live.find(digest_of("another-key-of-somebody")) is None
    clock.at += 10.0
    assert live.find(digest_of(SECRET)) is None
    assert live.find_caller("key_1") is None
    live.apply([replace(key, expires_at=None, version=2)])
    assert live.find(digest_of(SECRET)) is not None
    live.apply([replace(key, expires_at=None, revoked_at=clock.at, version=3)])
    assert live.find(digest_of(SECRET)) is None
    assert (len(live), live.version) == (0, 3)


def test_table_takes_the_key_before_a_rotation_until_its_grace_is_over() -> None:
    clock = MovedClock()
    live = LiveKeys(clock)
    live.apply([stored_key(secret="sf-the-new-one-of-both", old_digest=digest_of(SECRET), old_until=START + 5.0)])
    assert live.find(digest_of(SECRET)) is not None
    assert live.find(digest_of("sf-the-new-one-of-both")) is not None
    clock.at += 5.0
    assert live.find(digest_of(SECRET)) is None
    assert live.find(digest_of("sf-the-new-one-of-both")) is not None


def test_table_notes_a_use_at_most_once_a_minute() -> None:
    clock = MovedClock()
    live = LiveKeys(clock)
    live.apply([stored_key()])
    for _ in range(3):
        live.find(digest_of(SECRET))
    assert live.take_uses() == {"key_1": START}
    live.find(digest_of(SECRET))
    assert live.take_uses() == {}
    clock.at += NOTE_USE_EVERY_S
    live.find(digest_of(SECRET))
    assert live.take_uses() == {"key_1": START + NOTE_USE_EVERY_S}


def test_table_frees_expired_keys_and_has_the_quotas_of_the_others() -> None:
    clock = MovedClock()
    live = LiveKeys(clock)
    live.apply([stored_key("key_1", expires_at=START + 1.0, quota={"requests_per_minute": 5.0}),
                stored_key("key_2", "x" * 20)])
    quota = live.quota_of("key_1")
    assert quota is not None
    assert (quota.requests_per_minute, live.quota_of("key_2")) == (5.0, None)
    clock.at += 1.0
    live.remove_expired()
    assert (len(live), live.quota_of("key_1")) == (1, None)
    live.clear()
    assert (len(live), live.version) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=30))
def test_table_equals_the_last_state_of_each_key(changes: list[tuple[int, int, bool]]) -> None:
    """Whatever the order of creations, rotations and revocations: what is found is what the last changes left."""
    live, last = LiveKeys(MovedClock()), dict[int, tuple[int, bool]]()
    for version, (key, secret, is_revoked) in enumerate(changes, 1):
        live.apply([stored_key(f"key_{key}", f"secret-of-{key}-{secret}", version=version,
                               revoked_at=0.0 if is_revoked else None)])
        last[key] = (secret, is_revoked)
    for key in range(4):
        for secret in range(6):
            is_live = key in last and last[key] == (secret, False)
            assert (live.find(digest_of(f"secret-of-{key}-{secret}")) is not None) == is_live
