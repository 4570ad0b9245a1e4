"""The live keys of one process, in memory: a look-up by digest, without I/O.

Problem: each request has a key, and a query of the store takes thousands of times as long as a look-up. Rule: the table
holds every live key; `keys.sync` applies the changes of the store to it. A key expires by this machine's clock, without a
message. Bounded by the store's MAX_KEYS.
"""

from collections.abc import Iterable, Mapping
from math import inf

from stayfast.core.clock import Clock
from stayfast.core.keys import StoredKey
from stayfast.keys.principal import Principal
from stayfast.policy.admission.quota import QuotaConfig
from stayfast.policy.keys.quota_text import make_quota
from stayfast.policy.keys.scopes import compile_scopes

MAX_KEYS = 100_000
NOTE_USE_EVERY_S = 60.0


class KeyEntry:
    """One digest of a key. used_at: when its use was last noted."""

    __slots__ = ("caller", "digest", "until", "used_at")

    def __init__(self, digest: bytes, caller: Principal, until: float) -> None:
        self.digest = digest
        self.caller = caller
        self.until = until
        self.used_at = -inf


class LiveKeys:
    """The table. Belongs to one loop. is_known: False: a store exists and could not be read yet, so that an unknown key may
    be a valid one.
    """

    __slots__ = ("_by_digest", "_by_id", "_clock", "_quotas", "_uses", "is_known", "version")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_digest: dict[bytes, KeyEntry] = {}
        self._by_id: dict[str, tuple[KeyEntry, ...]] = {}
        self._quotas: dict[str, QuotaConfig] = {}
        self._uses: dict[str, float] = {}
        self.is_known = True
        self.version = 0  # of the store's table, up to which changes are applied

    def find(self, digest: bytes) -> KeyEntry | None:
        """The live entry of a SHA-256 digest. Notes its use."""
        entry = self._by_digest.get(digest)
        if entry is None:
            return None
        now = self._clock.wall()
        if now >= entry.until:
            return None
        if now - entry.used_at >= NOTE_USE_EVERY_S:
            entry.used_at = self._uses[entry.caller.key_id] = now
        return entry

    def find_caller(self, key_id: str) -> Principal | None:
        """The caller of a live key, by its id."""
        entries = self._by_id.get(key_id)
        return entries[0].caller if entries and self._clock.wall() < entries[0].until else None

    def quota_of(self, key_id: str) -> QuotaConfig | None:
        """None: the key has no quota of its own."""
        return self._quotas.get(key_id)

    def apply(self, keys: Iterable[StoredKey]) -> None:
        """Add, replace or remove keys as they are in the store now."""
        now = self._clock.wall()
        for key in keys:
            self._remove(key.id)
            if key.is_live(now):
                self._add(key, now)
            self.version = max(self.version, key.version)

    def clear(self) -> None:
        """Remove all: the store is another one."""
        self._by_digest, self._by_id, self._quotas, self.version = {}, {}, {}, 0

    def remove_expired(self) -> None:
        """Free the memory of keys whose time is over."""
        now = self._clock.wall()
        for key_id in [key_id for key_id, entries in self._by_id.items() if now >= entries[0].until]:
            self._remove(key_id)

    def take_uses(self) -> Mapping[str, float]:
        """The uses since the last call, as Unix seconds by id."""
        uses, self._uses = self._uses, {}
        return uses

    def _add(self, key: StoredKey, now: float) -> None:
        caller = Principal(key.tenant, compile_scopes(key.scopes), key.id)
        until = inf if key.expires_at is None else key.expires_at
        entries = [KeyEntry(key.digest, caller, until)]
        if key.old_digest and now < key.old_until:
            entries.append(KeyEntry(key.old_digest, caller, min(until, key.old_until)))
        self._by_id[key.id] = tuple(entries)
        for entry in entries:
            self._by_digest[entry.digest] = entry
        if key.quota:
            self._quotas[key.id] = make_quota(key.quota)

    def _remove(self, key_id: str) -> None:
        for entry in self._by_id.pop(key_id, ()):
            self._by_digest.pop(entry.digest, None)
        self._quotas.pop(key_id, None)

    def __len__(self) -> int:
        return len(self._by_id)

    def __repr__(self) -> str:
        return f"<LiveKeys: {len(self)} at version {self.version}>"
