"""Comments that keep a silent line alive before the first token: every SDK must read over them."""

import openai
import pytest

from tests.clients.asks import WHOLE_TEXT, prompt
from tests.clients.callers import Caller
from tests.clients.gateway import KEEPALIVE_S
from tests.clients.script import SLOW_S

pytestmark = pytest.mark.sockets


def test_comments_come_before_a_slow_answer(openai_client: openai.OpenAI, marker: str) -> None:
    """While the upstream thinks, the stream begins and holds comments; then the answer follows."""
    asked = openai_client.chat.completions.with_streaming_response.create(
        model="via-chat", messages=[{"role": "user", "content": prompt(marker, "slow")}], stream=True)
    with asked as response:
        lines = [line for line in response.iter_lines() if line]
    n_comments = next(at for at, line in enumerate(lines) if not line.startswith(":"))
    assert 1 <= n_comments <= 2 * SLOW_S / KEEPALIVE_S  # a busy machine may take longer for the answer, too


def test_sdks_ignore_comments(caller: Caller, model: str, marker: str) -> None:
    """The text is whole, as if there had been no comments."""
    assert "".join(caller.pieces(model, prompt(marker, "slow"))) == WHOLE_TEXT


def test_an_error_after_comments_raises(caller: Caller, marker: str) -> None:
    """An error that comes too late for an HTTP status is an exception all the same."""
    with pytest.raises(caller.sdk.APIError) as caught:
        list(caller.pieces("via-chat", prompt(marker, "slow_error")))
    assert not isinstance(caught.value, caller.sdk.APIConnectionError)
