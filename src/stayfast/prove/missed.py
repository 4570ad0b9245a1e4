"""The part of the proof `lookup` that is about a miss of the semantic cache: what it takes of the loop, and how long.

A gateway that looks for other words beside one without a cache, asked by few callers, for the embedder is to be done with
each question: where it is behind, it is left out. CPU is that of the thread which serves, by the kernel's account; the
embedder has threads of its own. Each question is another one, so each goes the whole way: key, store, embedding, search,
judgement, and behind the answer the comparison. How long it kept its caller is what the gateway says of its stage `cache`.
"""

import asyncio
import http.client
import json
import os
import re
from collections.abc import Mapping
from itertools import count
from math import nan
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from stayfast.policy.semantic import SemanticConfig
from stayfast.prove.canned import keep_busy
from stayfast.prove.claim import Conditions, Figure, SetUpFailed, over
from stayfast.prove.rig import Rig, Server, gateway_settings

WITHIN_MS: Final = SemanticConfig().within_s * 1e3
CACHE: Final[Mapping[str, Any]] = {"mode": "semantic", "eligible": {"n_content_words": 2}}
N_CALLERS: Final = 2
N_ASKED: Final = 300  # for the time of the stage
READY_WITHIN_S: Final = 30.0
_ENTRIES: Final = re.compile(rb"^stayfast_semantic_entries\{[^}]*\} ([1-9]\d*)", re.MULTILINE)
_STAGE: Final = re.compile(r"(?:^|, )cache;dur=([0-9.]+)")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_BODY: Final = {"model": "m", "temperature": 0, "max_tokens": 8}


async def misses(seconds: float, n_rounds: int, conditions: Conditions) -> list[Figure]:
    """What a miss adds, and how long it takes. Raises SetUpFailed."""
    async with Rig() as rig:
        canned = await rig.canned()
        upstreams = {"canned": f"{canned.url}/v1"}
        off = await rig.gateway(gateway_settings(upstreams))
        looking = await rig.gateway(gateway_settings(upstreams, cache=CACHE))
        await _until_ready(looking)
        return await _measured(off, looking, seconds, n_rounds, conditions)


async def _measured(off: Server, looking: Server, seconds: float, n_rounds: int, conditions: Conditions) -> list[Figure]:
    numbers = count()
    added_us, n_failed = [], 0
    for number in range(n_rounds):
        conditions.say(f"looking for other words, round {number + 1} of {n_rounds}")
        spent_us = {}
        for server in (off, looking):
            before_s = _loop_s(server)
            n, n_bad = await keep_busy(f"{server.url}/v1", seconds, N_CALLERS, numbers=numbers)
            spent_us[server.url] = (_loop_s(server) - before_s) / n * 1e6 if n else nan
            n_failed += n_bad
        added_us.append(spent_us[looking.url] - spent_us[off.url])
    stage_ms = sorted(await asyncio.to_thread(_stages_ms, looking.url, N_ASKED))
    median, low, high = over(added_us)
    return [Figure("CPU of the loop that a semantic miss adds", median, "us", low=low, high=high),
            Figure("stage cache of a semantic miss, p50", stage_ms[len(stage_ms) // 2], "ms"),
            Figure("stage cache of a semantic miss, p99", stage_ms[len(stage_ms) * 99 // 100], "ms", WITHIN_MS),
            Figure("failed requests, semantic", float(n_failed), "", 0.0)]


def _loop_s(server: Server) -> float:
    """Seconds of CPU of a process's first thread, on which its loop runs. NaN where the system does not tell."""
    pid = server.process.pid
    try:
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return nan
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


async def _until_ready(server: Server) -> None:
    """Ask until something is remembered: then the embedder is there."""
    loop = asyncio.get_running_loop()
    until = loop.time() + READY_WITHIN_S
    while loop.time() < until:
        await asyncio.to_thread(_stages_ms, server.url, 1)
        if _ENTRIES.search(await asyncio.to_thread(_read, server.url, "/metrics")):
            return
        await asyncio.sleep(0.2)
    raise SetUpFailed("the gateway's semantic cache did not come up")


def _stages_ms(url: str, n: int) -> list[float]:
    """How long the stage took for each of n questions, one after the other. Raises SetUpFailed."""
    connection, found = _connected(url), []
    try:
        for number in range(n):
            asked = {"role": "user", "content": f"Where does one find the manual of machine {os.urandom(3).hex()} {number}?"}
            connection.request("POST", "/v1/chat/completions", json.dumps({**_BODY, "messages": [asked]}),
                               {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            stage = _STAGE.search(answer.headers.get("server-timing", ""))
            if answer.status != 200 or stage is None:
                raise SetUpFailed(f"a question was answered with {answer.status}, and no time of the stage cache")
            found.append(float(stage[1]))
    except (OSError, http.client.HTTPException) as error:
        raise SetUpFailed(f"the gateway did not answer: {type(error).__name__}") from None
    finally:
        connection.close()
    return found


def _read(url: str, path: str) -> bytes:
    connection = _connected(url)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        raise SetUpFailed(f"GET {path}: {type(error).__name__}") from None
    finally:
        connection.close()


def _connected(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10.0)
