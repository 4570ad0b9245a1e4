"""Findings about credentials that are not renewed."""

from math import inf

import msgspec

from stayfast.policy.findings.credentials import RenewalState, find_failing_renewal
from stayfast.policy.findings.registry import all_kinds


def test_failing_renewal_of_a_valid_credential_is_a_warning() -> None:
    finding = find_failing_renewal(RenewalState("az", "entra", 400.0, 3, "status 401", 7.0))
    assert finding is not None
    assert (finding.id, finding.severity, finding.where.upstream, finding.since) == (
        "credentials.renewal_fails", "warn", "az", 7.0)
    assert "ends in 400 s" in finding.summary
    assert "status 401" in finding.because
    assert finding.id in all_kinds()


def test_ended_credential_is_urgent_at_the_first_failure() -> None:
    finding = find_failing_renewal(RenewalState("az", "entra", 0.0, 1, "status 401"))
    assert finding is not None
    assert finding.severity == "act"
    assert "requests fail" in finding.summary


def test_failing_reread_of_a_credential_without_an_end_can_be_encoded() -> None:
    finding = find_failing_renewal(RenewalState("bed", "aws", inf, 5, "no file"))
    assert finding is not None
    assert b"null" not in msgspec.json.encode(finding.evidence)


def test_single_failures_and_working_renewals_are_silent() -> None:
    """The look-alike: an issuer that fails twice and then works."""
    assert find_failing_renewal(RenewalState("az", "entra", 400.0, 2, "status 503")) is None
    assert find_failing_renewal(RenewalState("az", "entra", 0.0)) is None
    assert find_failing_renewal(RenewalState("az", "entra", 3000.0)) is None
