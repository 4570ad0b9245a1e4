"""Ready means that a token was generated: a port that accepts, or a health page, says little about a model."""

import asyncio

import msgspec

_BODY = (b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1,"stream":true,'
         b'"stream_options":{"include_usage":true}}')
_REQUEST = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s") % (len(_BODY), _BODY)


class ProbeFailed(Exception):
    """The engine answered, but not with a token."""


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Event(msgspec.Struct):
    usage: _Usage | None = None


async def generate_token(host: str, port: int) -> None:
    """Return once one token has been generated. Raises OSError (no connection) or ProbeFailed; has no time-out itself.

    The usage at the end counts, not the first text: a first token may be half a character and show no text at all.
    Chunked framing is skipped, not parsed: each event is a chunk of its own, so no line of an event is ever split.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_REQUEST)
        status = (await reader.readline()).split(b" ", 2)
        if len(status) < 2 or status[1] != b"200":
            raise ProbeFailed(f"status {status[1].decode('latin-1') if len(status) > 1 else 'missing'}")
        async for line in reader:
            if line.startswith(b"data: {") and _n_tokens(line[len(b"data: "):]) > 0:
                return
        raise ProbeFailed("the answer ended without a token")
    finally:
        writer.transport.abort()


def _n_tokens(event: bytes) -> int:
    try:
        usage = msgspec.json.decode(event, type=_Event).usage
    except msgspec.DecodeError as error:
        raise ProbeFailed("an event is not what the protocol says") from error
    return usage.completion_tokens if usage is not None else 0
