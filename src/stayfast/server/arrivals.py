"""From a request's headers and body to what the pipeline gets, for POST requests and for responses of a WebSocket."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from stayfast.core.constants import LARGE_REQUEST_BYTES
from stayfast.core.events import Trace
from stayfast.core.types import Api, Request
from stayfast.pipeline.exchange import Arrival
from stayfast.server.http_request import (
    EVENTS,
    forwarded_headers,
    has_stayfast_headers,
    parse_cache_control,
    parse_caller_trace,
    parse_events_wish,
    parse_sdk_timeout_s,
    parse_start_limit_s,
    parse_urgency,
)
from stayfast.wire.client_headers import parse_client_timeout_s
from stayfast.wire.request_body import DecodeLimits, decode

_DECODER = ThreadPoolExecutor(1, thread_name_prefix="stayfast-large-requests")

StartTrace = Callable[[Trace | None], Trace | None]  # from the caller's span to the request's own
T = TypeVar("T")


def read_arrival(request_id: str, accepted_at: float, tenant: str | None, fields: dict[bytes, bytes],
                 start_trace: StartTrace | None, *, key_id: str = "") -> Arrival:
    """start_trace: None: no tracing. key_id: of a stored key. Raises Rejected for a header with an invalid value."""
    if not has_stayfast_headers(fields):
        return Arrival(request_id, accepted_at, tenant, trace=None if start_trace is None else start_trace(None),
                       key_id=key_id)
    trace = parse_caller_trace(fields) if start_trace is None else start_trace(parse_caller_trace(fields))
    return Arrival(request_id, accepted_at, tenant, forwarded_headers(fields, trace, tenant), parse_client_timeout_s(fields),
                   parse_sdk_timeout_s(fields), trace, parse_urgency(fields), parse_cache_control(fields),
                   parse_events_wish(fields) if EVENTS in fields else None, key_id=key_id,
                   start_within_s=parse_start_limit_s(fields))


async def decode_request(api: Api, body: bytes, limits: DecodeLimits) -> Request:
    """The validated request; a large body is decoded in a thread. Raises Rejected."""
    if len(body) > LARGE_REQUEST_BYTES:
        return await asyncio.get_running_loop().run_in_executor(_DECODER, decode, api, body, limits)
    return decode(api, body, limits)


async def run_if_large(n_bytes: int, work: Callable[[], T]) -> T:
    """The result of `work`, of which a large input would stop the loop for too long."""
    if n_bytes > LARGE_REQUEST_BYTES:
        return await asyncio.get_running_loop().run_in_executor(_DECODER, work)
    return work()
