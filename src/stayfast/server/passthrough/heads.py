"""From the head of a request to where it is passed, before its body is read.

The gateway's own paths are never passed, in whatever form they are written, except files and batches where the settings name
them: these belong to one account at the provider, without tenants.
"""

from stayfast.core.errors import StayfastError
from stayfast.http.server.websocket_handshake import offered_subprotocols
from stayfast.pipeline.passthrough.service import PassThrough
from stayfast.server.http_request import LlmHttpRequest, PassedPath
from stayfast.server.job_paths import strip_prefix
from stayfast.server.paths import allowed_methods, shutting_down_error
from stayfast.server.sockets.endpoints import allow_origin, check_offer
from stayfast.server.sockets.hub import SocketHub
from stayfast.wire.passthrough.paths import ROOT, canonical_path, is_below, is_movable

KEY_PROTOCOL = "openai-insecure-api-key."  # a browser cannot set headers of a WebSocket
_JOBS = "/v1/jobs"


def find_passed(passing: PassThrough, path: str, *, is_socket: bool = False) -> PassedPath | None:
    """Where a path is passed; None: it is not. Raises Rejected (400) for a path that servers may read differently."""
    path = strip_prefix(path)
    if not path.startswith(f"{ROOT}/") or (allowed_methods(path) and not is_movable(path)):
        return None
    canonical, paths = canonical_path(path), passing.paths
    if is_movable(canonical):
        upstream = paths.find_named(canonical)
    elif allowed_methods(canonical) or is_below(canonical, _JOBS):  # the gateway's own, disguised
        return None
    else:
        upstream = paths.find(canonical)
    return PassedPath(passing, upstream, path, paths.label(canonical), is_socket) if upstream is not None else None


def may_pass(passing: PassThrough | None, request: LlmHttpRequest) -> bool:
    """Set `passed` of a request that is passed on. Raises Rejected."""
    if passing is not None:
        request.passed = find_passed(passing, request.path, is_socket=offers_socket(request))
    return request.passed is not None


def prepare_socket(hub: SocketHub, request: LlmHttpRequest) -> None:
    """Before the check of keys: the key of a WebSocket may be in a subprotocol, and its page's origin may be allowed."""
    if not offers_socket(request):
        return
    allow_origin(hub, request)
    if b"authorization" not in request.fields:
        for word in offered_subprotocols(request):
            if word.startswith(KEY_PROTOCOL):
                request.fields[b"authorization"] = b"Bearer " + word[len(KEY_PROTOCOL):].encode()


def accept_passed(hub: SocketHub, request: LlmHttpRequest, *, is_refusing: bool) -> StayfastError | None:
    """Stream the body, or switch to WebSocket; or return why not."""
    passed = request.passed
    if passed is None or passed.is_socket:
        return check_offer(hub, request, is_refusing=is_refusing)
    if is_refusing:
        return shutting_down_error()
    if length_of(request) != 0:
        request.stream_body(passed.service.config.max_body_bytes)
    return None


def offers_socket(request: LlmHttpRequest) -> bool:
    return request.method == "GET" and any(
        name.lower() == b"upgrade" and value.lower() == b"websocket" for name, value in request.raw_headers)


def length_of(request: LlmHttpRequest) -> int | None:
    """The length of the body; None: unknown, because it comes in chunks."""
    if b"transfer-encoding" in request.fields:
        return None
    return next((int(value) for name, value in request.raw_headers if name.lower() == b"content-length"), 0)
