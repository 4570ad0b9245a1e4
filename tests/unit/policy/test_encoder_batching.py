"""policy.cache.encoder_batching: which texts share a batch."""

from stayfast.policy.cache.encoder_batching import N_RECENT, RETRY_EVERY, EncodingPace, PendingText, select_batch


def lengths(batch: list[PendingText]) -> list[int]:
    """Tokens of each."""
    return [one.n_tokens for one in batch]


def test_batch_of_takes_oldest_and_equal_lengths() -> None:
    """Of 9, 12, 9, 9 tokens the three nines go, and the twelve is next."""
    waiting = [PendingText(n, 0.0) for n in (9, 12, 9, 9)]
    batch = select_batch(waiting, 0.0, 256, 1.0)
    assert lengths(batch) == [9, 9, 9]
    assert lengths(select_batch([one for one in waiting if one not in batch], 0.0, 256, 1.0)) == [12]


def test_batch_of_is_limited_in_tokens() -> None:
    """Ten texts of 100 tokens with room for 256: two at a time; a text of 300 is still encoded."""
    assert lengths(select_batch([PendingText(100, 0.0)] * 10, 0.0, 256, 1.0)) == [100, 100]
    assert lengths(select_batch([PendingText(300, 0.0)] * 2, 0.0, 256, 1.0)) == [300]


def test_batch_of_late_text_goes_alone() -> None:
    """A text that has waited longer than late_s shares no batch."""
    waiting = [PendingText(9, 0.0), PendingText(9, 0.9), PendingText(9, 0.9)]
    assert select_batch(waiting, 1.0, 256, 0.5) == waiting[:1]
    assert select_batch(waiting, 0.4, 256, 0.5) == waiting


def test_batch_of_nothing_is_empty() -> None:
    """An empty queue gives an empty batch."""
    assert select_batch([], 0.0, 256, 1.0) == []


def test_encoding_pace_too_little_time_does_not_fit() -> None:
    """By the p95 of the last ones; one in RETRY_EVERY is tried, and N_RECENT quick ones make it quick again."""
    pace = EncodingPace()
    assert pace.has_time(0.001)
    for n in range(100):
        pace.add_sample(0.002 if n % 10 else 0.05)
    assert pace.p95_s == 0.05
    assert pace.has_time(0.05)
    assert [pace.has_time(0.01) for _ in range(2 * RETRY_EVERY)].count(True) == 2
    for _ in range(N_RECENT):
        pace.add_sample(0.002)
    assert pace.p95_s == 0.002
    assert pace.has_time(0.01)
