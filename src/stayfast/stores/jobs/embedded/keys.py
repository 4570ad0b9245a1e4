"""API keys and spend. One counter numbers all changes of keys; each key has the number of its last one."""

import sqlite3
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

import msgspec
from msgspec.structs import replace

from stayfast.core.keys import DAY_S, SPEND_COUNTS, SPEND_GROUPS, KeysPage, SpendRow, StoredKey
from stayfast.stores.jobs.embedded.rows import sql
from stayfast.stores.jobs.keys import KEEP_ENDED_S, KEEP_SPEND_DAYS, KEEP_WRITERS_S, MAX_SPEND_ROWS, PURGED_AT_ONCE

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredKey).decode
_VERSION: Final = "SELECT n FROM key_version"
_NEXT_VERSION: Final = "UPDATE key_version SET n = n + 1 RETURNING n"
_SELECT: Final = "SELECT data, n, used_at FROM keys"
_INSERT: Final = "INSERT INTO keys (id, n, tenant, name, is_live, drop_at, data) VALUES (?, ?, ?, ?, ?, ?, ?)"
_UPDATE: Final = "UPDATE keys SET n = ?, is_live = ?, drop_at = ?, data = ? WHERE id = ? AND n = ? RETURNING used_at"
_NOTE_USE: Final = "UPDATE keys SET used_at = max(used_at, ?) WHERE id = ?"
_END_EXPIRED: Final = "UPDATE keys SET is_live = 0 WHERE is_live = 1 AND drop_at <= ?"
_PURGE: Final = "DELETE FROM keys WHERE id IN (SELECT id FROM keys WHERE is_live = 0 AND drop_at <= ? LIMIT ?)"
_WRITER: Final = """INSERT INTO spend_writers VALUES (?1, ?2, ?3)
    ON CONFLICT DO UPDATE SET n = excluded.n, at = excluded.at WHERE n < excluded.n RETURNING n"""
_ADD: Final = sql("""INSERT INTO spend ($groups, $counts) VALUES ($marks) ON CONFLICT DO UPDATE SET $sums""",
                  groups=", ".join(SPEND_GROUPS), counts=", ".join(SPEND_COUNTS),
                  marks=", ".join("?" * (len(SPEND_GROUPS) + len(SPEND_COUNTS))),
                  sums=", ".join(f"{name} = {name} + excluded.{name}" for name in SPEND_COUNTS))
_READ: Final = """SELECT $shown, $sums FROM spend WHERE day BETWEEN ? AND ? AND (? IS NULL OR tenant = ?)
    $grouping ORDER BY sum(nano_usd) DESC, sum(n_requests) DESC, $order LIMIT ?"""


def read_keys(db: sqlite3.Connection, after_version: int, limit: int) -> KeysPage:
    """A page of changes."""
    rows = db.execute(_SELECT + " WHERE n > ? ORDER BY n LIMIT ?", (after_version, limit)).fetchall()
    return KeysPage(tuple(_build(row) for row in rows), db.execute(_VERSION).fetchone()[0])


def create_key(db: sqlite3.Connection, now: float, key: StoredKey, max_keys: int) -> tuple[StoredKey | None, bool]:
    """Store a key. Records whose time is over make room."""
    db.execute(_PURGE, (now - KEEP_ENDED_S, PURGED_AT_ONCE))
    db.execute(_END_EXPIRED, (now,))
    found = db.execute(_SELECT + " WHERE id = ?1 OR (tenant = ?2 AND name = ?3 AND is_live = 1)",
                       (key.id, key.tenant, key.name)).fetchone()
    if found is not None:
        return _build(found), False
    if db.execute("SELECT count(*) FROM keys WHERE is_live = 1").fetchone()[0] >= max_keys:
        return None, False
    stored = replace(key, version=db.execute(_NEXT_VERSION).fetchone()[0])
    db.execute(_INSERT, (key.id, stored.version, key.tenant, key.name, key.is_live(now), drop_at(key), _encode(stored)))
    return stored, True


def update_key(db: sqlite3.Connection, now: float, key: StoredKey, version: int) -> StoredKey | None:
    """Replace a key."""
    if db.execute("SELECT 1 FROM keys WHERE id = ? AND n = ?", (key.id, version)).fetchone() is None:
        return None
    stored = replace(key, version=db.execute(_NEXT_VERSION).fetchone()[0])
    (used_at,) = db.execute(_UPDATE, (stored.version, key.is_live(now), drop_at(key), _encode(stored), key.id,
                                      version)).fetchone()
    return replace(stored, used_at=used_at or None)


def find_key(db: sqlite3.Connection, key_id: str) -> StoredKey | None:
    """A key, also an ended one."""
    row = db.execute(_SELECT + " WHERE id = ?", (key_id,)).fetchone()
    return None if row is None else _build(row)


def list_keys(db: sqlite3.Connection, tenant: str | None, after_id: str | None, limit: int) -> list[StoredKey]:
    """A page, by id."""
    rows = db.execute(_SELECT + " WHERE id > ?1 AND (?2 IS NULL OR tenant = ?2) ORDER BY id LIMIT ?3",
                      (after_id or "", tenant, limit))
    return [_build(row) for row in rows.fetchall()]


def note_key_uses(db: sqlite3.Connection, uses: Mapping[str, float]) -> None:
    """Write the latest uses."""
    db.executemany(_NOTE_USE, [(at, key_id) for key_id, at in uses.items()])


def add_spend(db: sqlite3.Connection, now: float, writer: str, n: int, rows: Sequence[SpendRow]) -> None:
    """Add to the sums, once for each number of a writer."""
    if not db.execute(_WRITER, (writer, n, now)).fetchall():
        return
    db.executemany(_ADD, [msgspec.structs.astuple(row) for row in rows])
    db.execute("DELETE FROM spend WHERE day < ?", (int(now // DAY_S) - KEEP_SPEND_DAYS,))
    db.execute("DELETE FROM spend_writers WHERE at < ?", (now - KEEP_WRITERS_S,))


def read_spend(db: sqlite3.Connection, groups: Sequence[str], first_day: int, last_day: int, tenant: str | None
               ) -> list[SpendRow]:
    """Sums of a period. Raises ValueError for an unknown group."""
    query = sql(_READ, **spend_columns(groups))
    rows = db.execute(query, (first_day, last_day, tenant, tenant, MAX_SPEND_ROWS)).fetchall()
    return [SpendRow(*row) for row in rows if row[len(SPEND_GROUPS)] is not None]


def spend_columns(groups: Sequence[str], integer: str = "integer") -> dict[str, str]:
    """The parts of a query for sums: `shown`, `sums`, `grouping`, `order`. Raises ValueError for an unknown group."""
    wrong = [name for name in groups if name not in SPEND_GROUPS]
    if wrong:
        raise ValueError(f"spend has no group {wrong[0]}")
    shown = [name if name in groups else "0" if name == "day" else "''" for name in SPEND_GROUPS]
    listed = ", ".join(groups)
    return {"shown": ", ".join(f"{value} AS {name}" for value, name in zip(shown, SPEND_GROUPS, strict=True)),
            "sums": ", ".join(f"CAST(sum({name}) AS {integer}) AS {name}" for name in SPEND_COUNTS),
            "grouping": f"GROUP BY {listed}" if groups else "", "order": listed or "sum(n_input)"}


def drop_at(key: StoredKey) -> float:
    """When it has ended, and its record's time begins; infinity: not yet."""
    ends_at = (at for at in (key.revoked_at, key.expires_at) if at is not None)
    return min(ends_at, default=inf)


def _build(row: tuple[bytes, int, float]) -> StoredKey:
    data, version, used_at = row
    return replace(_decode(data), version=version, used_at=used_at or None)
