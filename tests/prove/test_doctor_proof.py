"""The claim about the doctor holds for the doctor, and for none that finds everything or nothing."""

import asyncio

import pytest

from stayfast.core.findings import Finding, FindingSite
from stayfast.core.snapshot import Snapshot
from stayfast.lab.claims.doctor import Doctor, DoctorClaim, DoctorExtent
from stayfast.lab.harness.claim import ClaimResult, Conditions, Verdict
from stayfast.policy.findings.registry import CHECKS


def find_all(_: Snapshot) -> list[Finding]:
    return [Finding(check.id, "warn", FindingSite(), "Always.", "Always.") for check in CHECKS]


def find_nothing(_: Snapshot) -> list[Finding]:
    return []


def judge(doctor: Doctor | None = None) -> ClaimResult:
    few = DoctorExtent(3, 2, 1)
    claim = DoctorClaim(quick=few) if doctor is None else DoctorClaim(quick=few, doctor=doctor)
    return asyncio.run(claim.run(Conditions(is_quick=True)))


def test_doctor_claim_holds_in_a_few_scenes() -> None:
    result = judge()
    assert result.verdict is Verdict.HOLDS, result.notes


@pytest.mark.parametrize("doctor", [find_all, find_nothing])
def test_doctor_that_always_or_never_finds_falls_short(doctor: Doctor) -> None:
    assert judge(doctor).verdict is Verdict.FALLS_SHORT
