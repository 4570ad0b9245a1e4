"""Rows of the embedded store and the records that they represent."""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from string import Template
from typing import Any, Final

import msgspec

from stayfast.core.jobs import Batch, BatchState, Door, FileInfo, Job, JobResult, JobState, NewJob
from stayfast.core.types import Api, Usage

Row = tuple[Any, ...]

JOB_COLUMNS: Final = ("id, door, api, model, state, tenant, created_at, is_stream, rank, n_tokens, run_at, deadline_at, "
                      "keep_s, token, n_failures, worker, started_at, finished_at, expires_at, is_cancelling, why, "
                      "batch_id, line, custom_id, metadata")
RESULT_COLUMNS: Final = "token, state, status_code, body, request_id, upstream, usage, cost_usd, why"
USAGE_FIELDS: Final = ("input_total", "output", "cached_read", "cache_write_5m", "cache_write_1h", "reasoning")
BATCH_COLUMNS: Final = ("data, state, n_completed, n_failed, n_cancelled, n_expired, token, finalizing_at, cancelling_at, "
                        + ", ".join(f"u_{name}" for name in USAGE_FIELDS))
FILE_COLUMNS: Final = "id, tenant, purpose, filename, n_bytes, created_at, expires_at, sha256"
NO_TENANT: Final = b""
_COLUMNS: Final = {"job": JOB_COLUMNS, "result": RESULT_COLUMNS, "batch": BATCH_COLUMNS, "file": FILE_COLUMNS}

_STATES: Final = {state.value: state for state in JobState}
_DOORS: Final = {door.value: door for door in Door}
_APIS: Final = {api.value: api for api in Api}
_to_msgpack = msgspec.msgpack.Encoder().encode
_to_metadata = msgspec.msgpack.Decoder(dict[str, str]).decode
_to_headers = msgspec.msgpack.Decoder(tuple[tuple[str, str], ...]).decode
_to_usage = msgspec.msgpack.Decoder(Usage).decode
_to_batch = msgspec.msgpack.Decoder(Batch).decode


def sql(query: str, **parts: str) -> str:
    """A query with the column lists `$job`, `$result`, `$batch`, `$file`, and other constant parts."""
    return Template(query).substitute(_COLUMNS, **parts)


def tenant_key(tenant: str | None) -> str | bytes:
    """A tenant as stored: a value that compares with `=`."""
    return NO_TENANT if tenant is None else tenant


def _tenant_of(stored: str | bytes) -> str | None:
    return stored if isinstance(stored, str) else None


def encode_values(values: Iterable[str | int]) -> str:
    """Values for `IN (SELECT value FROM json_each(?))`."""
    return json.dumps(list(values))


def encode_job(job: NewJob, now: float, vft: float, state: JobState) -> Row:
    """The values of a new row: those of JOB_COLUMNS, then vft, aged_at, is_deferred, idempotency_key, digest."""
    is_queued = state is JobState.QUEUED
    ended_at, expires_at = (None, None) if is_queued else (now, now + job.keep_s)
    return (job.id, job.door.value, job.api.value, job.model, state.value, tenant_key(job.tenant), now, job.is_stream,
            job.rank, job.n_tokens, job.run_at, inf if job.deadline_at is None else job.deadline_at, job.keep_s, 0, 0,
            None, None, ended_at, expires_at, 0, "", job.batch_id, job.line, job.custom_id, encode_metadata(job.metadata),
            vft,
            inf if job.aged_at is None else job.aged_at, is_queued and job.run_at > now, job.idempotency_key, job.digest)


def encode_metadata(metadata: Mapping[str, str]) -> bytes | None:
    return _to_msgpack(metadata) if metadata else None


def encode_headers(headers: tuple[tuple[str, str], ...]) -> bytes | None:
    return _to_msgpack(headers) if headers else None


def decode_headers(stored: bytes | None) -> tuple[tuple[str, str], ...]:
    return () if stored is None else _to_headers(stored)


def decode_job(row: Sequence[Any]) -> Job:
    """The job of a row that begins with JOB_COLUMNS."""
    (job_id, door, api, model, state, tenant, created_at, is_stream, rank, n_tokens, run_at, deadline_at, keep_s, token,
     n_failures, worker, started_at, finished_at, expires_at, is_cancelling, why, batch_id, line, custom_id,
     metadata) = row[:25]
    return Job(job_id, _DOORS[door], _APIS[api], model, _STATES[state], _tenant_of(tenant), created_at, bool(is_stream),
               rank, n_tokens, run_at, None if deadline_at == inf else deadline_at, keep_s, token, n_failures, worker,
               started_at, finished_at, expires_at, bool(is_cancelling), why, batch_id, line, custom_id,
               {} if metadata is None else _to_metadata(metadata))


def encode_result(n: int, result: JobResult) -> Row:
    """The row number, then RESULT_COLUMNS."""
    usage = None if result.usage is None else _to_msgpack(result.usage)
    return (n, result.token, result.state.value, result.status_code, result.body, result.request_id, result.upstream, usage,
            result.cost_usd, result.why)


def decode_result(job_id: str, row: Sequence[Any]) -> JobResult:
    """The result of a row of RESULT_COLUMNS."""
    token, state, status_code, body, request_id, upstream, usage, cost_usd, why = row
    return JobResult(job_id, token, _STATES[state], status_code, body, request_id, upstream,
                     None if usage is None else _to_usage(usage), cost_usd, why)


def encode_batch(batch: Batch) -> bytes:
    return _to_msgpack(batch)


def decode_batch(row: Sequence[Any]) -> Batch:
    """The batch of a row of BATCH_COLUMNS: what the store itself changes is in columns of its own."""
    (data, state, n_completed, n_failed, n_cancelled, n_expired, token, finalizing_at, cancelling_at, *usage) = row
    return msgspec.structs.replace(
        _to_batch(data), state=BatchState(state), n_completed=n_completed, n_failed=n_failed, n_cancelled=n_cancelled,
        n_expired=n_expired, token=token, finalizing_at=finalizing_at, cancelling_at=cancelling_at, usage=Usage(*usage))


def encode_file(info: FileInfo) -> Row:
    return (info.id, tenant_key(info.tenant), info.purpose, info.filename, info.n_bytes, info.created_at,
            inf if info.expires_at is None else info.expires_at, info.sha256)


def decode_file(row: Sequence[Any]) -> FileInfo:
    """The record of a row of FILE_COLUMNS."""
    file_id, tenant, purpose, filename, n_bytes, created_at, expires_at, sha256 = row
    return FileInfo(file_id, _tenant_of(tenant), purpose, filename, n_bytes, created_at,
                    None if expires_at == inf else expires_at, sha256)
