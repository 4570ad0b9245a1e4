"""What goes wrong upstream reaches each client as an exception of its own SDK: never a 500 of ours, never a short answer."""

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from tests.clients.asks import prompt
from tests.clients.callers import Caller, Chat
from tests.clients.script import N_PIECES_BEFORE_FAULT, RETRY_AFTER_S, TEXT

pytestmark = pytest.mark.sockets


@pytest.fixture(params=["whole", "stream"])
def call(request: pytest.FixtureRequest, caller: Caller) -> Callable[[str, str], Any]:
    """Asking for a whole answer, and reading a stream to its end."""
    if request.param == "whole":
        return caller.whole
    return lambda model, ask: list(caller.pieces(model, ask))


def _error_fields(error: openai.APIStatusError | anthropic.APIStatusError) -> dict[str, Any]:
    """The error in the body, whose shape must be the client's own."""
    assert isinstance(error.body, dict)
    if isinstance(error, anthropic.APIStatusError):
        assert error.body["type"] == "error"
        assert isinstance(error.body["request_id"], str)
        fields: dict[str, Any] = error.body["error"]
        return fields
    assert {"message", "type", "param", "code"} <= error.body.keys()
    return error.body


def test_a_prompt_too_long_is_a_bad_request(
        caller: Caller, call: Callable[[str, str], Any], model: str, marker: str) -> None:
    """The upstream's own words about the client's own fault reach it, in its own dialect; nobody should try again."""
    with pytest.raises(caller.sdk.BadRequestError) as caught:
        call(model, prompt(marker, "context_length"))
    fields = _error_fields(caught.value)
    assert fields["type"] == "invalid_request_error"
    assert "maximum" in fields["message"]
    assert caught.value.response.headers["x-should-retry"] == "false"


def test_the_code_of_a_prompt_too_long_survives(openai_client: openai.OpenAI, marker: str) -> None:
    """Between the same dialects code and param pass, which applications branch on."""
    with pytest.raises(openai.BadRequestError) as caught:
        Chat(openai_client).whole("via-chat", prompt(marker, "context_length"))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_a_rate_limit_keeps_its_retry_after(
        caller: Caller, call: Callable[[str, str], Any], model: str, marker: str) -> None:
    """The upstream's 429 is the client's RateLimitError, with the time after which to come back."""
    with pytest.raises(caller.sdk.RateLimitError) as caught:
        call(model, prompt(marker, "rate_limit"))
    assert caught.value.response.headers["retry-after"] == str(RETRY_AFTER_S)
    assert _error_fields(caught.value)["type"] in ("rate_limit_error", "tokens")


def test_overload_is_a_server_error(
        caller: Caller, call: Callable[[str, str], Any], dialect: str, model: str, marker: str) -> None:
    """529 stays 529 for Anthropic's SDK, and is the 503 that OpenAI's knows."""
    with pytest.raises(caller.sdk.InternalServerError) as caught:
        call(model, prompt(marker, "overloaded"))
    is_anthropic_all_the_way = dialect == "messages" and caller.sdk is anthropic
    assert caught.value.status_code == (529 if is_anthropic_all_the_way else 503)
    assert _error_fields(caught.value)["type"] in ("overloaded_error", "service_unavailable_error")


def test_upstream_key_refused_is_server_error(
        caller: Caller, call: Callable[[str, str], Any], model: str, marker: str) -> None:
    """The upstream's 401 is a 502 here, without its words, which quote the key."""
    with pytest.raises(caller.sdk.InternalServerError) as caught:
        call(model, prompt(marker, "unauthorised"))
    assert caught.value.status_code == 502
    assert "sk-" not in caught.value.response.text
    assert "api key" not in caught.value.response.text.lower()


def test_an_unknown_model_is_not_found(caller: Caller, call: Callable[[str, str], Any]) -> None:
    """A model that no route names is a 404 that names it."""
    with pytest.raises(caller.sdk.NotFoundError) as caught:
        call("no-such-model", "Hello")
    assert "no-such-model" in _error_fields(caught.value)["message"]


def test_an_error_before_any_content_has_a_status(
        caller: Caller, call: Callable[[str, str], Any], model: str, marker: str) -> None:
    """An error inside the upstream's HTTP 200 is an HTTP error here, as long as nothing has been sent."""
    with pytest.raises(caller.sdk.InternalServerError) as caught:
        call(model, prompt(marker, "error_first"))
    _error_fields(caught.value)


@pytest.mark.parametrize("scenario", ["truncated", "reset"])
def test_a_broken_whole_answer_is_a_bad_gateway(caller: Caller, model: str, marker: str, scenario: str) -> None:
    """Half a JSON body is never passed on: it is a 502."""
    with pytest.raises(caller.sdk.InternalServerError) as caught:
        caller.whole(model, prompt(marker, scenario))
    assert caught.value.status_code == 502
    _error_fields(caught.value)


@pytest.mark.parametrize("scenario", ["error_midway", "truncated", "reset"])
def test_a_stream_broken_midway_raises(caller: Caller, model: str, marker: str, scenario: str) -> None:
    """All content that came reaches the client, and then an exception: no SDK takes the rest for an answer."""
    pieces: list[str] = []
    with pytest.raises(caller.sdk.APIError) as caught:
        pieces.extend(caller.pieces(model, prompt(marker, scenario)))
    assert pieces == list(TEXT[:N_PIECES_BEFORE_FAULT])
    assert not isinstance(caught.value, caller.sdk.APIConnectionError)  # in words, not by the broken connection alone

