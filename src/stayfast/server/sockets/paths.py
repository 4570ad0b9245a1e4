"""The paths of WebSockets."""

from collections.abc import Mapping

from stayfast.core.types import Api
from stayfast.http.server.parser import HttpRequest
from stayfast.server.job_paths import job_socket_label
from stayfast.server.paths import LLM_ENDPOINTS


def socket_label(request: HttpRequest) -> str | None:
    """The WebSocket that a request is for, as a metric label; None: none. A GET of /v1/responses is one only with an
    upgrade.
    """
    if request.method != "GET":
        return None
    if LLM_ENDPOINTS.get(request.path) is Api.RESPONSES:
        return "/v1/responses" if any(name.lower() == b"upgrade" for name, _ in request.raw_headers) else None
    return job_socket_label(request.path)


def origin_of(request: HttpRequest) -> str:
    """The page that opens the WebSocket; empty: no page."""
    headers: Mapping[bytes, bytes] = {name.lower(): value for name, value in request.raw_headers}
    return headers.get(b"origin", b"").decode("latin-1")
