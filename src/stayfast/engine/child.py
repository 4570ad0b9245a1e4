"""The engine's own process: `python -m stayfast.engine.child JSON`. A native crash ends this process, not the gateway.

Rule 1: it never outlives its parent. It ends when its stdin reaches EOF, which the kernel sees to even on `kill -9`.
Rule 2: stdout carries one JSON line, {"host": ..., "port": ...}, when the model is loaded and the server listens.
Rule 3: whatever llama.cpp prints goes to stderr, errors only.
"""

import fcntl
import json
import os
import select
import signal
import sys
from typing import Any, NoReturn, TypedDict
from urllib.parse import urlsplit

import xllamacpp

_ERRORS_ONLY = 1  # llama.cpp's scale: 0 output, 1 errors, 2 warnings, 3 information, 4 debugging
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class Launch(TypedDict):
    """What the parent says on the command line; `n_threads` is at least 1 here."""

    model: str
    host: str
    port: int
    n_threads: int
    n_slots: int
    ctx_per_slot: int
    prompt_cache_mib: int
    alias: str
    temperature: float | None


def server_params(launch: Launch) -> Any:
    """llama.cpp's parameters: only what a gateway in front of it needs is switched on."""
    params = xllamacpp.CommonParams()
    params.model.path = launch["model"]
    params.model_alias = {launch["alias"]}  # else answers name the file with its folders
    params.hostnames = [launch["host"]]
    params.port = launch["port"]
    params.n_parallel = launch["n_slots"]
    params.n_ctx = launch["n_slots"] * launch["ctx_per_slot"]  # llama.cpp's n_ctx is the total over its slots
    params.cpuparams.n_threads = launch["n_threads"]
    params.cpuparams_batch.n_threads = launch["n_threads"]
    params.cache_ram_mib = launch["prompt_cache_mib"]
    if launch["temperature"] is not None:
        params.sampling.temp = launch["temperature"]
    params.fit_params = False  # it would shrink the context to the free memory without a word
    params.verbosity = _ERRORS_ONLY
    params.endpoint_metrics = True
    params.endpoint_slots = False  # shows the parameters of other people's requests
    params.ui = False
    params.cors_origins = ""  # a web page in a browser on this machine has no business here
    return params


def end_with_stdin() -> None:
    """Have the kernel send SIGTERM at EOF on stdin: loading a model holds the GIL, so no thread of ours could watch."""
    if sys.platform == "linux":  # elsewhere the blocking read in `main` sees EOF, once the model is loaded
        fcntl.fcntl(_STDIN, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(_STDIN, fcntl.F_SETSIG, signal.SIGTERM)
        fcntl.fcntl(_STDIN, fcntl.F_SETFL, fcntl.fcntl(_STDIN, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([_STDIN], [], [], 0)[0]:  # EOF already: the parent left before the signal was armed
        raise SystemExit(1)


def wakeup() -> int:
    """A descriptor that becomes readable with a signal: one that comes just before `select` would not interrupt it."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    return readable


def leave(*_: object) -> NoReturn:
    """End at once: there is nothing to save, and llama.cpp's own end waits for streams that nobody reads."""
    os._exit(0)


def main() -> NoReturn:
    """Serve until stdin ends or SIGTERM comes; exit code 1 when the server cannot start."""
    launch: Launch = json.loads(sys.argv[1])
    end_with_stdin()
    with os.fdopen(os.dup(_STDOUT), "w") as announcement:
        os.dup2(_STDERR, _STDOUT)
        try:
            server = xllamacpp.Server(server_params(launch))
        except RuntimeError:  # llama.cpp has said why on stderr
            raise SystemExit(1) from None
        woken = wakeup()
        signal.signal(signal.SIGTERM, leave)  # until here the default, which does not wait for the GIL
        address = urlsplit(server.listening_address)
        announcement.write(json.dumps({"host": address.hostname, "port": address.port}) + "\n")
    while True:  # nobody writes: this waits for EOF, or for a signal, whose handler ends it
        ready, _, _ = select.select([_STDIN, woken], [], [])
        if _STDIN in ready and not os.read(_STDIN, 64):
            leave()


if __name__ == "__main__":
    main()
