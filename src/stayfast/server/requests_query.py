"""The query of /admin/requests."""

import math
import re
from urllib.parse import parse_qs

from stayfast.core.errors import Rejected
from stayfast.observe.request_filter import RequestFilter
from stayfast.server.backend import RecentRequestsQuery
from stayfast.server.paths import MAX_LISTED

LISTS = ("all", "notable", "slowest")
OUTCOMES = ("ok", "degraded", "client_left", "failed", "rejected")
PARAMETERS = ("n", "which", "route", "upstream", "status", "outcome", "since")
_STATUS = re.compile(r"[1-5]([0-9]{2}|xx)")
_MAX_SHOWN_CHARS = 64  # of what a client sent, in an error
_MAX_NAME_CHARS = 200


def parse_requests_query(query: str, tenant: str | None) -> RecentRequestsQuery:
    """Raises Rejected for an unknown parameter or a wrong value."""
    given = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True, errors="replace").items()}
    for name in given.keys() - set(PARAMETERS):
        shown = name[:_MAX_SHOWN_CHARS]
        raise Rejected(f"Unknown parameter {shown}. Supported: {', '.join(PARAMETERS)}.", param=shown)
    n, which = given.get("n", "50"), given.get("which", "all")
    if not (n.isascii() and n.isdigit() and len(n) <= 4 and 1 <= int(n) <= MAX_LISTED):
        raise Rejected(f"n must be a whole number from 1 to {MAX_LISTED}.", param="n")
    if which not in LISTS:
        raise Rejected("which must be all, notable or slowest.", param="which")
    for name in ("route", "upstream"):
        if name in given and not 1 <= len(given[name]) <= _MAX_NAME_CHARS:
            raise Rejected(f"{name} must have 1 to {_MAX_NAME_CHARS} characters.", param=name)
    if "status" in given and not _STATUS.fullmatch(given["status"]):
        raise Rejected("status must be three digits such as 503, or 4xx or 5xx.", param="status")
    if given.get("outcome", "ok") not in OUTCOMES:
        raise Rejected(f"outcome must be {', '.join(OUTCOMES[:-1])} or {OUTCOMES[-1]}.", param="outcome")
    wanted = RequestFilter(given.get("route"), given.get("upstream"), given.get("status"), given.get("outcome"),
                           _parse_since(given["since"]) if "since" in given else None)
    return RecentRequestsQuery(int(n), which == "notable", tenant, which == "slowest", wanted)


def _parse_since(text: str) -> float:
    try:
        since = float(text)
    except ValueError:
        since = math.nan
    if not 0 <= since < math.inf:
        raise Rejected("since must be a number of seconds since 1970.", param="since")
    return since
