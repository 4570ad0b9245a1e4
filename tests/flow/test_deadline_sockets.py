"""Deadlines over real sockets, measured at the client: no answer is more than 50 ms late."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anthropic
import openai
import pytest
import uvloop
from openai.types.responses import ResponseIncompleteEvent

from tests.flow.socket_rig import EVENT_STREAM, check_within, chunk_of, gateway, listening, read_request

pytestmark = pytest.mark.sockets
DEADLINE_S = 0.4
IN_TIME = f"upstreams: [first], deadline: {DEADLINE_S}"
LATE_S = 0.05
N_AT_ONCE = 20


def chat_event(text: bytes, reason: bytes = b"null") -> bytes:
    """An event of a chat stream."""
    return (b'{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
            b'{"content":"' + text + b'"},"finish_reason":' + reason + b"}]}")


WHOLE = (b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
         b'"content":"well"},"finish_reason":"stop"}]}')


class Provider:
    """An upstream that hangs, stalls half way or answers, by its kind. It records the requests."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head, body = await read_request(reader)
                self.heads.append(head)
                self.bodies.append(body)
                writer.write(self._answer(json.loads(body).get("stream", False)))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # closed by the gateway
        finally:
            writer.close()

    def _answer(self, stream: bool) -> bytes:
        if self.kind == "hangs":
            return b""
        if self.kind == "halts":
            return EVENT_STREAM + chunk_of(chat_event(b"Half of ")) + chunk_of(chat_event(b"it"))
        if stream:
            return EVENT_STREAM + chunk_of(chat_event(b"well"), chat_event(b"", b'"stop"'), b"[DONE]", ends=True)
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(WHOLE), WHOLE)


@asynccontextmanager
async def gateway_of(route: str, **kinds: str) -> AsyncIterator[tuple[int, dict[str, Provider]]]:
    """A gateway with one route `m`: its port and its providers."""
    providers = {name: Provider(kind) for name, kind in kinds.items()}
    async with AsyncExitStack() as stack:
        lines = []
        for name, provider in providers.items():
            port = await stack.enter_async_context(listening(provider.talk))
            lines.append(f"  {name}: {{kind: openai, base_url: 'http://127.0.0.1:{port}/v1', probe: false, "
                         "apis: [chat], send_deadline: true}")
        text = "\n".join(["server: {port: 0}", "upstreams:", *lines, f"routes: {{m: {{{route}}}}}"])
        _, port = await stack.enter_async_context(gateway(text))
        yield port, providers


async def fetch(port: int, *, stream: bool, extra: str = "") -> tuple[float, bytes]:
    """Seconds from sending a request to the end of its answer, and the answer's bytes."""
    body = b'{"model":"m","stream":%s,"messages":[{"role":"user","content":"x"}]%s}' % (
        b"true" if stream else b"false", extra.encode())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began_at = time.monotonic()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                 b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    async with asyncio.timeout(20):
        answer = await reader.read()
    took_s = time.monotonic() - began_at
    writer.close()
    return took_s, answer


ROUTES = {
    "fail": IN_TIME,
    "fallback": f"{IN_TIME}, on_overrun: {{fallback: {{upstreams: [spare], reserve: 0.2}}}}",
    "template": f"{IN_TIME}, on_overrun: {{template: Later.}}",
    "partial": f"{IN_TIME}, on_overrun: {{partial: true}}",
}
EXPECTED = {
    ("fail", "hangs"): b'"code":"total_s_exceeded"', ("fail", "halts"): b'"code":"total_s_exceeded"',
    ("fallback", "hangs"): b"well", ("template", "hangs"): b"Later.", ("partial", "halts"): b'"finish_reason":"length"',
    ("partial", "hangs"): b'"code":"total_s_exceeded"',
}


@pytest.mark.serial
@pytest.mark.parametrize(("action", "kind", "stream"), [
    (action, kind, stream) for action, kind in EXPECTED for stream in (True, False)
    if stream or (action, kind) != ("fail", "halts")])
def test_deadline_over_sockets_is_met_within_50_ms(action: str, kind: str, stream: bool) -> None:
    """Twenty requests at a time, at an upstream that hangs or stalls, for each reaction of the route."""
    expected = EXPECTED[action, kind]

    async def main() -> float:
        async with gateway_of(ROUTES[action], first=kind, spare="answers") as (port, _):
            answers = await asyncio.gather(*(fetch(port, stream=stream) for _ in range(N_AT_ONCE)))
        assert all(expected in answer for _, answer in answers), answers[0]
        if action in ("fallback", "template"):
            assert all(b"x-stayfast-degraded: " + action.encode() in answer for _, answer in answers)
        if action == "partial" and kind == "halts":
            assert all(answer.endswith(b"0\r\n\r\n" if stream else b"}") for _, answer in answers)  # whole, as HTTP sees it
            assert all(b"x-stayfast-degraded%b partial" % (b":" * (not stream)) in answer for _, answer in answers)
        return max(took_s for took_s, _ in answers)

    check_within(DEADLINE_S + LATE_S, lambda: uvloop.run(main()))


def test_upstream_request_has_the_remaining_time() -> None:
    """In seconds, less than the deadline; the `stayfast` member of the body is not sent."""

    async def main() -> None:
        async with gateway_of("upstreams: [first], deadline: 30", first="answers") as (port, providers):
            await fetch(port, stream=True)
            await fetch(port, stream=False, extra=',"stayfast":{"deadline_ms":2000}')
        heads = [head.lower().split(b"x-request-timeout: ")[1].split(b"\r\n")[0] for head in providers["first"].heads]
        assert 29.0 < float(heads[0]) <= 30.0
        assert 1.0 < float(heads[1]) <= 2.0
        assert all(b"stayfast" not in body for body in providers["first"].bodies)

    uvloop.run(main())


def test_official_sdks_accept_degraded_answers() -> None:
    """A partial stream has its finish reason, and a template is an answer, in three protocols."""

    def run_clients(port: int) -> None:
        base = f"http://127.0.0.1:{port}"
        with openai.OpenAI(base_url=f"{base}/v1", api_key="k", max_retries=0) as client:
            chunks = list(client.chat.completions.create(model="m", stream=True,
                                                         messages=[{"role": "user", "content": "x"}]))
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Half of it"
            assert chunks[-1].choices[0].finish_reason == "length"
            last = list(client.responses.create(model="m", input="x", stream=True))[-1]
            assert isinstance(last, ResponseIncompleteEvent)
            response = last.response
            assert (response.output_text, response.status) == ("Half of it", "incomplete")
            assert response.incomplete_details is not None
            assert response.incomplete_details.reason == "max_output_tokens"
        with anthropic.Anthropic(base_url=base, api_key="k", max_retries=0) as claude, claude.messages.stream(
                model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as messages:
            message = messages.get_final_message()
            assert (message.content[0].to_dict()["text"], message.stop_reason) == ("Half of it", "max_tokens")

    def run_clients_of_template(port: int) -> None:
        base = f"http://127.0.0.1:{port}"
        with openai.OpenAI(base_url=f"{base}/v1", api_key="k", max_retries=0) as client:
            completion = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
            assert (completion.choices[0].message.content, completion.choices[0].finish_reason) == ("Later.", "stop")
            response = client.responses.create(model="m", input="x")
            assert (response.output_text, response.status) == ("Later.", "completed")
        with anthropic.Anthropic(base_url=base, api_key="k", max_retries=0) as claude:
            message = claude.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}])
            assert (message.content[0].to_dict()["text"], message.stop_reason) == ("Later.", "end_turn")
            assert message.usage.output_tokens == 0

    async def main() -> None:
        async with gateway_of(ROUTES["partial"], first="halts") as (port, _):
            await asyncio.to_thread(run_clients, port)
        async with gateway_of(ROUTES["template"], first="hangs") as (port, _):
            await asyncio.to_thread(run_clients_of_template, port)

    uvloop.run(main())


@pytest.mark.serial
def test_sdk_timeout_reaches_the_caller_as_a_timeout() -> None:
    """No 504 comes before it, where the route has no substitute."""

    def run_clients(port: int) -> None:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0, timeout=1.0) as client:
            began_at = time.monotonic()
            with pytest.raises(openai.APITimeoutError):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
            assert time.monotonic() - began_at < 5

    async def main() -> None:
        async with gateway_of("upstreams: [first], deadline: 30", first="hangs") as (port, _):
            await asyncio.to_thread(run_clients, port)

    uvloop.run(main())
