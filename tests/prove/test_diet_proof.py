"""The claim about system prompts holds in a short run, and falls short without its findings, or with wrong ones."""

import asyncio
from collections.abc import Iterable

import msgspec
import pytest

from stayfast.core.findings import Finding
from stayfast.core.snapshot import Snapshot
from stayfast.lab.claims.diet import DietClaim
from stayfast.lab.harness.claim import Conditions, Extent
from stayfast.policy.findings.prompt_versions import find_moving_part, find_repeated_paragraphs
from tests.prove.running import short_of

EXTENT = Extent(5, n_rounds=1)


def find_one_byte_off(snapshot: Snapshot) -> Iterable[Finding]:
    for finding in find_moving_part(snapshot):
        yield msgspec.structs.replace(finding, summary=finding.summary.replace("byte 1", "byte 2"))


def find_without_patch(snapshot: Snapshot) -> Iterable[Finding]:
    for finding in find_repeated_paragraphs(snapshot):
        yield msgspec.structs.replace(finding, do=())


def find_nothing(_: Snapshot) -> Iterable[Finding]:
    return ()


def test_diet_claim_holds() -> None:
    assert short_of(asyncio.run(DietClaim(quick=EXTENT).run(Conditions(is_quick=True)))) == []


@pytest.mark.parametrize(("claim", "what"), [
    (DietClaim(quick=EXTENT, find_moving=find_nothing), ("places not named", "least after")),
    (DietClaim(quick=EXTENT, find_moving=find_one_byte_off), ("places not named",)),
    (DietClaim(quick=EXTENT, find_repeats=find_without_patch), ("least of the planted tokens",)),
])
def test_diet_claim_broken_finding_falls_short(claim: DietClaim, what: tuple[str, ...]) -> None:
    short = short_of(asyncio.run(claim.run(Conditions(is_quick=True))))
    assert all(any(words in name for name in short) for words in what)
