"""API keys and spend. One counter numbers all changes of keys; the lock of its row puts them in the order of their commits,
so that a reader that has seen a number misses none below it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from stayfast.core.keys import DAY_S, SPEND_COUNTS, SPEND_GROUPS, KeysPage, SpendRow, StoredKey
from stayfast.stores.jobs.embedded.keys import drop_at, spend_columns
from stayfast.stores.jobs.keys import KEEP_ENDED_S, KEEP_SPEND_DAYS, KEEP_WRITERS_S, MAX_SPEND_ROWS, PURGED_AT_ONCE
from stayfast.stores.jobs.postgres.connections import PostgresPool, columns, make_sql, to_text

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredKey).decode
_NEXT: Final = "UPDATE stayfast_key_version SET n = n + 1 RETURNING n, stayfast_now() AS now"
_SELECT: Final = "SELECT record, n, used_at FROM stayfast_keys"
_INSERT: Final = """INSERT INTO stayfast_keys (id, n, tenant, name, is_live, drop_at, record)
VALUES ($1, $2, $3, $4, $5, $6, $7)"""
_UPDATE: Final = """UPDATE stayfast_keys SET n = $2, is_live = $3, drop_at = $4, record = $5 WHERE id = $1 AND n = $6
RETURNING used_at"""
_PURGE: Final = """DELETE FROM stayfast_keys WHERE id = ANY(ARRAY(
  SELECT id FROM stayfast_keys WHERE NOT is_live AND drop_at <= $1 LIMIT $2))"""
_END_EXPIRED: Final = "UPDATE stayfast_keys SET is_live = false WHERE is_live AND drop_at <= $1"
_NOTE_USES: Final = """UPDATE stayfast_keys k SET used_at = greatest(k.used_at, u.at)
FROM unnest($1::text[], $2::double precision[]) AS u(id, at) WHERE k.id = u.id"""
_WRITER: Final = """INSERT INTO stayfast_spend_writers AS w VALUES ($1, $2, stayfast_now())
ON CONFLICT (id) DO UPDATE SET n = EXCLUDED.n, at = EXCLUDED.at WHERE w.n < EXCLUDED.n RETURNING at"""
_TYPES: Final = ("integer", *("text",) * 4, *("bigint",) * len(SPEND_COUNTS))
_ADD: Final = make_sql(
    """INSERT INTO stayfast_spend AS s ({names}) SELECT * FROM unnest({arrays}) AS u
ON CONFLICT (day, tenant, key_id, route, model) DO UPDATE SET {sums}""",
    names=", ".join((*SPEND_GROUPS, *SPEND_COUNTS)),
    arrays=", ".join(f"${n}::{kind}[]" for n, kind in enumerate(_TYPES, 1)),
    sums=", ".join(f"{name} = s.{name} + EXCLUDED.{name}" for name in SPEND_COUNTS))
_READ: Final = """SELECT {shown}, {sums} FROM stayfast_spend
WHERE day BETWEEN $1 AND $2 AND ($3::text IS NULL OR tenant = $3) {grouping}
ORDER BY sum(nano_usd) DESC, sum(n_requests) DESC, {order} LIMIT $4"""


class PostgresKeys:
    """The part of the store that has keys and spend."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    async def read_keys(self, after_version: int, limit: int) -> KeysPage:
        async def read(connection: Any) -> KeysPage:
            version = await connection.fetchval("SELECT n FROM stayfast_key_version")  # first: later changes are no loss
            rows = await connection.fetch(_SELECT + " WHERE n > $1 ORDER BY n LIMIT $2", after_version, limit)
            return KeysPage(tuple(_build(row) for row in rows), version)

        return await self._pool.run(read)

    async def create_key(self, key: StoredKey, max_keys: int) -> tuple[StoredKey | None, bool]:
        async def create(connection: Any) -> tuple[StoredKey | None, bool]:
            version, now = await connection.fetchrow(_NEXT)
            await connection.execute(_PURGE, now - KEEP_ENDED_S, PURGED_AT_ONCE)
            await connection.execute(_END_EXPIRED, now)
            found = await connection.fetchrow(_SELECT + " WHERE id = $1 OR (tenant = $2 AND name = $3 AND is_live)",
                                              to_text(key.id), to_text(key.tenant), to_text(key.name))
            if found is not None:
                return _build(found), False
            if await connection.fetchval("SELECT count(*) FROM stayfast_keys WHERE is_live") >= max_keys:
                return None, False
            stored = replace(key, version=version)
            await connection.execute(_INSERT, to_text(key.id), version, to_text(key.tenant), to_text(key.name),
                                     key.is_live(now), drop_at(key), _encode(stored))
            return stored, True

        return await self._pool.run_transaction(create)

    async def update_key(self, key: StoredKey, version: int) -> StoredKey | None:
        async def update(connection: Any) -> StoredKey | None:
            next_version, now = await connection.fetchrow(_NEXT)
            stored = replace(key, version=next_version)
            row = await connection.fetchrow(_UPDATE, to_text(key.id), next_version, key.is_live(now), drop_at(key),
                                            _encode(stored), version)
            return None if row is None else replace(stored, used_at=row["used_at"] or None)

        return await self._pool.run_transaction(update)

    async def find_key(self, key_id: str) -> StoredKey | None:
        row = await self._pool.fetch_row(_SELECT + " WHERE id = $1", to_text(key_id))
        return None if row is None else _build(row)

    async def list_keys(self, tenant: str | None, after_id: str | None, limit: int) -> list[StoredKey]:
        rows = await self._pool.fetch(
            _SELECT + " WHERE id > $1 AND ($2::text IS NULL OR tenant = $2) ORDER BY id LIMIT $3",
            to_text(after_id or ""), None if tenant is None else to_text(tenant), limit)
        return [_build(row) for row in rows]

    async def note_key_uses(self, uses: Mapping[str, float]) -> None:
        pairs = sorted((to_text(key_id), at) for key_id, at in uses.items())  # in one order: no deadlocks
        await self._pool.fetch(_NOTE_USES, *columns(pairs, 2))

    async def add_spend(self, writer: str, n: int, rows: Sequence[SpendRow]) -> None:
        values = sorted(_to_values(row) for row in rows)  # in one order: no deadlocks

        async def add(connection: Any) -> None:
            now = await connection.fetchval(_WRITER, writer, n)
            if now is None:
                return
            await connection.execute(_ADD, *columns(values, len(_TYPES)))
            await connection.execute("DELETE FROM stayfast_spend WHERE day < $1", int(now // DAY_S) - KEEP_SPEND_DAYS)
            await connection.execute("DELETE FROM stayfast_spend_writers WHERE at < $1", now - KEEP_WRITERS_S)

        await self._pool.run_transaction(add)

    async def read_spend(self, groups: Sequence[str], first_day: int, last_day: int, tenant: str | None) -> list[SpendRow]:
        query = make_sql(_READ, **spend_columns(groups, "bigint"))
        of_tenant = None if tenant is None else to_text(tenant)
        rows = await self._pool.fetch(query, first_day, last_day, of_tenant, MAX_SPEND_ROWS)
        return [SpendRow(*row) for row in rows if row["n_requests"] is not None]


def _to_values(row: SpendRow) -> tuple[Any, ...]:
    day, tenant, key_id, route, model, *counts = msgspec.structs.astuple(row)
    return (day, to_text(tenant), to_text(key_id), to_text(route), to_text(model), *counts)


def _build(row: Any) -> StoredKey:
    return replace(_decode(row["record"]), version=row["n"], used_at=row["used_at"] or None)
