"""The claim about stalls holds in a short run, and finds a lost or repeated character."""

import pytest

from stayfast.lab.claims import stalls
from stayfast.lab.harness.virtual import run_virtual
from stayfast.wire.continuation import SeamTrimmer

N = 200


def test_stalls_claim_rescue_shortens_longest_gap() -> None:
    waited, rescued = (run_virtual(stalls.measure, N, 1, mode) for mode in ("wait", "rescue"))
    assert (waited.n_wrong, rescued.n_wrong) == (0, 0)
    assert waited.gap_p99_s > stalls.STALL_S - 1.0
    assert rescued.gap_p99_s < stalls.GAP_P99_S
    assert waited.calls == 1.0 < rescued.calls < stalls.CALLS + 0.02


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
