"""Which headers are passed on, in either direction.

Not passed: headers of one connection (RFC 9110, 7.6.1); credentials and cookies, because the upstream's account is the
gateway's and not the client's; what names the client or its network; what would change the client's trust in the gateway's
host (`strict-transport-security`, `alt-svc`, `access-control-*`, cookies); figures of the account that all tenants share.
Everything else is passed as it is, `content-encoding` and ranges included.
"""

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from stayfast.core.errors import Rejected
from stayfast.wire.passthrough.paths import ROOT

_HOP_BY_HOP = frozenset(("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
                         "proxy-authenticate", "proxy-authorization", "content-length", "http2-settings"))
_CREDENTIALS = frozenset(("authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie", "openai-organization",
                          "openai-project", "x-amz-security-token"))
_OF_CLIENT = frozenset(("host", "expect", "forwarded", "via", "x-real-ip", "origin", "referer", "true-client-ip",
                        "x-request-id", "x-client-ip", "cdn-loop", "max-forwards"))
# Read by the gateway, which sends its own form.
_READ = frozenset(("idempotency-key", "traceparent", "tracestate", "x-request-timeout", "x-request-timeout-ms",
                   "x-litellm-timeout", "x-deadline-ms", "x-envoy-expected-rq-timeout-ms", "grpc-timeout"))
_OF_ACCOUNT = frozenset(("set-cookie", "set-cookie2", "date", "x-request-id", "server-timing", "strict-transport-security",
                         "alt-svc", "openai-organization", "openai-project", "anthropic-organization-id",
                         "public-key-pins", "clear-site-data", "www-authenticate"))
_DROPPED_UP = _HOP_BY_HOP | _CREDENTIALS | _OF_CLIENT | _READ
_DROPPED_DOWN = _HOP_BY_HOP | _OF_ACCOUNT
_DROPPED_PREFIXES_UP = ("x-forwarded-", "x-stayfast-", "sec-", "proxy-", "cf-", "x-envoy-", "x-amzn-")
_DROPPED_PREFIXES_DOWN = ("access-control-", "x-ratelimit-", "anthropic-ratelimit-", "x-stayfast-", "proxy-", "sec-")
MAX_ID = 128  # characters of the upstream's own request id in the log


def forwarded_up(raw: Iterable[tuple[bytes, bytes]], own: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """A client's headers for the upstream, then `own`: the upstream's credentials and headers, and the gateway's; they
    replace the client's of the same name. Names are in lower case. Raises Rejected for a value that is not ASCII.
    """
    pairs = [(name.decode("latin-1").lower(), value) for name, value in raw]
    dropped = _DROPPED_UP | _named_by_connection(value.decode("latin-1") for name, value in pairs if name == "connection")
    dropped |= {name for name, _ in own}
    found = []
    for name, value in pairs:
        if name not in dropped and not name.startswith(_DROPPED_PREFIXES_UP):
            if not value.isascii():
                raise Rejected(f"The header {name} holds bytes that are not ASCII.", code="bad_header", param=name)
            found.append((name, value.decode()))
    return [*found, *own]


def forwarded_down(headers: Mapping[str, str], base: str, base_path: str) -> list[tuple[str, str]]:
    """An upstream's headers for the client, except those of the body's length. `base`, `base_path`: of its base_url, as
    scheme and host, and as path. A redirect to the upstream's own API leads to the same path of the gateway, so that the
    client neither needs the upstream's key nor learns its address; any other `location` is unchanged.
    """
    dropped = _DROPPED_DOWN | _named_by_connection([headers["connection"]]) if "connection" in headers else _DROPPED_DOWN
    return [(name, own_location(value, base, base_path) if name in ("location", "content-location") else value)
            for name, value in headers.items() if name not in dropped and not name.startswith(_DROPPED_PREFIXES_DOWN)]


def own_location(location: str, base: str, base_path: str) -> str:
    """A redirect's target, with the gateway's /v1 in place of the upstream's base URL."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return location
    if parts.netloc and f"{parts.scheme}://{parts.netloc}".lower() != base.lower():
        return location
    if not parts.path.startswith(f"{base_path}/"):
        return location
    return parts._replace(scheme="", netloc="", path=ROOT + parts.path[len(base_path):]).geturl()


def _named_by_connection(values: Iterable[str]) -> frozenset[str]:
    return frozenset(word.strip().lower() for value in values for word in value.split(","))
