"""The claim about stalls holds in a short run, and finds a lost or repeated character."""

from statistics import fmean

import pytest

from stayfast.lab.claims import stalls
from stayfast.lab.harness.claim import Verdict
from stayfast.lab.harness.virtual import run_virtual
from stayfast.wire.continuation import SeamTrimmer

N = 200


def test_stalls_claim_rescue_shortens_longest_gap() -> None:
    waited, rescued = (run_virtual(stalls.measure, N, 1, mode) for mode in ("wait", "rescue"))
    assert (waited.n_wrong, rescued.n_wrong) == (0, 0)
    [waited_gap, *_], [rescued_gap, *_] = (run.figures("it", stalls.GAP_P99_S) for run in (waited, rescued))
    assert waited_gap.value > stalls.STALL_S - 1.0
    assert waited_gap.verdict is not Verdict.HOLDS
    assert rescued_gap.value < stalls.GAP_P99_S
    assert rescued_gap.verdict is not Verdict.FALLS_SHORT
    assert set(waited.calls) == {1}
    assert 1.0 < fmean(rescued.calls) < stalls.CALLS + 0.02


def test_stalls_claim_waiting_falls_short() -> None:
    """A thousand answers without rescue."""
    waited = run_virtual(stalls.measure, 1000, 1, "wait")
    assert waited.figures("it", stalls.GAP_P99_S)[0].verdict is Verdict.FALLS_SHORT


@pytest.mark.parametrize("more", [-1, 1])
def test_stalls_claim_wrong_seam_falls_short(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """One character is lost or repeated."""
    right = SeamTrimmer.trim
    spoiled: set[SeamTrimmer] = set()

    def trim(seam: SeamTrimmer, text: str, *, is_last: bool = False) -> str:
        trimmed = right(seam, text, is_last=is_last)
        if seam in spoiled or not trimmed:
            return trimmed
        spoiled.add(seam)
        return trimmed[1:] if more < 0 else trimmed[0] + trimmed

    monkeypatch.setattr(SeamTrimmer, "trim", trim)
    assert run_virtual(stalls.measure, N, 1, "rescue").n_wrong > 0
