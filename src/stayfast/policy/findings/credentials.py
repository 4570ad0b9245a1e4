"""Credentials that are not renewed.

Problem: a token whose renewal fails still works, so nobody notices until it ends, and then every request fails at once.
Rule: found from the third failure in a row on, and as soon as there is no valid credential. One failed call of an issuer is
normal and is repeated after a second. When wrong: an issuer that fails three times and recovers was no danger.
"""

from typing import NamedTuple

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.units import format_seconds

RENEWAL_FAILS = "credentials.renewal_fails"
MIN_FAILED = 3
RENEWALS, MISSING = "stayfast_credential_renewals_total", "stayfast_credential_missing"


class RenewalState(NamedTuple):
    """The credential of one upstream. left_s: life that is left, 0: there is no valid one, inf: it has no end. why: of the
    last failure. since: of the first failure in a row, in seconds since the epoch.
    """

    upstream: str
    kind: str  # entra, google, aws
    left_s: float
    n_failed: int = 0  # in a row
    why: str = ""
    since: float | None = None


def find_failing_renewal(state: RenewalState) -> Finding | None:
    """The finding for one upstream; None: nothing is wrong."""
    if not state.n_failed or (state.n_failed < MIN_FAILED and state.left_s > 0):
        return None
    has_ended = state.left_s <= 0
    return Finding(
        RENEWAL_FAILS, "act" if has_ended else "warn", FindingSite(upstream=state.upstream),
        f"{state.upstream} has no valid credential, and its requests fail." if has_ended else
        f"The credential of {state.upstream} is not renewed, and ends in {format_seconds(state.left_s)}.",
        f"The last {state.n_failed:,} renewals of kind {state.kind} failed: {state.why}.",
        (Evidence("failed renewals in a row", state.n_failed, "", None, RENEWALS),
         Evidence("valid credentials", 0 if has_ended else 1, "", None, MISSING)),
        (SettingsChange("Correct the cause; the next attempt follows within a minute, without a restart.",
                        confidence="measured"),),
        f'{RENEWALS}{{result="failed"}} of upstream {state.upstream} stops', state.since)
