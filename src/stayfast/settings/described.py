"""What the settings mean whose dataclasses live on lower floors. The bounds are the ones their own checks hold."""

from collections.abc import Mapping
from typing import Any

from stayfast.core.deadline import Timeouts
from stayfast.engine.config import EngineConfig
from stayfast.policy.retry import RetryConfig
from stayfast.server.config import ServerConfig
from stayfast.settings.about import About

_DAY_S = 86_400
_MIB = 1 << 20


def _wait(doc: str) -> About:
    return About(doc, more_than=0, maximum=_DAY_S)


TIMEOUTS = {
    "total_s": _wait("From accept to the last byte, everything included; the request's deadline."),
    "first_token_s": _wait("From an attempt's start to the first token of content."),
    "idle_s": _wait("Between two reads of a running answer."),
    "connect_s": _wait("TCP and TLS."),
}

RETRY = {
    "max_attempts": About("Attempts in all, the first one included; 1: never retry.", minimum=1, maximum=10),
    "base_s": About("The longest wait before the first retry at the same upstream; it doubles each time, with full jitter.",
                    more_than=0, maximum=60),
    "cap_s": About("No wait is longer than this, unless the upstream asks for more.", more_than=0, maximum=60),
    "min_left_s": About("No attempt is begun with less time than this before the deadline.", minimum=0),
}

SERVER = {
    "host": About("Address to listen on. Other machines reach the gateway on 0.0.0.0 or ::, which needs keys."),
    "port": About("TCP port; 0 takes a free one.", minimum=0, maximum=65_535),
    "max_body_bytes": About("Largest request body; 413 above it.", minimum=1024, maximum=1024 * _MIB),
    "max_head_bytes": About("Largest request line with headers; 431 above it.", minimum=1024, maximum=_MIB),
    "max_headers": About("Most headers of a request; 431 above it.", minimum=8, maximum=1000),
    "max_depth": About("Deepest nesting of a JSON body; 400 above it.", minimum=8, maximum=512),
    "max_connections": About("Most client connections at a time.", minimum=1, maximum=1_000_000),
    "head_timeout_s": About("From a head's first byte to its last; 408 after it.", minimum=0.01, maximum=600),
    "body_timeout_s": About("For a request's body, beside what a slow line needs; 408 after it.",
                            minimum=0.01, maximum=3600),
    "idle_timeout_s": About("How long a connection is kept without a request.", minimum=0.01, maximum=3600),
    "write_stall_s": About("A client that takes no byte for so long is cut off.", minimum=0.01, maximum=3600),
    "keepalive_s": About("Silence before the first token of a stream that a comment ends; 0: no comments.",
                         minimum=0, maximum=600),
    "drain_grace_s": About("At the stop, how long new requests get 503 while load balancers look away.",
                           minimum=0, maximum=600),
    "drain_s": About("At the stop, how long running answers may take to finish.", minimum=0, maximum=_DAY_S),
    "auth": About("auto: keys are asked for wherever there are any, and without any only loopback addresses are served. "
                  "off: nobody is asked. required: everybody is.", words=("auto", "off", "required")),
    "keys": About("Client keys: a tenant's name and the digest of its key; `stayfast key` makes both.",
                  pattern=r"sha256:[0-9a-f]{64}", form="sha256: and 64 hex digits (`stayfast key` makes one)",
                  is_secret=True),
    "metrics_open": About("Whether /metrics answers without a key."),
}

ENGINE = {
    "model": About("`tiny` (comes with Stayfast) or the path of a GGUF file."),
    "n_threads": About("Threads of the engine; 0: one less than there are cores.", minimum=0, maximum=512),
    "n_slots": About("Answers that it writes at the same time.", minimum=1, maximum=256),
    "ctx_per_slot": About("Tokens of prompt and answer together, for each slot.", minimum=64, maximum=1_048_576),
    "port": About("TCP port of the engine's process on 127.0.0.1 (1024 to 65535); 0: one is chosen.",
                  minimum=0, maximum=65_535),
    "prompt_cache_mib": About("Memory for the prompts of idle slots, MiB.", minimum=0, maximum=1_048_576),
    "ready_timeout_s": About("How long the model may take to load.", more_than=0, maximum=3600),
    "restart_base_s": About("Wait before the first restart after a crash; it doubles each time.", more_than=0, maximum=3600),
    "restart_cap_s": About("No wait before a restart is longer than this.", more_than=0, maximum=3600),
    "healthy_after_s": About("Ready for so long, a crash counts as the first one again.", minimum=0),
}

DESCRIBED: Mapping[type[Any], Mapping[str, About]] = {
    Timeouts: TIMEOUTS, RetryConfig: RETRY, ServerConfig: SERVER, EngineConfig: ENGINE,
}
