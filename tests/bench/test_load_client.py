"""The HTTP client of the bench against real sockets: instants, errors, connections."""

import asyncio
import json
from collections.abc import Callable, Sequence
from math import isnan
from pathlib import Path

import pytest
import uvloop

from stayfast.core.clock import SystemClock
from stayfast.core.types import Api
from stayfast.lab.load.client import GRACE_S, HttpTarget, LoadTargetConfig, RequestConfig, RequestEncoder, request_path
from stayfast.lab.load.result import Error, GapCounts, Sample
from stayfast.lab.load.runner import DueShot
from stayfast.lab.load.schedule import Prompts, Shot
from tests.bench.servers import (
    CLOSE,
    END,
    FINISH,
    RESET,
    ROLE,
    STREAM_HEAD,
    USAGE,
    Seen,
    Step,
    chunk,
    delta,
    event,
    serving,
    whole,
)
from tests.ports import free_port

pytestmark = pytest.mark.sockets
CLOCK = SystemClock()
GOOD: list[Step] = [STREAM_HEAD + b"\r\n", event(ROLE), event(delta("a")), event(delta("b")), event(FINISH), event(USAGE),
                    event("[DONE]"), END]


async def ask(target: HttpTarget, n: int = 0, timeout_s: float = 5.0, gaps: GapCounts | None = None) -> Sample:
    """One planned request that is due now."""
    now = CLOCK.now()
    return await target.send(DueShot(Shot(n, 0.0, n, 9, 7), now, now + timeout_s, GapCounts() if gaps is None else gaps))


def measure(script: Sequence[Step] | Callable[[int], Sequence[Step]], n: int = 1, timeout_s: float = 5.0,
          asking: RequestConfig | None = None) -> tuple[list[Sample], Seen]:
    """Send `n` requests in sequence to a server with this script."""
    async def main() -> tuple[list[Sample], Seen]:
        async with serving(script) as (url, seen):
            target = HttpTarget("t", LoadTargetConfig(url, asking or RequestConfig()), Prompts(0), CLOCK)
            samples = [await ask(target, number, timeout_s) for number in range(n)]
            target.close()
        return samples, seen

    return uvloop.run(main())


def test_http_target_stream_has_instants_and_counts() -> None:
    """Role after 0.2 s, pieces after 0.4 and 0.6 s: the first token is the first piece, the end is [DONE]."""
    [sample], _ = measure([STREAM_HEAD + b"server-timing: call;dur=1\r\nx-stayfast-attempts: 2\r\n\r\n", 0.2, event(ROLE),
                         0.2, event(delta("a")), 0.2, event(delta("b")), 0.2, event(FINISH), event(USAGE), event("[DONE]"),
                         END])
    assert (sample.error, sample.status, sample.n_chunks, sample.n_output, sample.n_input) == (Error.NONE, 200, 2, 7, 9)
    assert 0 <= sample.sent_s <= sample.headers_s < 0.19
    assert sample.first_s == sample.shown_s == pytest.approx(0.4, abs=0.18)
    assert sample.last_s - sample.first_s == sample.gap_max_s == pytest.approx(0.2, abs=0.15)
    assert sample.ended_s - sample.last_s == pytest.approx(0.2, abs=0.15)
    assert (sample.server_timing, sample.n_upstream_attempts) == ("call;dur=1", 2)
    assert sample.connect_s < 0.19


def test_http_target_timing_comment_replaces_the_header() -> None:
    """A trailing `: server-timing` comment replaces the header."""
    [sample], _ = measure([*GOOD[:-1], chunk(b": server-timing call;dur=5, relay;dur=9\n\n"), END])
    assert (sample.error, sample.server_timing) == (Error.NONE, "call;dur=5, relay;dur=9")


def test_measured_answer_reasoning_counts_for_ttft_only() -> None:
    """TTFT ends with the first reasoning, TTFO with the first other piece."""
    hidden = '{"id":"c","choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}'
    [sample], _ = measure([STREAM_HEAD + b"\r\n", event(hidden), 0.2, *GOOD[1:]])
    assert sample.shown_s - sample.first_s > 0.1


def test_http_target_any_chunking_gives_the_same_sample() -> None:
    data = b"".join(part for part in GOOD if isinstance(part, bytes))
    [sample], _ = measure([step for n in range(len(data)) for step in (data[n : n + 1], 0.0)])
    assert (sample.error, sample.n_chunks, sample.n_output) == (Error.NONE, 2, 7)


@pytest.mark.parametrize(("script", "error", "status"), [
    ([whole(b'{"error":{}}', "429 Too Many Requests")], Error.RATE_LIMITED, 429),
    ([whole(b'{"error":{}}', "503 Unavailable")], Error.STATUS, 503),
    ([whole(b"", "404 Not Found")], Error.STATUS, 404),
    ([whole(b"{}", "302 Found")], Error.STATUS, 302),
    ([*GOOD[:3], RESET], Error.RESET, 200),
    ([RESET], Error.RESET, 0),
    ([CLOSE], Error.RESET, 0),
    ([*GOOD[:3], CLOSE], Error.TRUNCATED, 200),
    ([*GOOD[:3], END], Error.TRUNCATED, 200),
    ([*GOOD[:3], event("[DONE]"), END], Error.TRUNCATED, 200),
    ([*GOOD[:3], event('{"error":{"message":"no"}}'), END], Error.STREAM_ERROR, 200),
    ([*GOOD[:3], event('{"error":{"message":"no"}}'), CLOSE], Error.STREAM_ERROR, 200),
    ([*GOOD[:3], event("{broken"), END], Error.MALFORMED, 200),
    ([b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n"], Error.MALFORMED, 0),
    ([b"SSH-2.0-x\r\n"], Error.MALFORMED, 0),
    ([whole(b'{"choices":[{}]}')], Error.MALFORMED, 200),
    ([5.0], Error.TIMEOUT, 0),
    ([STREAM_HEAD + b"\r\n", 5.0], Error.TIMEOUT, 200),
    ([*GOOD[:3], 5.0, *GOOD[3:]], Error.TIMEOUT, 200),
])
def test_http_target_failures_have_distinct_errors(script: list[Step], error: Error, status: int) -> None:
    """Each failure is a sample with its status. The time-out is 0.2 s."""
    [sample], _ = measure(script, timeout_s=0.2)
    assert (sample.error, sample.status) == (error, status)
    assert not isnan(sample.sent_s)
    assert sample.ended_s < 2


def test_http_target_body_ended_by_close_is_complete() -> None:
    """Without a length, the close ends the body; the protocol's end decides about completeness."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    events = "".join(f"data: {text}\n\n" for text in (delta("a"), FINISH, "[DONE]")).encode()
    [sample], _ = measure([head, events, CLOSE])
    assert (sample.error, sample.n_chunks, sample.n_output) == (Error.NONE, 1, 1)


def test_http_target_answer_ends_with_its_protocol() -> None:
    """A server that sends [DONE] but neither ends the body nor closes: complete after a grace period."""
    [sample], _ = measure([*GOOD[:-1], 1.0])
    assert sample.error is Error.NONE
    assert sample.ended_s < GRACE_S


def test_http_target_refused_connection_is_a_connect_error() -> None:
    """A refused connection is the target's failure, not the client's."""
    url = f"http://127.0.0.1:{free_port()}"

    async def main() -> Sample:
        return await ask(HttpTarget("t", LoadTargetConfig(url, RequestConfig()), Prompts(0), CLOCK))

    sample = uvloop.run(main())
    assert (sample.error, sample.status, isnan(sample.sent_s)) == (Error.CONNECT, 0, True)


def test_http_target_reuses_connections() -> None:
    """Three requests on one connection; the time to open it is separate."""
    samples, seen = measure(GOOD, n=3)
    assert [sample.error for sample in samples] == [Error.NONE] * 3
    assert seen.n_connections == 1
    assert [isnan(sample.connect_s) for sample in samples] == [False, True, True]


def test_http_target_closed_idle_connection_is_replaced_once() -> None:
    """The server closes instead of answering the second request, which is sent again on a new connection."""
    samples, seen = measure(lambda n: [CLOSE] if n == 1 else GOOD, n=2)
    assert [sample.error for sample in samples] == [Error.NONE] * 2
    assert (seen.n_connections, len(seen.bodies), seen.bodies[1]) == (2, 3, seen.bodies[2])


def test_http_target_connection_close_is_not_reused() -> None:
    _, seen = measure([whole(b'{"error":{}}', "500 Oh", "connection: close\r\n")], n=2)
    assert seen.n_connections == 2


def test_http_target_gaps_are_counted_by_time_of_the_run() -> None:
    """Two gaps of three pieces, one of 50 ms and one within a read."""
    async def main() -> GapCounts:
        gaps = GapCounts()
        script = [*GOOD[:3], 0.05, event(delta("b")) + event(delta("c")), *GOOD[4:]]
        async with serving(script) as (url, _):
            target = HttpTarget("t", LoadTargetConfig(url, RequestConfig()), Prompts(0), CLOCK)
            await ask(target, gaps=gaps)
            target.close()
        return gaps

    gaps = uvloop.run(main())
    assert len(gaps) == 2
    assert min(gaps.sum_by_bucket()) == 0


def test_http_target_close_aborts_requests_in_flight() -> None:
    """They count as time-outs at once."""
    async def main() -> list[Sample]:
        async with serving([10.0]) as (url, seen):
            target = HttpTarget("t", LoadTargetConfig(url, RequestConfig()), Prompts(0), CLOCK)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(target, n)) for n in range(3)]
                async with asyncio.timeout(5):
                    while len(seen.bodies) < 3:
                        await asyncio.sleep(0.01)
                target.close()
            return [task.result() for task in tasks]

    assert [sample.error for sample in uvloop.run(main())] == [Error.TIMEOUT] * 3


def test_http_target_whole_answer_has_one_piece() -> None:
    """First, last and end are the time of its last byte."""
    body = b'{"choices":[{"message":{"content":"a b"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
    [sample], seen = measure([0.05, whole(body)], asking=RequestConfig(stream=False))
    assert (sample.error, sample.n_chunks, sample.n_output) == (Error.NONE, 1, 2)
    assert sample.first_s == sample.last_s == sample.ended_s
    assert json.loads(seen.bodies[0])["stream"] is False


@pytest.mark.parametrize(("api", "path", "fields"), [
    (Api.CHAT, "/v1/chat/completions", {"messages", "max_tokens", "stream_options"}),
    (Api.COMPLETIONS, "/v1/completions", {"prompt", "max_tokens", "stream_options"}),
    (Api.RESPONSES, "/v1/responses", {"input", "instructions", "max_output_tokens"}),
    (Api.MESSAGES, "/v1/messages", {"messages", "system", "max_tokens"})])
def test_request_body_follows_the_dialect(api: Api, path: str, fields: set[str]) -> None:
    """Path, headers with the key, and fields; extra fields replace and remove."""
    config = RequestConfig(api, "m", key="k-1", headers=(("x-a", "b"),), extra={"temperature": 0, "stream_options": None})

    async def main() -> Seen:
        async with serving([whole(b"{}", "500 Oh")]) as (url, seen):
            await ask(HttpTarget("t", LoadTargetConfig(url.removesuffix("/v1"), config), Prompts(0, 4), CLOCK))
        return seen

    seen = uvloop.run(main())
    head = seen.heads[0].decode()
    assert head.startswith(f"POST {path} HTTP/1.1\r\n")
    assert ("x-api-key: k-1" if api is Api.MESSAGES else "authorization: Bearer k-1") in head
    assert "x-a: b\r\n" in head
    body = json.loads(seen.bodies[0])
    assert set(body) == (fields | {"model", "stream", "temperature"}) - {"stream_options"}
    assert "k-1" not in repr(config)


@pytest.mark.parametrize(("api", "base", "path"), [
    (Api.MESSAGES, "", "/v1/messages"), (Api.MESSAGES, "/v1", "/v1/messages"),
    (Api.MESSAGES, "/claude", "/claude/v1/messages"), (Api.MESSAGES, "/claude/v1", "/claude/v1/messages"),
    (Api.CHAT, "", "/v1/chat/completions"), (Api.CHAT, "/api/v3", "/api/v3/chat/completions")])
def test_request_path_follows_the_dialects_sdk(api: Api, base: str, path: str) -> None:
    assert request_path(base, api) == path


EMPTY: list[Step] = [STREAM_HEAD + b"\r\n", event(ROLE), event(FINISH), event(USAGE), event("[DONE]"), END]


@pytest.mark.parametrize(("script", "streams"), [
    (EMPTY, True), ([whole(b'{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}')], False)])
def test_http_target_empty_answer_fails_unless_allowed(script: list[Step], streams: bool) -> None:
    """A role and a finish reason without content."""
    [refused], _ = measure(script, asking=RequestConfig(stream=streams))
    [allowed], _ = measure(script, asking=RequestConfig(stream=streams, allow_empty=True))
    assert (refused.error, allowed.error) == (Error.EMPTY, Error.NONE)
    assert (allowed.n_chunks, isnan(allowed.first_s)) == (0, True)
    [cut], _ = measure([*EMPTY[:2], END], asking=RequestConfig(allow_empty=True))
    assert cut.error is Error.TRUNCATED


def test_sample_without_input_usage_uses_the_planned_length() -> None:
    """As in a stream whose last event has usage of the output only."""
    events = ['{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}',
              '{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}',
              '{"type":"message_stop"}']
    [sample], _ = measure([STREAM_HEAD + b"\r\n", *map(event, events), END], asking=RequestConfig(Api.MESSAGES))
    assert (sample.error, sample.n_input, sample.n_output) == (Error.NONE, 9, 5)


def test_excerpt_is_the_first_failed_body_without_keys() -> None:
    """One short line without the target's keys or anything that looks like a key."""
    key = "abc/def+0123456789=="
    body = (b'{"error":{"message":"wrong key abc\\/def\\u002B0123456789== of\\u001b[31m team,\n not sk-proj-ABCDEFGH12345 '
            + b"x" * 500 + b'"}}')
    samples, _ = measure([whole(body, "401 Unauthorized")], n=2, asking=RequestConfig(key=key))
    assert samples[0].excerpt.startswith('{"error":{"message":"wrong key [key] of')
    assert "not [key] xxx" in samples[0].excerpt
    assert samples[0].excerpt.isprintable()
    assert len(samples[0].excerpt) < 210
    assert samples[1].excerpt == ""


def test_excerpt_shows_an_error_event() -> None:
    [sample], _ = measure([*GOOD[:2], event('{"error":{"message":"out of memory"}}'), END])
    assert sample.excerpt == '{"error":{"message":"out of memory"}}'


def test_request_body_system_prompt_comes_first() -> None:
    """In chat it is a message, equal in all requests."""
    asker = RequestEncoder(RequestConfig(), Prompts(0, 4))
    one, two = (json.loads(asker.encode(Shot(n, 0, n, 9, 7))) for n in range(2))
    assert one["messages"][0] == two["messages"][0]
    assert [message["role"] for message in one["messages"]] == ["system", "user"]


@pytest.mark.parametrize("header", [("x", "a\r\nb"), ("x\n", "a"), ("", "a"), ("x", "\N{SNOWMAN}")])
def test_request_header_with_line_break_is_refused(header: tuple[str, str]) -> None:
    """Invalid headers are refused before the run."""
    with pytest.raises(ValueError, match="cannot be sent"):
        RequestConfig(headers=(header,))


def test_http_target_over_tls(tmp_path: Path) -> None:
    """A certificate is only trusted with its authority."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca_file)
    import ssl
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        writer.write(b"".join(part for part in GOOD if isinstance(part, bytes)))
        await writer.drain()
        writer.close()

    async def main() -> list[Error]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found = []
        for config in (LoadTargetConfig(url, RequestConfig(), str(ca_file)), LoadTargetConfig(url, RequestConfig(),
                                                                                             verify=False),
                       LoadTargetConfig(url, RequestConfig())):
            target = HttpTarget("t", config, Prompts(0), CLOCK)
            found.append((await ask(target)).error)
            target.close()
        server.close()
        return found

    assert uvloop.run(main()) == [Error.NONE, Error.NONE, Error.CONNECT]
