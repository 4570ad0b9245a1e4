"""Prints the files and functions of Stayfast that one streamed request runs through.

    .venv/bin/python scripts/request_path.py          # two cases: no policies; cache, admission, affinity and ejection
    .venv/bin/python scripts/request_path.py --list   # also each file with its functions

A gateway and a minimal upstream run in this process, over sockets on loopback. Four requests warm up connections and
lazy imports. The next N_COUNTED are each counted with `sys.setprofile` until the last byte is written and the slots
are free. The one with the fewest files, and of those the fewest calls, is shown: at most ten requests a second are
sampled, and metrics and logs are written in batches after the answers.
"""

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import CodeType, FrameType

import stayfast
from stayfast.compose.system import Observers, build
from stayfast.core.clock import SystemClock
from stayfast.server.backend import ActiveSystem
from stayfast.server.lifecycle import GatewayServer, ServerHooks
from stayfast.settings import SettingsText, load_settings

PACKAGE = Path(stayfast.__file__).parent
N_WARM = 4
N_COUNTED = 10
SETTLED_S = 0.02  # after the last byte, until slots are free; facts are flushed 0.1 s later
IDLE_S = 0.3  # between warm-up and count, until facts are flushed
PLAIN = """
server: {port: 0}
log: {level: error, requests: false}
upstreams:
  a: {kind: openai, base_url: "http://127.0.0.1:PORT/v1", key: k, probe: false}
  b: {kind: openai, base_url: "http://127.0.0.1:PORT/v1", key: k, probe: false}
routes:
  m: {upstreams: [UPSTREAMS]ROUTE}
"""
FULL = ", cache: {mode: exact, ttl_s: 60}, affinity: {mode: prefix}, eject: {enabled: true}"
ADMISSION = "admission: {max_in_flight: 100}\n"
FIRST = (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
EVENT = (b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{%b},'
         b'"finish_reason":%b}]}\n\n')
EVENTS = (EVENT % (b'"role":"assistant","content":"Yes"', b"null"), EVENT % (b'"content":"."', b'"stop"'),
          b"data: [DONE]\n\n")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The upstream: a short stream for every request."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            await reader.readexactly(next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")))
            writer.write(FIRST)
            for event in EVENTS:
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await asyncio.sleep(0.005)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.CancelledError):  # the client has closed, or the program ends
        writer.close()


async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, n: int) -> None:
    """Send one request and read its answer. `n` makes its prompt unique."""
    body = b'{"model":"m","stream":true,"temperature":0,"messages":[{"role":"user","content":"Question %d"}]}' % n
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                 b"content-length: %d\r\n\r\n%b" % (len(body), body))
    text = await reader.readuntil(b"0\r\n\r\n")
    if not text.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(text.decode())


@asynccontextmanager
async def gateway(text: str) -> AsyncIterator[int]:
    """A gateway in this process; yields its port."""
    clock = SystemClock()
    settings = load_settings(SettingsText("<request path>", text), {})
    observers = Observers(settings, clock)
    current = ActiveSystem(build(settings, observers, {}, clock, Random(0)))
    host = ServerHooks(clock=clock, sink=observers.sink, entropy=os.urandom(8), version="0", on_error=report,
                       on_listening=lambda addresses: None, on_reload=lambda: None, on_draining=lambda: None)
    server = GatewayServer(current, host)
    await server.listen()
    try:
        yield server.addresses()[0][1]
    finally:
        server.close()


def report(error: BaseException) -> None:
    """Exit on an unexpected error."""
    raise SystemExit(f"unexpected: {error!r}")


async def count(more: str, upstreams: str, route: str) -> Counter[CodeType]:
    """Count the calls of each function of the package in one warm request."""
    counts: list[Counter[CodeType]] = []
    upstream = await asyncio.start_server(answer, "127.0.0.1", 0)
    port_of = str(upstream.sockets[0].getsockname()[1])
    text = more + PLAIN.replace("PORT", port_of).replace("UPSTREAMS", upstreams).replace("ROUTE", route)
    package = f"{PACKAGE}{os.sep}"

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            counts[-1][frame.f_code] += 1

    async with gateway(text) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for n in range(N_WARM):
            await send(reader, writer, n)
        await asyncio.sleep(IDLE_S)
        for n in range(N_COUNTED):
            counts.append(Counter())
            sys.setprofile(profile)
            await send(reader, writer, N_WARM + n)
            await asyncio.sleep(SETTLED_S)
            sys.setprofile(None)
        writer.close()
    upstream.close()
    await asyncio.sleep(SETTLED_S)
    return min(counts, key=lambda calls: (len({code.co_filename for code in calls}), calls.total()))


def show(title: str, calls: Counter[CodeType], *, is_list: bool) -> None:
    """Print the totals, and the functions if `is_list`."""
    files: dict[str, list[str]] = {}
    for code in calls:
        files.setdefault(os.path.relpath(code.co_filename, PACKAGE), []).append(code.co_qualname)
    print(f"{title}: {len(files)} files, {len(calls)} functions, {sum(calls.values())} calls")
    if is_list:
        for name in sorted(files):
            print(f"  {name}: {', '.join(sorted(files[name]))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="each file with its functions")
    is_list = parser.parse_args().list
    show("no policies", asyncio.run(count("", "a", "")), is_list=is_list)
    show("cache, admission, affinity, ejection", asyncio.run(count(ADMISSION, "a, b", FULL)), is_list=is_list)


if __name__ == "__main__":
    main()
