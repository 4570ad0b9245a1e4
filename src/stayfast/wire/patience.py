"""How long a caller says that it will wait, in one of the many headers that say so."""

import math
import re
from collections.abc import Mapping

from stayfast.core.errors import Rejected

_PATIENCE = {  # what the number is to be multiplied by, to be seconds
    b"x-request-timeout": 1.0, b"x-stayfast-deadline": 1.0, b"x-litellm-timeout": 1.0, b"x-request-timeout-ms": 1e-3,
    b"x-stayfast-deadline-ms": 1e-3, b"x-deadline-ms": 1e-3, b"x-envoy-expected-rq-timeout-ms": 1e-3}
_GRPC_PATIENCE = b"grpc-timeout"
SAY_PATIENCE = frozenset((*_PATIENCE, _GRPC_PATIENCE))
_GRPC_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_GRPC_UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MAX_TIMEOUT_S = 86_400.0


def patience_s(fields: Mapping[bytes, bytes]) -> float | None:
    """How long the client says it will wait, in seconds; the least of what it says. Raises Rejected naming the header."""
    if SAY_PATIENCE.isdisjoint(fields):
        return None
    least_s: float | None = None
    for name, unit_s in _PATIENCE.items():
        said = fields.get(name)
        if said is not None:
            seconds = number(said) * unit_s
            if not 0 < seconds <= _MAX_TIMEOUT_S:  # false for NaN
                unit = "seconds" if unit_s == 1.0 else "milliseconds"
                raise _bad_timeout(name, f"{unit}, more than 0 and at most {_MAX_TIMEOUT_S / unit_s:.0f}")
            least_s = seconds if least_s is None else min(seconds, least_s)
    if (said := fields.get(_GRPC_PATIENCE)) is not None:
        found = _GRPC_TIMEOUT.fullmatch(said)
        seconds = float(found[1]) * _GRPC_UNITS_S[found[2]] if found is not None else 0.0
        if seconds <= 0:
            raise _bad_timeout(_GRPC_PATIENCE, "digits and a unit of H, M, S, m, u or n, and more than 0")
        least_s = seconds if least_s is None else min(seconds, least_s)
    return least_s


def number(said: bytes) -> float:
    """A header's number; NaN for what is none."""
    try:
        return math.nan if b"_" in said else float(said)  # float() takes Python's 1_000
    except ValueError:
        return math.nan


def _bad_timeout(name: bytes, wanted: str) -> Rejected:
    return Rejected(f"{name.decode()} must be {wanted}.", code="bad_timeout", param=name.decode())
