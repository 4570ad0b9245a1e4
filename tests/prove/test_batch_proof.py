"""The proof of batches holds in a short run, and falls short of what is lost, repeated, changed or large."""

import json
from dataclasses import replace
from itertools import chain

import pytest

from stayfast.lab.claims.batch_run import BatchRun, BatchRunClaim, make_finding
from stayfast.lab.harness.claim import Extent, Verdict
from tests.prove.running import figure_of, run, short_of, without_interval

N_LINES = 4


def line(number: int, text: str = "a") -> bytes:
    """A line of results."""
    return json.dumps({"custom_id": f"line-{number}", "response": text}).encode() + b"\n"


WHOLE = BatchRun(output=b"".join(map(line, range(3))), errors=line(3), seconds=1.0, growth_mb=10.0, n_calls=4)


@pytest.mark.sockets
def test_batch_claim_does_not_fall_short() -> None:
    """A short batch with one kill, and the full disk where the machine has mount namespaces."""
    finding = run(BatchRunClaim(quick=Extent(300), n_kills=1))
    assert short_of(finding) == []
    assert without_interval(finding) == []
    assert "1 kills" in finding.notes[1]
    if finding.spoiled is None:
        assert figure_of(finding, "full disk: submissions without a 503").value == 0
        assert figure_of(finding, "full disk: lines that were left to run").value > 0


def test_batch_claim_same_files_hold() -> None:
    """The reference for the test below."""
    assert make_finding(N_LINES, WHOLE, WHOLE).verdict is Verdict.HOLDS


@pytest.mark.parametrize(("killed", "short"), [
    (replace(WHOLE, errors=b""), ["lines without a result, killed", "bytes of the files that differ"]),
    (replace(WHOLE, errors=line(3) + line(2)), ["results more than one a line, killed", "bytes of the files that differ"]),
    (replace(WHOLE, errors=line(3, "b")), ["bytes of the files that differ"]),
    (replace(WHOLE, output=b"".join(chain(map(line, (1, 0, 2))))), ["bytes of the files that differ"]),
    (replace(WHOLE, growth_mb=50.1), ["growth of the gateway's memory, killed"])])
def test_batch_claim_damaged_files_fall_short(killed: BatchRun, short: list[str]) -> None:
    assert short_of(make_finding(N_LINES, WHOLE, killed)) == short
