"""The tables, and the steps from one version of them to the next.

Gateways of two versions may use one database while they are replaced one by one. A step therefore only adds: a table, an
index, a column with a default. `stayfast_schema.version` is the number of steps that were executed. A gateway that finds
more steps than it has goes on: they were additions. A step never changes once it is released.

All names begin with `stayfast_`, and are created in the first schema of the `search_path`.
"""

import asyncio
from typing import Any, Final

import asyncpg

from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.postgres.connections import BROKEN, MIGRATE_S, PostgresPool, describe_error, make_sql

_LOCK: Final = 0x5374_6179_6661_7374  # "Stayfast": the advisory lock of migrations
_RETRY_S: Final = 0.1

# The states of a row of the queue, also as 0, 1 and 2 in statements. A job that is due later is outside the index of claims.
DEFERRED, READY, RUNNING = 0, 1, 2

STEPS: Final = (
    """
CREATE FUNCTION stayfast_now() RETURNS double precision LANGUAGE sql VOLATILE
  AS 'SELECT extract(epoch FROM clock_timestamp())::double precision';

CREATE TABLE stayfast_jobs (          -- the request; inserted once, deleted when it expires
  id text COLLATE "C" PRIMARY KEY,
  seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
  door text NOT NULL,
  tenant text COLLATE "C" NOT NULL,               -- empty: none
  model text COLLATE "C" NOT NULL,
  batch_id text COLLATE "C",
  line integer,
  idempotency_key bytea,
  digest bytea NOT NULL,
  created_at double precision NOT NULL,
  record bytea NOT NULL,              -- msgpack of the submitted job, without its body
  body bytea NOT NULL);
CREATE INDEX stayfast_jobs_tenant ON stayfast_jobs (tenant, seq);
CREATE UNIQUE INDEX stayfast_jobs_idempotency ON stayfast_jobs (tenant, door, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX stayfast_jobs_line ON stayfast_jobs (batch_id, line) WHERE batch_id IS NOT NULL;

CREATE TABLE stayfast_queue (         -- jobs that have not ended
  job_id text COLLATE "C" PRIMARY KEY,
  seq bigint NOT NULL,
  state smallint NOT NULL,            -- 0 deferred, 1 ready, 2 running
  model text COLLATE "C" NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  batch_id text COLLATE "C",
  rank smallint NOT NULL,
  vft double precision NOT NULL,      -- virtual finish time
  cost double precision NOT NULL,     -- tokens / weight
  n_tokens bigint NOT NULL,
  created_at double precision NOT NULL,
  run_at double precision NOT NULL,
  deadline_at double precision NOT NULL,  -- Infinity: none
  aged_at double precision NOT NULL,
  keep_s double precision NOT NULL,
  token integer NOT NULL DEFAULT 0,
  n_failures integer NOT NULL DEFAULT 0,
  n_lost integer NOT NULL DEFAULT 0,  -- workers that died with it
  worker text,
  lease_until double precision,
  started_at double precision,
  is_cancelling boolean NOT NULL DEFAULT false,
  is_reported boolean NOT NULL DEFAULT false,
  why text NOT NULL DEFAULT '') WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02,
                                       autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX stayfast_queue_ready ON stayfast_queue (model, rank, vft, deadline_at, seq) WHERE state = 1;
CREATE INDEX stayfast_queue_aging ON stayfast_queue (model, aged_at, seq) WHERE state = 1 AND aged_at < 'Infinity';
CREATE INDEX stayfast_queue_due ON stayfast_queue (run_at) WHERE state = 0;
CREATE INDEX stayfast_queue_running ON stayfast_queue (worker) WHERE state = 2;
CREATE INDEX stayfast_queue_deadline ON stayfast_queue (deadline_at) WHERE deadline_at < 'Infinity';
CREATE INDEX stayfast_queue_tenant ON stayfast_queue (tenant);
CREATE INDEX stayfast_queue_batch ON stayfast_queue (batch_id) WHERE batch_id IS NOT NULL;

CREATE TABLE stayfast_ends (          -- the results; one for each job
  job_id text COLLATE "C" PRIMARY KEY,
  seq bigint NOT NULL,
  token integer NOT NULL,
  state text NOT NULL,
  status_code integer,                -- null: it ended without a result
  body bytea NOT NULL,
  request_id text NOT NULL,
  upstream text NOT NULL,
  usage bytea,                        -- msgpack; null: unknown
  cost_usd double precision,
  why text NOT NULL,
  n_failures integer NOT NULL,
  worker text,
  started_at double precision,
  finished_at double precision NOT NULL,
  expires_at double precision NOT NULL);
CREATE INDEX stayfast_ends_expiry ON stayfast_ends (expires_at);
CREATE INDEX stayfast_ends_state ON stayfast_ends (state, seq) WHERE state <> 'completed';

CREATE TABLE stayfast_tenants (       -- the virtual finish time of the last job of a tenant, by route and rank
  model text COLLATE "C",
  rank smallint,
  tenant text COLLATE "C",
  since double precision NOT NULL,    -- virtual time at its last submission
  vft double precision NOT NULL,
  PRIMARY KEY (model, rank, tenant)) WITH (fillfactor = 50);
CREATE TABLE stayfast_virtual_times ( -- the start tag of the latest claim
  model text COLLATE "C",
  rank smallint,
  v double precision NOT NULL,
  PRIMARY KEY (model, rank)) WITH (fillfactor = 50);

CREATE TABLE stayfast_events (
  job_id text COLLATE "C",
  n integer,
  epoch integer NOT NULL,
  is_last boolean NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (job_id, n));

CREATE TABLE stayfast_batches (
  id text COLLATE "C" PRIMARY KEY,
  seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
  door text NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  idempotency_key bytea,
  state text NOT NULL,
  record bytea NOT NULL,              -- msgpack of the batch; the columns below are newer
  n_total integer NOT NULL DEFAULT 0,
  n_completed integer NOT NULL DEFAULT 0,
  n_failed integer NOT NULL DEFAULT 0,
  n_cancelled integer NOT NULL DEFAULT 0,
  n_expired integer NOT NULL DEFAULT 0,
  usage bigint[] NOT NULL DEFAULT '{0,0,0,0,0,0}',
  finalizing_at double precision,
  cancelling_at double precision,
  drop_at double precision,
  is_reported boolean NOT NULL DEFAULT false,
  token integer NOT NULL DEFAULT 0,
  worker text,
  lease_until double precision) WITH (fillfactor = 50);
CREATE UNIQUE INDEX stayfast_batches_idempotency ON stayfast_batches (tenant, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE INDEX stayfast_batches_tenant ON stayfast_batches (tenant, seq);
CREATE INDEX stayfast_batches_state ON stayfast_batches (state)
  WHERE state IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE INDEX stayfast_batches_expiry ON stayfast_batches (drop_at) WHERE drop_at IS NOT NULL;

CREATE TABLE stayfast_reports (       -- ends that webhooks report; deleted when all have confirmed it
  id text COLLATE "C" PRIMARY KEY,
  seq bigint GENERATED ALWAYS AS IDENTITY,
  subject_id text NOT NULL,
  is_batch boolean NOT NULL,
  created_at double precision NOT NULL,
  n_attempts integer NOT NULL DEFAULT 0,
  next_at double precision NOT NULL DEFAULT 0,
  delivered text[] NOT NULL DEFAULT '{}',
  is_failed boolean NOT NULL DEFAULT false,
  why text NOT NULL DEFAULT '',
  token integer NOT NULL DEFAULT 0,
  lease_until double precision);
CREATE INDEX stayfast_reports_due ON stayfast_reports (is_failed, next_at);
CREATE INDEX stayfast_reports_order ON stayfast_reports (is_failed, seq);

CREATE TABLE stayfast_files (
  id text COLLATE "C" PRIMARY KEY,
  seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
  tenant text COLLATE "C" NOT NULL,
  purpose text NOT NULL,
  expires_at double precision,
  record bytea NOT NULL);
CREATE INDEX stayfast_files_tenant ON stayfast_files (tenant, seq);
CREATE INDEX stayfast_files_expiry ON stayfast_files (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE stayfast_bodies (        -- one row for each writing of a file; invisible until it is complete
  write_id text COLLATE "C" PRIMARY KEY,
  file_id text COLLATE "C" NOT NULL,
  is_complete boolean NOT NULL DEFAULT false,
  written_at double precision NOT NULL);
CREATE UNIQUE INDEX stayfast_bodies_file ON stayfast_bodies (file_id) WHERE is_complete;
CREATE INDEX stayfast_bodies_incomplete ON stayfast_bodies (written_at) WHERE NOT is_complete;
CREATE TABLE stayfast_parts (
  write_id text COLLATE "C",
  n integer,                          -- parts have the same size, but for the last one
  data bytea NOT NULL,
  PRIMARY KEY (write_id, n));
ALTER TABLE stayfast_parts ALTER COLUMN data SET STORAGE EXTERNAL;
""",
    """
CREATE TABLE stayfast_keys (
  id text COLLATE "C" PRIMARY KEY,
  n bigint NOT NULL UNIQUE,           -- of its last change
  tenant text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  is_live boolean NOT NULL,
  drop_at double precision NOT NULL,  -- its end; Infinity: none yet
  used_at double precision NOT NULL DEFAULT 0,
  record bytea NOT NULL) WITH (fillfactor = 70);
CREATE UNIQUE INDEX stayfast_keys_name ON stayfast_keys (tenant, name) WHERE is_live;
CREATE INDEX stayfast_keys_ended ON stayfast_keys (is_live, drop_at);
CREATE TABLE stayfast_key_version (n bigint NOT NULL);
INSERT INTO stayfast_key_version VALUES (0);
CREATE TABLE stayfast_spend (
  day integer,
  tenant text COLLATE "C",
  key_id text COLLATE "C",
  route text COLLATE "C",
  model text COLLATE "C",
  n_requests bigint NOT NULL,
  n_input bigint NOT NULL,
  n_cached bigint NOT NULL,
  n_output bigint NOT NULL,
  nano_usd bigint NOT NULL,
  nano_usd_list bigint NOT NULL,
  n_unpriced bigint NOT NULL,
  PRIMARY KEY (day, tenant, key_id, route, model)) WITH (fillfactor = 50);
CREATE TABLE stayfast_spend_writers (
  id text COLLATE "C" PRIMARY KEY,
  n bigint NOT NULL,
  at double precision NOT NULL);
CREATE INDEX stayfast_spend_writers_over ON stayfast_spend_writers (at);
""",
)



async def migrate(pool: PostgresPool) -> int:
    """Execute the steps that are missing; returns the version. Several processes may call it at once. Raises
    StoreUnavailable.
    """
    try:
        async with asyncio.timeout(MIGRATE_S):
            connection = await pool.connect(statement_timeout=f"{round(MIGRATE_S * 1e3)}ms")
            try:
                return await _migrate(connection)
            finally:
                connection.terminate()
    except TimeoutError:
        raise StoreUnavailable("the migration of the database did not end in time") from None
    except (*BROKEN, asyncpg.PostgresError) as error:
        raise describe_error(error) from None


async def _migrate(connection: Any) -> int:
    await connection.execute("BEGIN")
    await connection.fetchval("SELECT pg_advisory_xact_lock($1)", _LOCK)
    if await connection.fetchval("SELECT current_schema()") is None:  # no schema of the search path exists
        name = await connection.fetchval("SELECT trim(both ' \"' from split_part(current_setting('search_path'), ',', 1))")
        await connection.execute(make_sql('CREATE SCHEMA IF NOT EXISTS "{name}"', name=name.replace('"', '""')))
    await connection.execute("CREATE TABLE IF NOT EXISTS stayfast_schema (version integer NOT NULL)")
    version = await connection.fetchval("SELECT max(version) FROM stayfast_schema") or 0
    for number, step in enumerate(STEPS[version:], version + 1):
        await connection.execute(step)
        await connection.execute("INSERT INTO stayfast_schema VALUES ($1)", number)
    await connection.execute("COMMIT")
    return max(version, len(STEPS))
