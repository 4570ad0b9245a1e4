"""policy.cache.idempotency: its settings. What they do is tested in tests/flow/test_idempotency.py."""

from typing import Any

import pytest

from stayfast.policy.cache.idempotency import MAX_ANSWER_BYTES, IdempotencyConfig


def test_idempotency_config_default_holds_many_answers() -> None:
    """The memory holds more than one answer of the largest size."""
    config = IdempotencyConfig()
    assert config.ttl_s > 0
    assert config.max_bytes >= 8 * MAX_ANSWER_BYTES


@pytest.mark.parametrize(("setting", "value"), [("ttl_s", -1.0), ("ttl_s", 1e6), ("max_bytes", 1023)])
def test_idempotency_config_out_of_bounds_is_rejected(setting: str, value: Any) -> None:
    """The message names the setting; 0 turns it off."""
    with pytest.raises(ValueError, match=setting):
        IdempotencyConfig(**{setting: value})
    assert IdempotencyConfig(ttl_s=0).ttl_s == 0
