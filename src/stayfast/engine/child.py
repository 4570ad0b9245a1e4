"""The engine's own process: `python -m stayfast.engine.child JSON`. A native crash ends this process, not the gateway.

Rule 1: it never outlives its parent. It ends at EOF on its stdin, which the kernel ensures even after `kill -9`.
Rule 2: it writes one JSON line, {"host": ..., "port": ...}, to stdout when the model is loaded and the server listens.
Rule 3: the output of llama.cpp goes to stderr, errors only.
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

from stayfast.engine.speculation import SpeculationLaunch, write_speculation

_ERRORS_ONLY = 1  # llama.cpp's scale: 0 output, 1 errors, 2 warnings, 3 information, 4 debugging
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_CACHE_TYPES = {"f16": xllamacpp.ggml_type.GGML_TYPE_F16, "q8_0": xllamacpp.ggml_type.GGML_TYPE_Q8_0,
                "q4_0": xllamacpp.ggml_type.GGML_TYPE_Q4_0}
_POOLING = {"mean": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN,
            "cls": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_CLS,
            "last": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST}


class LaunchOptions(TypedDict):
    """The command line argument; `n_threads` is at least 1."""

    model: str
    host: str
    port: int
    n_threads: int
    n_slots: int
    ctx_per_slot: int
    prompt_cache_mib: int
    alias: str
    temperature: float | None
    task: str
    pooling: str
    cache_type_k: str
    cache_type_v: str
    slots_folder: str | None
    speculation: SpeculationLaunch | None


def make_server_params(launch: LaunchOptions) -> Any:
    """llama.cpp's parameters: only what a gateway needs is enabled."""
    params = xllamacpp.CommonParams()
    params.model.path = launch["model"]
    params.model_alias = {launch["alias"]}  # else answers contain the path of the file
    params.hostnames = [launch["host"]]
    params.port = launch["port"]
    params.n_parallel = launch["n_slots"]
    params.n_ctx = launch["n_slots"] * launch["ctx_per_slot"]  # llama.cpp's n_ctx is the total over its slots
    params.cpuparams.n_threads = launch["n_threads"]
    params.cpuparams_batch.n_threads = launch["n_threads"]
    params.cache_ram_mib = launch["prompt_cache_mib"]
    params.cache_type_k = _CACHE_TYPES[launch["cache_type_k"]]
    params.cache_type_v = _CACHE_TYPES[launch["cache_type_v"]]
    if launch["cache_type_v"] != "f16":  # llama.cpp cannot read quantised values without it
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    if launch["slots_folder"] is not None:
        params.slot_save_path = launch["slots_folder"]
    if launch["task"] != "generate":
        set_pooling_task(params, launch)
    if launch["temperature"] is not None:
        params.sampling.temp = launch["temperature"]
    if launch["speculation"] is not None:
        write_speculation(params, launch["speculation"], launch["n_threads"])
    params.fit_params = False  # it would silently shrink the context to the free memory
    params.verbosity = _ERRORS_ONLY
    params.endpoint_metrics = True
    params.endpoint_slots = False  # it shows the parameters of other clients' requests
    params.ui = False
    params.cors_origins = ""  # no access for web pages in a browser on this machine
    return params


def set_pooling_task(params: Any, launch: LaunchOptions) -> None:
    """Vectors or scores instead of answers. A text must fit into one physical batch."""
    params.embedding = True
    params.n_batch = params.n_ubatch = launch["ctx_per_slot"]
    if launch["task"] == "rerank":
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    elif launch["pooling"] != "auto":
        params.pooling_type = _POOLING[launch["pooling"]]


def arm_stdin_eof_signal() -> None:
    """Have the kernel send SIGTERM at EOF on stdin: loading a model holds the GIL, so a thread could not watch."""
    if sys.platform == "linux":  # on other systems the read in `main` detects EOF, after the model is loaded
        fcntl.fcntl(_STDIN, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(_STDIN, fcntl.F_SETSIG, signal.SIGTERM)
        fcntl.fcntl(_STDIN, fcntl.F_SETFL, fcntl.fcntl(_STDIN, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([_STDIN], [], [], 0)[0]:  # EOF: the parent ended before the signal was armed
        raise SystemExit(1)


def open_wakeup_pipe() -> int:
    """A descriptor that a signal makes readable: a signal just before `select` would not interrupt it."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    return readable


def exit_now(*_: object) -> NoReturn:
    """Exit at once: there is nothing to save, and llama.cpp's own shutdown waits for abandoned streams."""
    os._exit(0)


def main() -> NoReturn:
    """Serve until stdin ends or SIGTERM comes; exit code 1 when the server cannot start."""
    launch: LaunchOptions = json.loads(sys.argv[1])
    arm_stdin_eof_signal()
    os.umask(0o077)  # saved slots contain prompts
    with os.fdopen(os.dup(_STDOUT), "w") as announcement:
        os.dup2(_STDERR, _STDOUT)
        try:
            server = xllamacpp.Server(make_server_params(launch))
        except RuntimeError:  # llama.cpp has written the reason to stderr
            raise SystemExit(1) from None
        woken = open_wakeup_pipe()
        signal.signal(signal.SIGTERM, exit_now)  # the default until here: it does not wait for the GIL
        address = urlsplit(server.listening_address)
        announcement.write(json.dumps({"host": address.hostname, "port": address.port}) + "\n")
    while True:  # waits for EOF, or for a signal, whose handler exits
        ready, _, _ = select.select([_STDIN, woken], [], [])
        if _STDIN in ready and not os.read(_STDIN, 64):
            exit_now()


if __name__ == "__main__":
    main()
