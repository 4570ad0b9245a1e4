"""A turn served as a model, to the official SDKs and to clients of its typed events, over sockets."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest

from stayfast.cli.explain import draw_waterfall
from stayfast.observe.waterfall import Waterfall
from tests.clients import desk
from tests.clients.gateway import Gateway, started

pytestmark = pytest.mark.sockets

SETTINGS = """
server: {host: 127.0.0.1}
upstreams:
  desk: {kind: turn, turn: "served_desk:answer", resume_s: 5}
  small: {kind: simulated, script: steady}
routes:
  desk: {upstreams: [desk], deadline: 10}
  small: [small]
"""
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that serves the turn."""
    with serving(tmp_path_factory.mktemp("served")) as gateway:
        yield gateway


def serving(folder: Path, *options: str) -> Any:
    """A gateway that serves it from this folder."""
    shutil.copy(str(desk.__file__), folder / "served_desk.py")
    settings = folder / "stayfast.yaml"
    settings.write_text(SETTINGS)
    return started(settings, folder, *options)


@pytest.fixture
def chat(served: Gateway) -> Iterator[openai.OpenAI]:
    """OpenAI's client, with its usual retries."""
    with openai.OpenAI(base_url=served.openai_url, api_key="none") as client:
        yield client


@pytest.fixture
def messages(served: Gateway) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client, with its usual retries."""
    with anthropic.Anthropic(base_url=served.origin, api_key="none") as client:
        yield client


def test_openai_chat(chat: openai.OpenAI) -> None:
    """Whole and streamed."""
    whole = chat.chat.completions.create(model="desk", messages=[{"role": "user", "content": "hello"}])
    assert whole.choices[0].message.content == "One two three "
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 2
    stream = chat.chat.completions.create(model="desk", messages=[{"role": "user", "content": "hello"}], stream=True)
    assert [text for chunk in stream if (text := chunk.choices[0].delta.content)] == ["One ", "two ", "three "]


def test_openai_responses(chat: openai.OpenAI) -> None:
    """Whole and streamed."""
    assert chat.responses.create(model="desk", input="hello").output_text == "One two three "
    stream = chat.responses.create(model="desk", input="hello", stream=True)
    assert [event.delta for event in stream if event.type == "response.output_text.delta"] == ["One ", "two ", "three "]


def test_anthropic_messages(messages: anthropic.Anthropic) -> None:
    """Whole and streamed; tokens are counted, too."""
    ask: Any = {"model": "desk", "max_tokens": 99, "messages": [{"role": "user", "content": "hello"}]}
    whole = messages.messages.create(**ask)
    assert [block.text for block in whole.content if block.type == "text"] == ["One two three "]
    assert whole.stop_reason == "end_turn"
    with messages.messages.stream(**ask) as stream:
        assert list(stream.text_stream) == ["One ", "two ", "three "]
    assert messages.messages.count_tokens(model="desk", messages=ask["messages"]).input_tokens > 0


def test_turn_error_has_openai_format(chat: openai.OpenAI, served: Gateway) -> None:
    """Before the first byte a status, and the SDK does not ask again; after it the stream breaks off with the error."""
    with pytest.raises(openai.InternalServerError) as failed:
        chat.chat.completions.create(model="desk", messages=[{"role": "user", "content": "fail"}])
    assert failed.value.code == "upstream_raised"
    assert "KeyError" in failed.value.message
    assert "what the user said" not in failed.value.message
    request_id = failed.value.response.headers["x-request-id"]
    lines = (served.errors.parent / "stdout.txt").read_text
    until(lambda: sum("upstream_raised" in line for line in lines().splitlines() if request_id in line) == 1)
    assert [line for line in lines().splitlines() if "turn_failed" in line and "served_desk.py:" in line]
    assert "what the user said" not in lines()

    stream = chat.chat.completions.create(model="desk", messages=[{"role": "user", "content": "fail midway"}], stream=True)
    assert next(chunk.choices[0].delta.content for chunk in stream) == "One "
    with pytest.raises(openai.APIError, match="KeyError"):
        list(stream)


def test_turn_error_has_anthropic_format(messages: anthropic.Anthropic) -> None:
    """The same, and what to write instead of nothing."""
    with pytest.raises(anthropic.InternalServerError, match="return its text"):
        messages.messages.create(model="desk", max_tokens=9, messages=[{"role": "user", "content": "nothing"}])
    with (pytest.raises(anthropic.APIStatusError, match="KeyError"),
          messages.messages.stream(model="desk", max_tokens=9, messages=[{"role": "user", "content": "fail midway"}]) as it):
        list(it.text_stream)


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_cancels_turn(served: Gateway, tmp_path: Path, stream: bool) -> None:
    """A client that hangs up, in the middle of a stream or waiting for the whole: the turn is over at once."""
    ended = tmp_path / "ended"
    body = {"model": "desk", "stream": stream, "messages": [{"role": "user", "content": f"hang {ended}"}]}
    with httpx.Client() as client:
        if stream:
            with client.stream("POST", f"{served.openai_url}/chat/completions", json=body) as answer:
                next(answer.iter_bytes())
                left_at = time.monotonic()
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(f"{served.openai_url}/chat/completions", json=body, timeout=0.5)
            left_at = time.monotonic()
    until(ended.exists)
    assert time.monotonic() - left_at < 1.0


def test_turn_calls_model_through_gateway(chat: openai.OpenAI, served: Gateway) -> None:
    """With what its own client has left as the deadline; `explain` shows the step."""
    answer = chat.chat.completions.with_raw_response.create(
        model="desk", messages=[{"role": "user", "content": f"ask {served.openai_url}"}],
        extra_headers={"x-stayfast-deadline-ms": "9000"})
    assert "latency" in (answer.parse().choices[0].message.content or "")
    assert "turn.model;dur=" in answer.headers["server-timing"]
    told = waterfall(served, answer.headers["x-request-id"])
    assert [(one.step, one.how) for one in told.attempts[0].steps] == [("model", "ok")]


def test_explain_and_metrics(served: Gateway) -> None:
    """The steps below their attempt, with what was cut and what they cost; counted by name."""
    answer = ask(served, "late", request_id="explain-me")
    answer.raise_for_status()
    told = waterfall(served, "explain-me")
    assert told.cost_usd == pytest.approx(0.002)
    assert [(one.step, one.how, one.cost_usd) for one in told.attempts[0].steps] == [
        ("kb", "ok", 0.001), ("web", "cancelled", 0.001)]
    drawn = draw_waterfall(told, 120)
    assert "    kb" in drawn
    assert "Steps without a result: web (cancelled" in drawn
    metrics = httpx.get(f"{served.origin}/metrics").text
    assert 'stayfast_turn_steps_total{upstream="desk",step="kb",result="ok"}' in metrics
    assert 'stayfast_turn_step_seconds_count{upstream="desk",step="web"}' in metrics


def test_typed_events_resume_after_disconnect(served: Gateway) -> None:
    """Events with ids; after a cut the rest of them, in whichever way the client comes back."""
    headers = {"x-stayfast-events": "typed", "x-request-id": "typed-1"}
    body = {"model": "desk", "stream": True, "messages": [{"role": "user", "content": "slowly"}]}
    with httpx.stream("POST", f"{served.openai_url}/chat/completions", json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        seen = [next(lines) for _ in range(3)]
    assert seen == ["id: 1", "event: progress", 'data: {"stage":"writing","status":"One"}']
    rest = httpx.post(f"{served.openai_url}/chat/completions", json=body, headers={**headers, "last-event-id": "1"})
    assert ids(rest) == [2, 3, 4, 5, 6, 7]
    assert "event: final" in rest.text


def test_late_patches(served: Gateway) -> None:
    """For those who ask for them; an unknown word, or a turn that nobody knows, is a clear error."""
    body = {"model": "desk", "stream": True, "messages": [{"role": "user", "content": "late"}]}
    url = f"{served.openai_url}/chat/completions"
    late = httpx.post(url, json=body, headers={"x-stayfast-events": "late"}).text
    assert late.index("event: final") < late.rindex("event: patch")
    refused = httpx.post(url, json=body, headers={"x-stayfast-events": "all"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-stayfast-events")
    refused = httpx.post(url, json=body, headers={"x-stayfast-events": "typed", "last-event-id": "x"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "last-event-id")
    gone = httpx.post(url, json=body, headers={"x-stayfast-events": "typed", "last-event-id": "3", "x-request-id": "gone"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "turn_not_kept")


def test_a_reload_drops_no_turn(tmp_path: Path) -> None:
    """One that runs ends with the code that it began with; the next one is the new code. Wrong code changes nothing."""
    with serving(tmp_path) as gateway:
        body = {"model": "desk", "stream": True, "messages": [{"role": "user", "content": "slowly"}]}
        with httpx.stream("POST", f"{gateway.openai_url}/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            change(tmp_path, 'WORD = "One"', 'WORD = "First"')
            os.kill(gateway.pid, signal.SIGHUP)
            until(lambda: "First" in ask(gateway, "hello").text)
            assert "three" in "".join(lines)
        change(tmp_path, 'WORD = "First"', 'WORD = ')
        os.kill(gateway.pid, signal.SIGHUP)
        until(lambda: "SyntaxError" in gateway.errors.read_text())
        assert "First" in ask(gateway, "hello").text


def test_typed_events_resume_at_another_worker(tmp_path: Path) -> None:
    """Whichever worker a client comes back to, it has the rest; all of them have the code of a reload."""
    with serving(tmp_path, "--workers", "2") as gateway:
        for number in range(6):
            headers = {"x-stayfast-events": "late", "x-request-id": f"turn-{number}"}
            body = {"model": "desk", "stream": True, "messages": [{"role": "user", "content": "late"}]}
            url = f"{gateway.openai_url}/chat/completions"
            with httpx.stream("POST", url, json=body, headers=headers) as answer:
                assert next(answer.iter_lines()) == "id: 1"
            for after in (1, 2, 3):
                rest = httpx.post(url, json=body, headers={**headers, "last-event-id": str(after)})
                assert ids(rest) == list(range(after + 1, 5))
        refused = httpx.post(url, json=body, headers={**headers, "last-event-id": "1", "x-request-id": "other"})
        assert refused.json()["error"]["code"] == "turn_not_kept"
        change(tmp_path, 'WORD = "One"', 'WORD = "First"')
        os.kill(gateway.pid, signal.SIGHUP)
        until(lambda: all("First" in ask(gateway, "hello").text for _ in range(8)))


def change(folder: Path, old: str, new: str) -> None:
    """Write the module anew, a second younger."""
    path = folder / "served_desk.py"
    text, at = path.read_text(), path.stat().st_mtime + 1
    assert old in text
    path.write_text(text.replace(old, new))
    os.utime(path, (at, at))


def ask(gateway: Gateway, text: str, request_id: str = "") -> httpx.Response:
    """A whole answer."""
    headers = {"x-request-id": request_id} if request_id else {}
    return httpx.post(f"{gateway.openai_url}/chat/completions", headers=headers, timeout=PATIENCE_S,
                      json={"model": "desk", "messages": [{"role": "user", "content": text}]})


def ids(answer: httpx.Response) -> list[int]:
    """Of the events in a body."""
    return [int(line.removeprefix("id: ")) for line in answer.text.splitlines() if line.startswith("id: ")]


def waterfall(gateway: Gateway, request_id: str) -> Waterfall:
    """What is known of a request that has ended."""
    url = f"{gateway.origin}/admin/requests/{request_id}"
    until(lambda: httpx.get(url).status_code == 200)
    return msgspec.json.decode(httpx.get(url).content, type=Waterfall)


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up_at, "it did not happen in time"
        time.sleep(0.01)
