"""policy/queueing: which slow calls are explained by our own load."""

from stayfast.policy.resilience.queueing import N_GOOD, Concurrency


def known(n_good: int, held_s: float = 1.0) -> Concurrency:
    """An upstream at which so many run well, each for so long."""
    concurrency = Concurrency()
    for _ in range(20):
        concurrency.record_first_token(n_good, 0.1, 0.1)
        concurrency.record_duration(held_s)
    return concurrency


def test_concurrency_moving_queue_explains_a_wait() -> None:
    """Four a second is the pace; a third of it is enough, as three times the usual time is what is slow."""
    concurrency = known(4)
    assert concurrency.explains_slowness(40, 14, 10.0, 3.0)
    assert not concurrency.explains_slowness(40, 13, 10.0, 3.0)
    assert not concurrency.explains_slowness(40, 0, 10.0, 3.0)


def test_concurrency_ordinary_load_explains_nothing() -> None:
    """However many others were answered meanwhile."""
    concurrency = known(4)
    assert not concurrency.explains_slowness(4, 1000, 10.0, 3.0)
    assert concurrency.explains_slowness(5, 1000, 10.0, 3.0)


def test_concurrency_unknown_pace_explains_nothing() -> None:
    """No call has ended yet."""
    concurrency = Concurrency()
    concurrency.record_first_token(1, 0.1, 0.1)
    assert not concurrency.explains_slowness(40, 40, 1.0, 3.0)


def test_concurrency_n_good_fades() -> None:
    """A peak of forty, then one at a time: in some hundred calls that is what is ordinary. Slow answers teach nothing."""
    concurrency = known(40)
    for _ in range(N_GOOD * 5):
        concurrency.record_first_token(1, 0.1, 0.1)
    concurrency.record_first_token(1000, 0.2, 0.1)
    concurrency.record_first_token(1000, 0.2, 0.0)
    assert concurrency.explains_slowness(2, 1000, 1.0, 3.0)
