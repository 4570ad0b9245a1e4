"""policy.admission.overload: signs of overload, and prompt limits."""

import pytest

from stayfast.policy.admission.overload import AdmissionConfig, OverloadSignals
from stayfast.policy.admission.priority import BANDS
from stayfast.policy.admission.queue import QueueConfig


def test_admission_config_spares_bands_by_number_of_signs() -> None:
    """One sign rejects none, two the lower bands, three and more all but premium and realtime."""
    config, queue = AdmissionConfig(10), QueueConfig(max_queue=10)
    late, busy, both = OverloadSignals(), OverloadSignals(), OverloadSignals()
    late.add_sample(0.0, 1.0, 0.0)
    busy.add_sample(1.0, 1.0, 1.0)
    both.add_sample(0.0, 1.0, 1.0)
    low, standard, realtime = (BANDS.index(name) for name in ("low", "standard", "realtime"))

    def spared(n_waiting: int, wait_s: float, strain: OverloadSignals, held_share: float = 0.0) -> list[bool]:
        return [config.may_queue(band, queue, n_waiting, wait_s, strain, held_share=held_share)
                for band in (low, standard, realtime)]

    assert spared(0, 0.0, late) == spared(0, 0.0, busy) == [True, True, True]
    assert spared(0, 0.0, both) == spared(5, 0.0, busy) == [False, True, True]
    assert spared(0, 0.0, OverloadSignals(), 1.0) == spared(0, 0.0, late, 0.4) == [True, True, True]
    assert spared(0, 0.0, late, 0.5) == [False, True, True]
    assert spared(5, 0.0, both) == spared(5, 60.0, both) == spared(5, 60.0, both, 1.0) == [False, False, True]


def test_overload_signals_busy_is_since_last_sample() -> None:
    """A process that was busy and is no longer shows no sign; half of a past lateness still counts."""
    strain = OverloadSignals()
    strain.reset(10.0, 3.0)
    strain.add_sample(10.5, 11.0, 4.0)
    assert (strain.busy, strain.late_s) == (1.0, 0.5)
    strain.add_sample(12.0, 12.0, 4.1)
    assert strain.busy == pytest.approx(0.1)
    assert strain.late_s == 0.25
