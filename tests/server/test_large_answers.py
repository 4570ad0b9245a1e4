"""Large whole answers: the loop is not blocked while they are read, and their memory is bounded."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.server.large_rig import gateway

pytestmark = pytest.mark.sockets

ITEM = '{"object":"embedding","index":0,"embedding":[' + ",".join(["-0.0123456789"] * 3072) + "]}"
EMBEDDINGS = ('{"object":"list","data":[' + ",".join([ITEM] * (68_000_000 // len(ITEM)))
              + '],"model":"m","usage":{"prompt_tokens":5,"total_tokens":5}}').encode()
ASK_EMBEDDINGS = b'{"model":"m","input":["hi"]}'
ASK_CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def chat(n_bytes: int) -> bytes:
    """A whole answer of one long text."""
    text = "a line of a long answer\\n" * (n_bytes // 25)
    return ('{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":'
            f'"assistant","content":"{text}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":3,"completion_tokens":1,'
            '"total_tokens":4}}').encode()


@pytest.mark.serial
@pytest.mark.parametrize(("path", "ask", "answer"), [
    ("/v1/embeddings", ASK_EMBEDDINGS, EMBEDDINGS), ("/v1/chat/completions", ASK_CHAT, chat(40_000_000))])
def test_large_answer_does_not_block_loop(path: str, ask: bytes, answer: bytes, tmp_path: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    """The least of three; the answer comes byte for byte. The bound is generous: another process may have the core."""

    async def main() -> list[float]:
        async with gateway(tmp_path, answer) as its:
            lags_s = []
            for _ in range(3):
                await its.lag_s()
                status, n_bytes, last = await its.status_and_size(path, ask)
                assert (status, n_bytes, last) == (200, len(answer), answer[-300:])
                lags_s.append(await its.lag_s())
            return lags_s

    lags_s = asyncio.run(main())
    with capsys.disabled():
        sys.stdout.write(f"\n{path}, {len(answer) / 1e6:.0f} MB: the loop stood still for "
                         f"{', '.join(f'{lag_s * 1e3:.0f}' for lag_s in lags_s)} ms\n")
    assert min(lags_s) < 0.15


def test_large_answers_of_slow_readers_are_bounded(tmp_path: Path) -> None:
    """Ten clients that read nothing of 20 MB each: those beyond the limit get 503, small answers and streams still come,
    and when the clients are gone there is room again.
    """
    answer = chat(20_000_000)

    async def main() -> None:
        async with gateway(tmp_path, answer, ", max_buffered_bytes: 67108864") as its:
            before = its.rss_bytes()
            slow, refused = [], 0
            for _ in range(10):
                reader, writer = await its.ask("/v1/chat/completions", ASK_CHAT)
                async with asyncio.timeout(20):
                    head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"HTTP/1.1 503"):
                    body = json.loads(await reader.read())
                    assert body["error"]["code"] == "too_many_bytes_held"
                    assert "server.max_buffered_bytes" in body["error"]["message"]
                    assert b"retry-after: 1\r\n" in head
                    refused += 1
                    writer.close()
                else:
                    slow.append(writer)
            assert (len(slow), refused) == (3, 7)
            assert its.rss_bytes() - before < 3 * 67108864
            for writer in slow:
                writer.transport.abort()
            async with asyncio.timeout(20):
                while (await its.status_and_size("/v1/chat/completions", ASK_CHAT))[0] != 200:
                    await asyncio.sleep(0.05)  # until the gateway has seen them leave

    asyncio.run(main())
