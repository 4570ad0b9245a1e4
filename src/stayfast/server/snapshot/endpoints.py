"""GET /admin/snapshot, /admin/live and /admin/live/history, for admins."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import parse_qs

from stayfast.core.errors import Rejected, StayfastError
from stayfast.http.server.asgi import Message, Scope
from stayfast.server.paths import HISTORY
from stayfast.server.snapshot.service import SnapshotService

MAX_HISTORY_S = 3600.0
MAX_EPOCH = 1e11
_EVENTS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
           (b"x-accel-buffering", b"no"))
_MAX_NAME_CHARS = 64  # of an unknown parameter that an error quotes


def read_parameters(scope: Scope, *names: str) -> dict[str, str]:
    """The query's parameters. Raises Rejected for others, and for repeated ones."""
    given = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    for name, values in given.items():
        shown = name[:_MAX_NAME_CHARS]
        if name not in names:
            raise Rejected(f"Unknown parameter {shown}. Supported: {', '.join(names) or 'none'}.", param=shown)
        if len(values) > 1:
            raise Rejected(f"{name} may occur only once.", param=name)
    return {name: values[0] for name, values in given.items()}


def read_number(text: str, name: str, least: float, most: float) -> float:
    """Raises Rejected."""
    try:
        number = float(text)
    except ValueError:
        number = least - 1.0
    if not least <= number <= most:
        raise Rejected(f"{name} must be a number from {least:g} to {most:.10g}.", param=name)
    return number


async def answer_snapshot(service: SnapshotService | None, scope: Scope) -> bytes:
    """The body for /admin/snapshot and /admin/live/history. Raises StayfastError."""
    snapshots = require(service)
    if scope["path"] == HISTORY:
        given = read_parameters(scope, "seconds")
        return await snapshots.history(read_number(given.get("seconds", "900"), "seconds", 1, MAX_HISTORY_S))
    given = read_parameters(scope, "at", "list")
    if not given:
        return await snapshots.snapshot()
    try:
        return await _read_stored(snapshots, given)
    except OSError as error:
        raise StayfastError(f"The stored snapshots cannot be read: {error.strerror}.", status=503,
                            code="snapshot_unavailable") from None


async def _read_stored(snapshots: SnapshotService, given: dict[str, str]) -> bytes:
    """With `list`, the times of all, whatever `at` says. Raises StayfastError, OSError."""
    at = read_number(given.get("at", "0"), "at", 0, MAX_EPOCH)
    if "list" in given:
        if given["list"] != "true":
            raise Rejected("list must be true.", param="list")
        return await snapshots.list_stored()
    found = await snapshots.snapshot_at(at)
    if found is None:
        raise Rejected("No snapshot of this time is stored, nor of the hour before. ?list=true lists the times.", status=404,
                       code="snapshot_not_found", param="at")
    return found


async def send_live(service: SnapshotService | None, scope: Scope, send: Callable[[Message], Awaitable[None]]) -> None:
    """The response to /admin/live. Raises StayfastError before its head."""
    read_parameters(scope)
    last_id = next((value for name, value in scope["headers"] if name == b"last-event-id"), b"")
    events = require(service).feed.watch(int(last_id) if last_id.isdigit() and len(last_id) <= 18 else None)
    await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": _EVENTS})
    try:
        async for event in events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
    finally:
        await events.aclose()
    await send({"type": "http.response.body", "body": b""})


def require(service: SnapshotService | None) -> SnapshotService:
    """Raises StayfastError (503) in a laboratory."""
    if service is None:
        raise StayfastError("This process collects no snapshots.", status=503, code="snapshot_unavailable")
    return service
