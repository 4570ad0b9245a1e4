"""Every quirk of a provider's row, against a simulated provider that has it: without the quirk the request fails there."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import SystemClock
from stayfast.core.deadline import Deadline
from stayfast.core.errors import UpstreamFailed
from stayfast.core.types import AnswerSummary, Api
from stayfast.lab.simulated.vendors.compatible import N_PROMPT, WORDS
from stayfast.lab.simulated.vendors.compatible_server import KEY, CompatibleServer
from stayfast.pipeline.exchange import Arrival
from stayfast.settings import SettingsText, load_settings
from stayfast.settings.providers import all_providers
from stayfast.upstreams.base import Call
from stayfast.upstreams.rate_limited import RateLimitedUpstream
from stayfast.wire.quirks import Quirk
from stayfast.wire.request_body import decode

pytestmark = pytest.mark.sockets
USER = {"role": "user", "content": "Say hello."}
TOOL_TURN = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_0fypS1hVX", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "call_0fypS1hVX", "content": "1"}]
LATE_SYSTEM = [USER, {"role": "assistant", "content": "Hi."}, {"role": "system", "content": "Be brief."}, USER]
JSON_MODE = {"response_format": {"type": "json_object"}}


@dataclass
class Answer:
    """What came of one call: the chunks with their numbers of content, and the summary."""

    summary: AnswerSummary
    chunks: list[tuple[bytes, int]] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(data for data, _ in self.chunks)


@contextmanager
def running_system(upstreams: str, route: str = "[a]") -> Iterator[System]:
    settings = load_settings(SettingsText("f.yaml", f"upstreams: {upstreams}\nroutes: {{m: {route}}}\n"), {})
    clock = SystemClock()
    system = build(settings, Observers(settings, clock), {}, clock, Random(1))
    try:
        yield system
    finally:
        for member in system.registry:
            member.upstream.close()


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[CompatibleServer, int]]:
    server = CompatibleServer()
    port = await server.listen()
    try:
        yield server, port
    finally:
        await server.close()


async def call(upstream: str, body: dict[str, Any], api: Api = Api.CHAT) -> Answer:
    """One call of an upstream with these settings. Raises UpstreamFailed."""
    request = decode(api, json.dumps({"model": "m", **body}).encode())
    with running_system(f"{{a: {{{upstream}, key: {KEY}, probe: false}}}}") as system:
        stream = await system.registry["a"].upstream.open(
            Call(request, "gpt-4o", "req_1", Deadline(time.monotonic() + 10), 5.0))
        answer = Answer(stream.summary)
        try:
            while (chunk := await stream.next()) is not None:
                answer.chunks.append((chunk.data, chunk.n_content))
        finally:
            stream.close()
    return answer


@pytest.mark.parametrize(("provider", "vendor", "quirk", "body"), [
    ("mistral", "mistral", Quirk.MAX_TOKENS, {"max_completion_tokens": 2}),
    ("mistral", "mistral", Quirk.RANDOM_SEED, {"seed": 7}),
    ("mistral", "mistral", Quirk.NO_STREAM_OPTIONS, {"stream": True, "stream_options": {"include_usage": True}}),
    ("mistral", "mistral", Quirk.NO_DEVELOPER_ROLE, {"messages": [{"role": "developer", "content": "Be brief."}, USER]}),
    ("mistral", "mistral", Quirk.TOOL_ID_9, {"messages": TOOL_TURN}),
    ("deepseek", "deepseek", Quirk.NO_DEVELOPER_ROLE, {"messages": [{"role": "developer", "content": "Be brief."}, USER]}),
    ("deepseek", "deepseek", Quirk.JSON_WORD, JSON_MODE),
    ("groq", "groq", Quirk.JSON_WORD, JSON_MODE),
    ("groq", "groq", Quirk.NO_MESSAGE_NAMES, {"messages": [{**USER, "name": "ann"}]}),
    ("perplexity", "perplexity", Quirk.SYSTEM_FIRST, {"messages": LATE_SYSTEM}),
    ("gemini-openai", "gemini", Quirk.NO_SEED, {"seed": 7}),
])
def test_quirk_of_a_provider_makes_its_request_pass(provider: str, vendor: str, quirk: Quirk, body: dict[str, Any]) -> None:
    """With the provider's row it is answered; with all of its quirks but this one, it is refused."""
    row = all_providers()[provider]
    assert quirk in row.quirks

    async def main() -> None:
        async with listening() as (_, port):
            upstream = f"provider: {provider}, base_url: 'http://127.0.0.1:{port}/{vendor}'"
            whole = {"messages": [USER], **body}
            answer = await call(upstream, whole)
            assert answer.summary.is_complete
            others = ", ".join(each for each in row.quirks if each is not quirk)
            with pytest.raises(UpstreamFailed) as failed:
                await call(f"{upstream}, quirks: [{others}]", whole)
            assert failed.value.upstream_status in (400, 422)

    asyncio.run(main())


@pytest.mark.parametrize(("quirk", "body"), [
    (Quirk.MAX_COMPLETION_TOKENS, {"max_tokens": 2}), (Quirk.NO_PARALLEL_TOOL_CALLS, {"parallel_tool_calls": True})])
def test_quirk_of_own_settings_makes_its_request_pass(quirk: Quirk, body: dict[str, Any]) -> None:
    """OpenAI's reasoning models, under whose names no row can be found."""

    async def main() -> None:
        async with listening() as (_, port):
            upstream = f"kind: openai, base_url: 'http://127.0.0.1:{port}/reasoning'"
            with pytest.raises(UpstreamFailed, match="400"):
                await call(upstream, {"messages": [USER], **body})
            answer = await call(f"{upstream}, quirks: [{quirk}]", {"messages": [USER], **body})
            assert answer.summary.is_complete

    asyncio.run(main())


@pytest.mark.parametrize(("provider", "vendor"), [("deepseek", "deepseek"), ("perplexity", "perplexity")])
def test_quirk_max_tokens_limits_the_answer(provider: str, vendor: str) -> None:
    """A provider that ignores max_completion_tokens answers at length, and bills it."""

    async def main() -> None:
        body = {"messages": [USER], "max_completion_tokens": 1}
        async with listening() as (_, port):
            upstream = f"provider: {provider}, base_url: 'http://127.0.0.1:{port}/{vendor}'"
            limited, ignored = await call(upstream, body), await call(f"{upstream}, quirks: []", body)
        usages = [answer.summary.usage for answer in (limited, ignored)]
        assert [usage.output for usage in usages if usage is not None] == [1, len(WORDS)]

    asyncio.run(main())


@pytest.mark.parametrize(("provider", "vendor"), [("groq", "groq"), ("moonshot", "moonshot")])
@pytest.mark.parametrize("client", [Api.CHAT, Api.MESSAGES])
def test_quirk_odd_usage_is_counted(provider: str, vendor: str, client: Api) -> None:
    async def main() -> None:
        body = {"messages": [USER], "stream": True, "max_tokens": 9}
        async with listening() as (_, port):
            upstream = f"provider: {provider}, base_url: 'http://127.0.0.1:{port}/{vendor}'"
            answer = await call(upstream, body, client)
            others = [each for each in all_providers()[provider].quirks if each is not Quirk.ODD_USAGE]
            without = await call(f"{upstream}, quirks: [{', '.join(others)}]", body, client)
        assert answer.summary.usage is not None
        assert (answer.summary.usage.input_total, answer.summary.usage.output) == (N_PROMPT, len(WORDS))
        assert without.summary.usage is None

    asyncio.run(main())


def test_usage_in_the_last_chunk_is_counted() -> None:
    """Mistral's, which comes unrequested."""

    async def main() -> None:
        async with listening() as (server, port):
            answer = await call(f"provider: mistral, base_url: 'http://127.0.0.1:{port}/mistral', request_usage: true",
                                {"messages": [USER], "stream": True})
        assert answer.summary.usage is not None
        assert answer.summary.usage.output == len(WORDS)
        assert "stream_options" not in server.received[0].body

    asyncio.run(main())


def test_engine_of_its_own_counts_the_tokens_of_streams() -> None:
    """The row of an engine requests usage, which is hidden from a client that did not."""

    async def main() -> None:
        async with listening() as (_, port):
            body = {"messages": [USER], "stream": True}
            answer = await call(f"kind: vllm, base_url: 'http://127.0.0.1:{port}/openrouter'", body)
            bare = await call(f"kind: openai, base_url: 'http://127.0.0.1:{port}/openrouter'", body)
        assert answer.summary.usage is not None
        assert answer.summary.usage.output == len(WORDS)
        assert b'"usage"' not in answer.body
        assert bare.summary.usage is None

    asyncio.run(main())


@pytest.mark.parametrize(("provider", "vendor"), [("deepseek", "deepseek"), ("openrouter", "openrouter")])
def test_comments_before_the_answer_are_no_first_token(provider: str, vendor: str) -> None:
    async def main() -> None:
        async with listening() as (_, port):
            upstream = f"provider: {provider}, base_url: 'http://127.0.0.1:{port}/{vendor}'"
            answer = await call(upstream, {"messages": [USER], "stream": True})
            whole = await call(upstream, {"messages": [USER]})
        first = next(at for at, (_, n_content) in enumerate(answer.chunks) if n_content)
        assert b"".join(data for data, _ in answer.chunks[:first]).count(b"\n: ") + answer.body.startswith(b": ") == 2
        assert b'"content":"Hello"' in answer.chunks[first][0]
        assert whole.summary.is_complete

    asyncio.run(main())


def test_error_inside_a_stream_is_answered_by_the_next_upstream() -> None:
    """OpenRouter's error comes with status 200, after comments: before the first token another upstream answers."""

    async def main() -> bytes:
        async with listening() as (_, port):
            upstreams = (
                f"{{a: {{provider: openrouter, base_url: 'http://127.0.0.1:{port}/openrouter', key: {KEY}, probe: false}}, "
                f"b: {{kind: openai, base_url: 'http://127.0.0.1:{port}/plain', key: {KEY}, probe: false}}}}")
            body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "[error]"}]}
            request = decode(Api.CHAT, json.dumps(body).encode())
            with running_system(upstreams, "{upstreams: [a, b], pick: order, retry: {backoff_base_s: 0.001}}") as system:
                reply = await system.gateway.serve(request, Arrival("req_1", time.monotonic()))
                parts = []
                while (chunk := await reply.next()) is not None:
                    parts.append(chunk.data)
                reply.close()
            return b"".join(parts)

    answer = asyncio.run(main())
    assert b"chat-plain" in answer
    assert b"chat-openrouter" not in answer


def test_stream_without_done_is_complete() -> None:
    async def main() -> None:
        async with listening() as (_, port):
            answer = await call(f"kind: openai, base_url: 'http://127.0.0.1:{port}/plain'",
                                {"messages": [USER], "stream": True})
        assert answer.summary.is_complete
        assert answer.body.endswith(b"data: [DONE]\n\n")

    asyncio.run(main())


@pytest.mark.parametrize("more", [
    "",
    ", paths: {chat: '/deployments/{model}/chat/completions?api-version=2024-10-21'}",
])
def test_azure_paths_and_header_are_accepted(more: str) -> None:
    """The path of today, and the old one with the deployment and a version."""

    async def main() -> None:
        async with listening() as (server, port):
            path = "/openai" if more else ""
            answer = await call(f"provider: azure, base_url: 'http://127.0.0.1:{port}{path}'{more}", {"messages": [USER]})
        assert answer.summary.is_complete
        assert "authorization" not in server.received[0].headers

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_vertex_anthropic_names_the_model_in_the_path(stream: bool) -> None:
    async def main() -> None:
        body = {"messages": [USER], "max_tokens": 5, "stream": stream}
        async with listening() as (server, port):
            url = f"base_url: 'http://127.0.0.1:{port}/publishers/anthropic'"
            answer = await call(f"provider: vertex-anthropic, {url}, key_header: authorization", body, Api.MESSAGES)
            assert answer.summary.is_complete
            with pytest.raises(UpstreamFailed, match="400"):
                await call(f"provider: vertex-anthropic, {url}, key_header: authorization, quirks: []", body, Api.MESSAGES)
        assert server.received[0].target.endswith("gpt-4o:streamRawPredict" if stream else "gpt-4o:rawPredict")

    asyncio.run(main())


def test_limits_of_a_day_do_not_empty_the_minute() -> None:
    """Groq's header of requests counts a day; taken for a minute's, it would replace what the gateway knows."""

    async def main() -> list[float]:
        found = []
        async with listening() as (_, port):
            for quirks in ("", ", quirks: []"):
                text = (f"{{a: {{provider: groq, base_url: 'http://127.0.0.1:{port}/groq', key: {KEY}, probe: false, "
                        f"rate: {{requests_per_minute: 5000}}{quirks}}}}}")
                request = decode(Api.CHAT, json.dumps({"model": "m", "messages": [USER]}).encode())
                with running_system(text) as system:
                    limited = system.registry["a"].upstream
                    assert isinstance(limited, RateLimitedUpstream)
                    stream = await limited.open(Call(request, "m", "req_1", Deadline(time.monotonic() + 10), 5.0))
                    while await stream.next() is not None:
                        pass
                    stream.close()
                    found.append(limited.rate.quota.levels(time.monotonic())["requests_per_minute"][0])
        return found

    read, misread = asyncio.run(main())
    assert read > 4000
    assert misread < 1100


def test_every_quirk_of_the_table_has_a_test() -> None:
    used = {quirk for row in all_providers().values() for quirk in row.quirks}
    of_no_row = {Quirk.MAX_COMPLETION_TOKENS, Quirk.NO_PARALLEL_TOOL_CALLS, Quirk.GUIDED_JSON, Quirk.COMPACT_JSON}
    assert used | of_no_row == set(Quirk)
