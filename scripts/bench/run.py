"""Measure what the gateway adds on this machine: the figures of docs/benchmarks.md.

    make bench                                   everything, about three minutes; needs wrk, and nginx to compare with
    .venv/bin/python scripts/bench/run.py plain streams ttft idle start

plain: closed loop, 64 connections (wrk). streams: the same with 32 chunks an answer. ttft: open loop at 50 streams/s,
latency from the intended start. idle: memory of 1,000 idle streams. start: process start to ready. The gateway runs on core
0, load and fake upstream on core 1, all on loopback. nginx (if installed) takes turns with the gateway, as the minimal cost
of a proxy on this machine. Machines are noisy: judge by the ratio to nginx and by the spread over the rounds.
"""

import argparse
import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent


def free_ports(n: int) -> list[int]:
    """Unused ports."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(n)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


UPSTREAM, GATEWAY, NGINX = free_ports(3)
BODY = (b'{"model":"gpt-4o-mini","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user",'
        b'"content":"Say something about latency, please, and keep it short."}],"max_tokens":64,"stream":true}')
REQUEST = (b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
           b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY))
SETTINGS = f"""\
upstreams: {{bench: {{kind: openai, base_url: "http://127.0.0.1:{UPSTREAM}/v1", key: "sk-x", max_connections: 4096}}}}
routes: {{gpt-4o-mini: {{upstreams: [bench]}}}}
"""
NGINX_CONF = f"""\
daemon off; worker_processes 1; pid nginx.pid; error_log stderr crit;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  upstream bench {{ server 127.0.0.1:{UPSTREAM}; keepalive 1024; }}
  server {{
    listen 127.0.0.1:{NGINX} backlog=4096; keepalive_requests 10000000;
    location / {{ proxy_pass http://bench; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
  }}
}}
"""


@contextlib.contextmanager
def process(command: Sequence[str], port: int, core: int, folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server pinned to a core until the block ends; yields when its port accepts connections."""
    with Path(folder, f"{port}.log").open("wb") as log:
        child = subprocess.Popen(["taskset", "-c", str(core), *command], cwd=folder, stdout=log, stderr=log)
    try:
        wait_for(port)
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(20)


def wait_for(port: int) -> float:
    """Wait until the port accepts connections; returns the seconds."""
    began_at = time.monotonic()
    while time.monotonic() - began_at < 20:
        with contextlib.closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return time.monotonic() - began_at
        time.sleep(0.005)
    raise SystemExit(f"nothing listens on port {port}")


def cpu_s(pid: int) -> float:
    """Seconds of CPU used by a process and its children, with a resolution of nanoseconds."""
    tasks = [pid, *(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return sum(int((task / "schedstat").read_text().split()[0]) / 1e9
               for pid in tasks for task in Path(f"/proc/{pid}/task").iterdir())


def gateway_command() -> list[str]:
    stayfast = Path(sys.executable).with_name("stayfast")
    return [str(stayfast), "serve", "--config", "stayfast.yaml", "--port", str(GATEWAY)]


def upstream(*arguments: str) -> list[str]:
    return [sys.executable, str(HERE / "upstream.py"), "--port", str(UPSTREAM), *arguments]


@contextlib.contextmanager
def proxies(folder: str) -> Iterator[dict[str, tuple[int, int]]]:
    """The gateway, and nginx if installed: name to (port, process id)."""
    Path(folder, "stayfast.yaml").write_text(SETTINGS)
    Path(folder, "nginx.conf").write_text(NGINX_CONF)
    stayfast = gateway_command()
    with contextlib.ExitStack() as stack:
        found = {"stayfast": (GATEWAY, stack.enter_context(process(stayfast, GATEWAY, 0, folder)).pid)}
        if (nginx := shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")) is not None:
            command = [nginx, "-p", folder, "-c", "nginx.conf"]
            found["nginx"] = (NGINX, stack.enter_context(process(command, NGINX, 0, folder)).pid)
        yield found


def closed_loop(folder: str, options: argparse.Namespace, *, stream: bool) -> None:
    """Run wrk with 64 connections on each proxy in turn."""
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed (Debian: apt-get install wrk)")
    what = "streams of 32 chunks" if stream else "whole answers"
    with process(upstream(), UPSTREAM, 1, folder), proxies(folder) as found:
        for number in range(options.rounds):
            for name, (port, pid) in found.items():
                before_s = cpu_s(pid)
                ran = subprocess.run(
                    ["taskset", "-c", "1", "wrk", "-t1", "-c64", f"-d{options.seconds}s", "-s", str(HERE / "chat.lua"),
                     f"http://127.0.0.1:{port}/v1/chat/completions"], capture_output=True, text=True, check=True,
                    env={**os.environ, "STREAM": "1" if stream else "0"}).stdout
                spent_s = cpu_s(pid) - before_s
                requests = int(re.findall(r"(\d+) requests in", ran)[0])
                failed = re.findall(r"Non-2xx or 3xx responses: (\d+)", ran)
                each_us = spent_s / requests * 1e6
                print(f"{what}, round {number + 1}: {name:8} {requests / options.seconds:8.0f} requests/s "
                      f"{each_us:7.1f} us CPU a request" + (f" {each_us / 32:5.2f} us a chunk" if stream else "")
                      + (f"  FAILED {failed[0]}" if failed else ""))


async def first_byte_s(port: int, due_at: float) -> float:
    """Seconds from the intended start to the first event of one stream; reads it to its end."""
    await asyncio.sleep(max(0.0, due_at - time.monotonic()))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    await reader.readuntil(b"data: {")
    came_at = time.monotonic()
    await reader.readuntil(b"[DONE]")
    writer.close()
    return came_at - due_at


async def open_loop(port: int, rate: float, seconds: float, rng: random.Random) -> list[float]:
    """Send streams with Poisson arrivals; latencies count from the intended start."""
    due_at, waits = time.monotonic() + 0.1, []
    end_at = due_at + seconds
    async with asyncio.TaskGroup() as group:
        while due_at < end_at:
            waits.append(group.create_task(first_byte_s(port, due_at)))
            due_at += rng.expovariate(rate)
    return sorted(wait.result() for wait in waits)


def ttft(folder: str, options: argparse.Namespace) -> None:
    """Open loop at 50 streams a second, direct and through each proxy in turn."""
    rng = random.Random(1)
    added: dict[str, list[float]] = {}
    os.sched_setaffinity(0, {1})
    with process(upstream(), UPSTREAM, 1, folder), proxies(folder) as found:
        for number in range(options.rounds):
            medians: dict[str, float] = {}
            for name, port in {"direct": UPSTREAM, **{name: port for name, (port, _) in found.items()}}.items():
                waits = asyncio.run(open_loop(port, 50, options.seconds, rng))
                medians[name] = statistics.median(waits) * 1e6
                print(f"TTFT at 50 streams/s, round {number + 1}: {name:8} p50 {medians[name]:6.0f} us  "
                      f"p99 {waits[int(len(waits) * 0.99)] * 1e6:6.0f} us")
                added.setdefault(name, []).append(medians[name] - medians["direct"])
    for name in found:
        print(f"added TTFT p50 (median of {options.rounds} rounds): {name:8} {statistics.median(added[name]):6.0f} us")
    if "nginx" in added:
        print(ratio(added["stayfast"], added["nginx"]))


def ratio(ours_us: Sequence[float], floor_us: Sequence[float]) -> str:
    """The added latency of the gateway over that of nginx, by round."""
    if min(floor_us) <= 0:
        return "stayfast over nginx: unknown: nginx added nothing in some round, so the machine is too noisy"
    ratios = sorted(ours / floor for ours, floor in zip(ours_us, floor_us, strict=True))
    return f"stayfast over nginx: {statistics.median(ratios):.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def rss_kib(pid: int) -> int:
    return int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0])


async def hold(port: int, n_streams: int, pid: int) -> float:
    """Memory of the gateway in KiB for each of `n_streams` streams that wait after their first chunk."""
    async def open_stream() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        await reader.readuntil(b"data: {")
        return writer

    warm = [await open_stream() for _ in range(20)]
    before_kib = rss_kib(pid)
    writers = [await open_stream() for _ in range(n_streams)]
    each_kib = (rss_kib(pid) - before_kib) / n_streams
    for writer in (*warm, *writers):
        writer.close()
    return each_kib


def idle(folder: str, options: argparse.Namespace) -> None:
    """Measure the memory of 1,000 streams that wait for their second chunk."""
    with process(upstream("--gap-ms", "600000"), UPSTREAM, 1, folder), proxies(folder) as found:
        port, pid = found["stayfast"]
        print(f"1,000 idle streams: {asyncio.run(hold(port, 1000, pid)):.1f} KiB each")


def is_ready() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{GATEWAY}/readyz", timeout=5):
            return True
    except urllib.error.HTTPError:
        return False


def start(folder: str, options: argparse.Namespace) -> None:
    """Measure the time from process start to a ready answer of /readyz, without the embedded model."""
    Path(folder, "stayfast.yaml").write_text(SETTINGS)
    command = gateway_command()
    with process(upstream(), UPSTREAM, 1, folder):
        for number in range(options.rounds):
            began_at = time.monotonic()
            with process(command, GATEWAY, 0, folder):
                while not is_ready():
                    if time.monotonic() - began_at > 20:
                        raise SystemExit("the gateway did not become ready within 20 s")
                    time.sleep(0.005)
                print(f"start to ready, round {number + 1}: {time.monotonic() - began_at:.2f} s")


MEASURES = {
    "plain": lambda folder, options: closed_loop(folder, options, stream=False),
    "streams": lambda folder, options: closed_loop(folder, options, stream=True),
    "ttft": ttft, "idle": idle, "start": start,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measures", nargs="*", choices=MEASURES, default=[*MEASURES],
                        help="what to measure (default: everything)")
    parser.add_argument("--seconds", type=int, default=5, help="of each timed run")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f} before, Python {sys.version.split()[0]}, "
          f"{time.strftime('%Y-%m-%d %H:%M')}")
    for measure in options.measures:
        with tempfile.TemporaryDirectory() as folder:
            MEASURES[measure](folder, options)
    print(f"load average {os.getloadavg()[0]:.2f} after")
