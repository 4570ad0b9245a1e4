"""Supervises the embedded engine: a child process that is restarted after a crash.

A native crash costs a restart, not the gateway. The child ends with its parent, even if that is killed (see `child`). One
engine serves all workers: the process that starts it passes its `address` on.

port      Below the ephemeral range (from 32768 on Linux), so that no outgoing connection takes it during a restart, and
          unchanged by restarts, so that its users need no update.
ready     One token was generated: an open port or a health endpoint does not prove that the model works.
stderr    Some messages of llama.cpp quote requests (such as an invalid grammar), at every verbosity. So all lines are kept
          while the model loads, before any requests, and afterwards only the messages of a native crash.
"""

import asyncio
import contextlib
import json
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from collections import deque
from enum import StrEnum
from random import Random

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.events import EngineState, Sink
from stayfast.engine.config import EngineConfig, EngineTask
from stayfast.engine.fit import EngineFit, check_runnable, fit_engine
from stayfast.engine.machine import n_cores
from stayfast.engine.slot_files import SlotFiles
from stayfast.engine.speculation import speculation_launch
from stayfast.policy.engines.slots import SlotMap
from stayfast.policy.resilience.retry import backoff_s

_BODIES = {
    "generate": (b"chat/completions", (b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1,"stream":true,'
                                      b'"stream_options":{"include_usage":true}}')),
    "embed": (b"embeddings", b'{"input":"Hi"}'), "rerank": (b"rerank", b'{"query":"Hi","documents":["Hi"]}')}
_REQUESTS = {task: (b"POST /v1/%b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b") % (path, len(body), body)
             for task, (path, body) in _BODIES.items()}


class EngineProbeError(Exception):
    """The engine responded, but not with a token."""


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Event(msgspec.Struct):
    usage: _Usage | None = None


async def probe_engine(host: str, port: int, task: EngineTask) -> None:
    """Return once a token was generated, or a text became a vector or a score. Raises OSError (no connection) or
    EngineProbeError. Has no time-out.

    Checks the usage at the end, not the text: a first token may be half a character, without text. Chunked framing is
    skipped, not parsed: each event is a chunk, so no line is split.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_REQUESTS[task])
        status = (await reader.readline()).split(b" ", 2)
        if len(status) < 2 or status[1] != b"200":
            raise EngineProbeError(f"status {status[1].decode('latin-1') if len(status) > 1 else 'missing'}")
        if task != "generate":
            return
        async for line in reader:
            if line.startswith(b"data: {") and _n_tokens(line[len(b"data: "):]) > 0:
                return
        raise EngineProbeError("the answer ended without a token")
    finally:
        writer.transport.abort()


def _n_tokens(event: bytes) -> int:
    try:
        usage = msgspec.json.decode(event, type=_Event).usage
    except msgspec.DecodeError as error:
        raise EngineProbeError("malformed event") from error
    return usage.completion_tokens if usage is not None else 0


_N_LINES = 20
_MAX_LINE_BYTES = 400
_READ_BYTES = 65_536

_CRASH = re.compile(r"\S+:\d+: GGML_ASSERT\(.*\) failed|terminate called after throwing an instance of '[\w:]+'")
_ERROR = re.compile(r"[\d.]+ E +")


class StderrTail:
    """The last lines of the child's stderr. One task at a time."""

    __slots__ = ("_is_serving", "_lines", "_partial")

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_N_LINES)
        self._partial = b""
        self._is_serving = False

    def begin_serving(self) -> None:
        """From here on, lines may quote requests: clear all, and keep only the messages of a crash."""
        self._lines.clear()
        self._partial, self._is_serving = b"", True

    def feed(self, data: bytes) -> None:
        """Add bytes of stderr, split anywhere."""
        *lines, rest = (self._partial + data).split(b"\n")
        self._partial = rest[:_MAX_LINE_BYTES]
        for line in lines:
            text = line[:_MAX_LINE_BYTES].decode("utf-8", "replace").strip()
            if text and (not self._is_serving or _CRASH.fullmatch(text)):
                self._lines.append(text)

    async def read_all(self, reader: asyncio.StreamReader) -> None:
        """Read until EOF."""
        while data := await reader.read(_READ_BYTES):
            self.feed(data)

    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def likely_cause(self) -> str | None:
        """The most likely cause: llama.cpp's first error (later ones are consequences), else the last line."""
        for line in self._lines:
            if match := _ERROR.match(line):
                return line[match.end():]
        return self._lines[-1] if self._lines else None


HOST = "127.0.0.1"
_FIRST, _LAST = 20_000, 32_767
_N_TRIES = 64


def can_listen(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as llama.cpp does, so TIME_WAIT is no conflict
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def choose_port(rng: Random) -> int:
    """A free port. Raises OSError if many random ones are all in use."""
    for _ in range(_N_TRIES):
        port = rng.randint(_FIRST, _LAST)
        if can_listen(port):
            return port
    raise OSError(f"no free port among {_N_TRIES} tries in {_FIRST}-{_LAST}")


_STOP_GRACE_S = 2.0  # a clean exit takes milliseconds; a child that loads or hangs is killed
RESTART_JITTER = 0.5  # half of each wait is random, so that gateways on one machine do not load at the same time


class EnginePhase(StrEnum):
    """The state of the engine."""

    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing_off"  # waits for its restart, after a crash or a failed start
    STOPPED = "stopped"


def child_command(config: EngineConfig, port: int, fit: EngineFit | None = None) -> list[str]:
    """The child's command line; its stdin must be a pipe that its parent keeps open. fit: None: computed now.

    A process forked from that parent without exec inherits the pipe, and keeps the child alive.
    """
    shape, _, size = fit or fit_engine(config)
    pooling = "last" if config.pooling == "auto" and not shape.has_pooling else config.pooling
    launch = {
        "model": str(config.model_path), "host": HOST, "port": port,
        "n_threads": config.n_threads or max(1, n_cores() - 1), "n_slots": size.n_slots,
        "ctx_per_slot": size.ctx_per_slot, "prompt_cache_mib": config.prompt_cache_mib,
        "alias": config.alias, "temperature": config.default_temperature, "task": config.task, "pooling": pooling,
        "cache_type_k": config.cache_type_k, "cache_type_v": config.cache_type_v,
        "slots_folder": None if config.slots_folder is None else f"{config.slots_folder}/",
        "speculation": speculation_launch(config),
    }
    # -P: a json.py in the operator's working directory must not be imported
    return [sys.executable, "-P", "-m", "stayfast.engine.child", json.dumps(launch)]


class Engine:
    """The supervised child. One loop's. Emits an EngineState for starting, ready, crashed (with its cause) and stopped."""

    __slots__ = ("_clock", "_config", "_fit", "_last_words", "_name", "_pid", "_port", "_ready_at", "_rng", "_settled",
                 "_sink", "_slots", "_spawning", "_state", "_task")

    def __init__(self, config: EngineConfig, sink: Sink, clock: Clock, rng: Random, *, name: str = "",
                 fit: EngineFit | None = None) -> None:
        """name: of its saved slots, unlike that of other engines. fit: None: computed at the start."""
        self._config = config
        self._name = name
        self._sink = sink
        self._clock = clock
        self._rng = rng
        self._state = EnginePhase.STOPPED
        self._settled = asyncio.Event()  # set while it is ready, and after it has stopped
        self._spawning = asyncio.Lock()  # held during the start of a process, which must not be cancelled
        self._task: asyncio.Task[None] | None = None
        self._port: int | None = None
        self._pid: int | None = None
        self._ready_at: float | None = None
        self._last_words = StderrTail()
        self._fit = fit
        self._slots: SlotMap | None = None

    @property
    def slots(self) -> SlotMap | None:
        """What the slots hold, since the child's last start; None: the engine chooses its slots."""
        return self._slots

    @property
    def n_slots(self) -> int | None:
        """Answers that the child generates at the same time; None: not known before the start."""
        return self._fit.size.n_slots if self._fit is not None else None

    @property
    def state(self) -> EnginePhase:
        return self._state

    @property
    def is_ready(self) -> bool:
        """Whether a token has been generated since its last start."""
        return self._state is EnginePhase.READY

    @property
    def address(self) -> tuple[str, int] | None:
        """Known from `start` on. Restarts keep it, unless another process has taken the port."""
        return None if self._port is None else (HOST, self._port)

    @property
    def pid(self) -> int | None:
        """The child's process id; None without a child."""
        return self._pid

    async def start(self) -> None:
        """Start the child; returns before it is ready. Raises ValueError (cannot run here), OSError (no free port)."""
        if self._task is not None:
            raise RuntimeError("the engine is running already")
        check_runnable(self._config)
        self._fit = self._fit or fit_engine(self._config)
        self._port = self._config.port or choose_port(self._rng)
        self._settled.clear()
        self._state = EnginePhase.STARTING  # the event follows with the process id
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name="engine")

    async def stop(self) -> None:
        """Stop the child and wait for its end; safe to call again. Raises what ended the supervision, if anything."""
        task, self._task = self._task, None
        if task is None:
            return
        if self.is_ready and self._port is not None and (files := self._slot_files()) is not None:
            await files.save(HOST, self._port, self._slots)
        async with self._spawning:
            task.cancel()
        await asyncio.wait([task])
        self._enter(EnginePhase.STOPPED)
        self._pid = None
        self._settled.set()
        if not task.cancelled():
            task.result()

    async def wait_ready(self, deadline: Deadline) -> bool:
        """Wait until it is ready; False if the deadline passes or the engine stops first."""
        try:
            async with asyncio.timeout_at(deadline.at):
                await self._settled.wait()
        except TimeoutError:
            return False
        return self.is_ready

    async def _supervise(self) -> None:
        n_failures = 0
        try:
            while True:
                detail = await self._run_once()
                config, ready_at = self._config, self._ready_at
                was_healthy = ready_at is not None and self._clock.now() - ready_at >= config.healthy_after_s
                n_failures = 1 if was_healthy else n_failures + 1
                self._settled.clear()
                self._enter(EnginePhase.BACKING_OFF, detail)
                self._pid = None
                await asyncio.sleep(backoff_s(n_failures, config.restart_base_s, config.restart_cap_s, self._rng,
                                              jitter=RESTART_JITTER))
        except Exception as error:
            self._enter(EnginePhase.STOPPED, f"supervision ended by {type(error).__name__}")
            self._settled.set()
            raise

    async def _run_once(self) -> str:
        """Run the child once; returns why it ended."""
        self._ready_at = None
        self._last_words = StderrTail()
        try:
            assert self._port is not None
            self._slots = self._make_slots()
            if self._config.port == 0 and not can_listen(self._port):
                self._port = choose_port(self._rng)
            port = self._port
            async with self._spawning:
                process = await asyncio.create_subprocess_exec(
                    *child_command(self._config, port, self._fit), stdin=PIPE, stdout=PIPE, stderr=PIPE,
                    start_new_session=True)  # Ctrl-C is for the gateway, which drains first
        except OSError as error:
            return f"cannot start: {error.strerror or error}"
        self._pid = process.pid
        self._enter(EnginePhase.STARTING)
        assert process.stderr is not None
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._last_words.read_all(process.stderr))
            try:
                failure = await self._watch(process, port)
            finally:
                await _end(process)
                await asyncio.wait([following])  # until EOF
        code, cause = process.returncode, self._last_words.likely_cause()
        ended = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return failure or (f"{ended}: {cause}" if cause else ended)

    def _make_slots(self) -> SlotMap | None:
        n_slots = self.n_slots or 0
        return SlotMap(n_slots) if self._config.slots_by_prefix and n_slots > 1 else None

    async def _watch(self, process: asyncio.subprocess.Process, port: int) -> str | None:
        """Wait for the end of the child, or until it must be stopped: then returns why."""
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._config.ready_timeout_s):
                if await process.stdout.readline():  # else EOF: it ended during loading
                    self._last_words.begin_serving()
                    await probe_engine(HOST, port, self._config.task)
                    await self._restore_slots(port)
                    self._ready_at = self._clock.now()
                    self._enter(EnginePhase.READY)
                    self._settled.set()
        except TimeoutError:
            return f"not ready within {self._config.ready_timeout_s:g} s"
        except (EngineProbeError, OSError) as error:
            return f"probe failed: {error}"
        await process.wait()
        return None

    def _slot_files(self) -> SlotFiles | None:
        if self._config.slots_folder is None or self._fit is None or self._config.task != "generate":
            return None
        return SlotFiles(self._config, self._fit.size, self._name)

    async def _restore_slots(self, port: int) -> None:
        if (files := self._slot_files()) is not None:
            await files.restore(HOST, port, self._slots)

    def _enter(self, state: EnginePhase, detail: str | None = None) -> None:
        self._state = state
        event = "crashed" if state is EnginePhase.BACKING_OFF else state.value
        self._sink.emit(EngineState(event, self._pid, detail))

    def __repr__(self) -> str:
        where = "nowhere" if self._port is None else f"{HOST}:{self._port}"
        return f"<Engine {self._state.value} at {where}, pid {self._pid}>"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Terminate, kill after a grace period, and reap."""
    try:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_GRACE_S):
                    await process.wait()
    finally:  # also if cancelled during the wait
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        assert process.stdin is not None
        process.stdin.close()
