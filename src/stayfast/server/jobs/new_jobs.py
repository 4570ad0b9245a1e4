"""From a client's request to a job that can be stored."""

import secrets
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from stayfast.core.constants import KEY_HEADER
from stayfast.core.errors import Rejected
from stayfast.core.jobs import Door, NewJob
from stayfast.core.types import Api, Request
from stayfast.jobs.service import JobService
from stayfast.jobs.terms import estimate_tokens
from stayfast.policy.admission.priority import Urgency
from stayfast.server.backend import ActiveSystem
from stayfast.wire.request_body import decode

MAX_KEY_CHARS = 255
_FORWARDED = ("anthropic-version", "anthropic-beta", "x-session-id")


class JobTerms(msgspec.Struct, frozen=True):
    """What the client wants besides the answer. `run_at`, `deadline_at`: Unix seconds."""

    urgency: Urgency | None = None
    run_at: float = 0.0
    deadline_at: float | None = None
    idempotency_key: str | None = None
    metadata: Mapping[str, str] = {}
    keep_s: float | None = None  # None: the setting


def new_id(prefix: str, wall_at: float) -> str:
    """An id that cannot be guessed; ids of later milliseconds sort after earlier ones, so an index grows at its end."""
    return f"{prefix}{int(wall_at * 1e3):012x}{secrets.token_hex(10)}"


def decode_for_job(api: Api, body: bytes, current: ActiveSystem) -> Request:
    """The validated request. Raises Rejected: 400 for a bad body, 404 for an unknown model."""
    request = decode(api, body, current.limits)
    check_model(request, current)
    return request


def check_model(request: Request, current: ActiveSystem) -> None:
    """Raises Rejected (404) for an unknown model."""
    if request.model not in current.backend.models():
        raise Rejected("Unknown model. GET /v1/models lists all models.", status=404, code="model_not_found", param="model")


def make_job(request: Request, door: Door, terms: JobTerms, service: JobService, *, tenant: str | None,
             headers: tuple[tuple[str, str], ...] = (), job_id: str | None = None, key_id: str = "") -> NewJob:
    """The job of a request, due at `terms.run_at`. key_id: of a stored key, whose quota and spend the job counts for."""
    config, now = service.config, service.clock.wall()
    ranking = service.terms.terms_of(tenant, request.model, max(now, terms.run_at), deadline_at=terms.deadline_at,
                                     urgency=terms.urgency)
    return NewJob(
        id=job_id or new_id("job_", now), door=door, api=request.api, model=request.model, body=request.body,
        tenant=tenant, headers=mark_key(headers, key_id), is_stream=request.stream,
        rank=ranking.rank, n_tokens=estimate_tokens(request),
        weight=ranking.weight, run_at=terms.run_at, deadline_at=terms.deadline_at, aged_at=ranking.aged_at,
        keep_s=config.keep_s if terms.keep_s is None else terms.keep_s, is_reported=bool(config.webhooks),
        idempotency_key=terms.idempotency_key,
        digest=digest_request(request.api, request.body, terms) if terms.idempotency_key is not None else b"",
        metadata=terms.metadata)


def mark_key(headers: tuple[tuple[str, str], ...], key_id: str) -> tuple[tuple[str, str], ...]:
    """The stored headers of a job, with the id of its key."""
    return (*headers, (KEY_HEADER, key_id)) if key_id else headers


def digest_request(api: Api, body: bytes, terms: JobTerms) -> bytes:
    """Differs for different requests. Instants are left out: a repeated submission has later ones."""
    return blake2b(b"\0".join((api.value.encode(), (terms.urgency or "").encode(), body)), digest_size=16).digest()


def read_idempotency_key(headers: Mapping[str, str]) -> str | None:
    """Raises Rejected for one that is empty or too long."""
    key = headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= MAX_KEY_CHARS and key.isascii() and key.isprintable()):
        raise Rejected(f"idempotency-key must be 1 to {MAX_KEY_CHARS} visible ASCII characters.", code="bad_idempotency_key",
                       param="idempotency-key")
    return key


def headers_to_forward(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The client's headers that the upstream of a job gets; none is secret."""
    return tuple((name, headers[name]) for name in _FORWARDED if name in headers and headers[name].isascii())


def parse_job_urgency(word: str | None) -> Urgency | None:
    """The `priority` of a job; None: it has none. Raises Rejected."""
    if word is None:
        return None
    try:
        return Urgency(word.lower())
    except ValueError:
        raise Rejected(f"priority must be one of {', '.join(Urgency)}.", code="bad_priority", param="priority") from None
