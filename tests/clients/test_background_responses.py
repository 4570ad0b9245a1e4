"""OpenAI's SDK for Python, responses in the background, through the gateway to each upstream dialect."""

import time

import openai
import pytest
from openai.types.responses import Response

from tests.clients.asks import WHOLE_TEXT, prompt
from tests.clients.upstream import Upstream

pytestmark = pytest.mark.sockets
WITHIN_S = 15.0


def poll(client: openai.OpenAI, response: Response, within_s: float = WITHIN_S) -> Response:
    """As OpenAI's guide does it."""
    give_up_at = time.monotonic() + within_s
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < give_up_at, response.status
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    return response


def test_background_response_is_polled_to_its_end(openai_client: openai.OpenAI, upstream: Upstream, model: str,
                                                  marker: str) -> None:
    """Queued at once, completed later, under one id; the upstream gets an ordinary request."""
    created = openai_client.responses.create(model=model, input=prompt(marker), background=True)
    assert (created.status, created.background, created.object) == ("queued", True, "response")
    done = poll(openai_client, created)
    assert (done.status, done.output_text, done.id) == ("completed", WHOLE_TEXT, created.id)
    assert done.usage is not None
    assert "background" not in upstream.wait_for(marker).body


def test_background_stream_is_resumed_after_every_event(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """The events after N are those that the first reader got after N, byte for byte as the SDK parses them."""
    events = list(openai_client.responses.create(model=model, input=prompt(marker), background=True, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == WHOLE_TEXT
    response_id = events[-1].response.id
    for event in events:
        rest = openai_client.responses.retrieve(response_id, stream=True, starting_after=event.sequence_number)
        assert list(rest) == events[event.sequence_number + 1:]
    assert openai_client.responses.retrieve(response_id).output_text == WHOLE_TEXT


def test_background_stream_is_followed_while_it_runs(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """A client that leaves after two events and comes back misses none and gets none twice."""
    seen = []
    with openai_client.responses.create(model=model, input=prompt(marker, "slow"), background=True, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if len(seen) == 2:
                break
    assert seen[0].type == "response.created"
    seen += openai_client.responses.retrieve(seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == WHOLE_TEXT


def test_background_response_is_cancelled_twice(openai_client: openai.OpenAI, upstream: Upstream, model: str,
                                                marker: str) -> None:
    """While its upstream hangs; the second call returns the final object; then it can be deleted."""
    created = openai_client.responses.create(model=model, input=prompt(marker, "hang_midway"), background=True)
    upstream.wait_for(marker)
    for _ in range(2):
        assert openai_client.responses.cancel(created.id).status == "cancelled"
    assert poll(openai_client, created).status == "cancelled"
    openai_client.responses.delete(created.id)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(created.id)


def test_background_response_that_fails_has_the_reason(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """The upstream's 400 is the response's error, with a code of the SDK."""
    created = openai_client.responses.create(model=model, input=prompt(marker, "context_length"), background=True)
    failed = poll(openai_client, created)
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.code == "invalid_prompt"
    assert failed.error.message


def test_background_response_is_continued(openai_client: openai.OpenAI, upstream: Upstream, model: str, marker: str) -> None:
    """By an ordinary request over any dialect; the upstream gets the whole conversation."""
    first = poll(openai_client, openai_client.responses.create(model=model, input="The first question.", background=True))
    second = openai_client.responses.create(model=model, input=prompt(marker), previous_response_id=first.id)
    assert second.output_text == WHOLE_TEXT
    seen = upstream.wait_for(marker)
    assert "The first question." in seen.text
    assert WHOLE_TEXT in seen.text


def test_wrong_use_of_background_responses_is_a_clear_error(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """A stream of a response without one, an unknown id, an unknown previous response."""
    created = openai_client.responses.create(model=model, input=prompt(marker), background=True)
    with pytest.raises(openai.BadRequestError, match="stream=true"):
        openai_client.responses.retrieve(created.id, stream=True)
    with pytest.raises(openai.NotFoundError, match="resp_none"):
        openai_client.responses.retrieve("resp_none")
    with pytest.raises(openai.BadRequestError, match="not found"):
        openai_client.responses.create(model=model, input="x", previous_response_id="resp_sf0")
