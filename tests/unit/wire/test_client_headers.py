"""wire.allowances: rate-limit headers as each vendor's clients read them."""

import pytest

from stayfast.core.types import Allowance, Api
from stayfast.wire.client_headers import format_duration, rate_limit_lines

LEFT = (Allowance("requests", 600, 599, 0.1), Allowance("tokens", 1000, 0, 60.5))


def test_rate_limit_lines_for_openai_clients() -> None:
    """Limit, remaining and reset by kind; reset as a duration of Go's."""
    assert rate_limit_lines(Api.CHAT, LEFT, 0.0) == (
        b"x-ratelimit-limit-requests: 600\r\nx-ratelimit-remaining-requests: 599\r\nx-ratelimit-reset-requests: 100ms\r\n"
        b"x-ratelimit-limit-tokens: 1000\r\nx-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 1m0.5s\r\n")


def test_rate_limit_lines_for_anthropic_clients() -> None:
    """Anthropic's names, with the reset as an instant."""
    assert rate_limit_lines(Api.MESSAGES, LEFT[1:], 1_750_000_000.0) == (
        b"anthropic-ratelimit-tokens-limit: 1000\r\nanthropic-ratelimit-tokens-remaining: 0\r\n"
        b"anthropic-ratelimit-tokens-reset: 2025-06-15T15:07:40Z\r\n")


@pytest.mark.parametrize(("seconds", "text"), [
    (0, "0s"), (0.0004, "0s"), (0.012, "12ms"), (1, "1s"), (59.9994, "59.999s"), (59.9996, "1m0s"), (360, "6m0s"),
    (5400, "1h30m0s"), (86_400, "24h0m0s")])
def test_duration_has_gos_format(seconds: float, text: str) -> None:
    """As Go prints them."""
    assert format_duration(seconds) == text
