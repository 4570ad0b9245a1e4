"""The paths of durable work and their methods."""

from collections.abc import Mapping
from types import MappingProxyType

_PREFIXES = ("/openai", "/anthropic")
NEW_JOBS_SOCKET, JOB_SOCKET = "/v1/jobs/ws", "/v1/jobs/{id}/ws"
METHODS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "/v1/jobs": ("GET", "POST"),
    "/v1/jobs/{id}": ("GET", "DELETE"),
    "/v1/jobs/{id}/result": ("GET",),
    "/v1/jobs/{id}/events": ("GET",),
    "/v1/jobs/{id}/cancel": ("POST",),
    "/v1/responses/{id}": ("GET", "DELETE"),
    "/v1/responses/{id}/cancel": ("POST",),
    "/v1/files": ("GET", "POST"),
    "/v1/files/{id}": ("GET", "DELETE"),
    "/v1/files/{id}/content": ("GET",),
    "/v1/batches": ("GET", "POST"),
    "/v1/batches/{id}": ("GET",),
    "/v1/batches/{id}/cancel": ("POST",),
    "/v1/messages/batches": ("GET", "POST"),
    "/v1/messages/batches/{id}": ("GET", "DELETE"),
    "/v1/messages/batches/{id}/cancel": ("POST",),
    "/v1/messages/batches/{id}/results": ("GET",),
    "/admin/jobs": ("GET",),
    "/admin/jobs/{id}": ("GET",),
    "/admin/jobs/{id}/retry": ("POST",),
    "/admin/jobs/{id}/cancel": ("POST",),
    "/admin/webhooks": ("GET",),
    "/admin/webhooks/{id}/retry": ("POST",),
    "/admin/keys": ("GET", "POST"),
    "/admin/keys/{id}": ("GET", "PATCH", "DELETE"),
    "/admin/keys/{id}/rotate": ("POST",),
    "/admin/spend": ("GET",),
})
_PLAIN = frozenset(template for template in METHODS if "{" not in template)
_BY_TEMPLATE = {tuple(template[1:].split("/")): template for template in METHODS}


def strip_prefix(path: str) -> str:
    """The path without /openai or /anthropic."""
    for prefix in _PREFIXES:
        if path.startswith(prefix + "/"):
            return path[len(prefix):]
    return path


def find_template(path: str) -> str | None:
    """The template of a path, still percent-encoded; None if it is not one of durable work."""
    path = strip_prefix(path)
    if path in _PLAIN:
        return path
    parts = path[1:].split("/")
    if not all(parts):
        return None
    for template, text in _BY_TEMPLATE.items():
        if len(template) == len(parts) and all(
                name.startswith("{") or name == part for name, part in zip(template, parts, strict=True)):
            return text
    return None


def job_methods(path: str) -> tuple[str, ...]:
    """The methods of a path, HEAD where GET is; empty if it is not one of durable work."""
    template = find_template(path)
    if template is None:
        return ()
    methods = METHODS[template]
    return ("GET", "HEAD", *(method for method in methods if method != "GET")) if "GET" in methods else methods


def job_socket_label(path: str) -> str | None:
    """The template of a WebSocket of jobs; None for any other path."""
    parts = strip_prefix(path).split("/")
    if parts[:3] != ["", "v1", "jobs"] or parts[-1] != "ws":
        return None
    if len(parts) == 4:
        return NEW_JOBS_SOCKET
    return JOB_SOCKET if len(parts) == 5 and parts[3] else None
