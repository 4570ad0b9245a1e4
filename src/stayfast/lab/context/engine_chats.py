"""Growing chats at the embedded engine, through a gateway process over loopback, with and without summaries.

The embedded model's own template renders the last question alone, so that its prefill is the same at each turn. The engine
runs a copy of the model with another template, which renders all messages, and with a context for 50 turns. Weights are the
same; what they answer does not matter. `max_tokens` is 1, so the work of the engine is that for the first token. The engine
has one thread, so its CPU time is its time on an idle core, and other programs of the machine do not change it.

The engine keeps the prompt of its slot, and computes what differs. With one chat at one engine, that alone makes late turns
cheap. Therefore the two measured turns are computed anew (`cache_prompt` off), as after other chats have used the slot. The
other turns use the engine's cache; those after the late one are reported for comparison.
"""

import asyncio
import http.client
import json
import shutil
from collections.abc import Callable, Container, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from stayfast.core.clock import SystemClock
from stayfast.engine.config import TINY_PATH
from stayfast.lab.context.extracts import write_extract
from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.processes import Processes, ServerProcess
from stayfast.turns import TurnRequest

Json = dict[str, Any]
Parts = Sequence[tuple[list[Json], list[Json]]]  # by turn: the question, and what follows it
OFF, ON, SMALL = "off", "on", "small"  # routes
CONTEXT: Final = 16_384  # tokens
ALLOWANCE: Final = 1150
POLL_S: Final = 0.02
WITHIN_S: Final = 300.0  # of one answer, on a busy machine
_TEMPLATE: Final = (b"{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') "
                    b"+ '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}")
_TEMPLATE_KEY: Final = b"tokenizer.chat_template\x08\x00\x00\x00"  # and the type of a string; its length has 8 bytes
_CONTEXT_KEY: Final = b"llama.context_length\x04\x00\x00\x00"  # and the type u32
_HEAD_BYTES: Final = 1 << 20  # of the file, which hold all its metadata


class EngineTurn(msgspec.Struct, frozen=True):
    """One request: CPU seconds of the engine, time to the first token in seconds, tokens of the prompt and those cached."""

    engine_s: float
    ttft_s: float
    n_tokens: int
    n_cached: int


class EngineChats(msgspec.Struct):
    """Requests by route, chat and turn, and how many summaries had which result."""

    turns: dict[str, list[dict[int, EngineTurn]]]
    summaries: dict[str, int]

    def list_engine_s(self, route: str, turn: int) -> list[float]:
        """CPU of the engine for one turn of each chat."""
        return [chat[turn].engine_s for chat in self.turns[route] if turn in chat]


def find_engine_fault() -> str:
    """Why the engine cannot run here; empty: it can."""
    if find_spec("xllamacpp") is None:
        return "the embedded engine is not installed (extra `embedded`)"
    return "" if Path("/proc/self/stat").exists() else "CPU times of the engine need Linux"


async def summarize(request: TurnRequest) -> str:
    """The scripted small model, as a function that a gateway serves."""
    return write_extract(request.text)


def write_chat_model(path: Path) -> None:
    """A copy of the embedded model that renders all messages, and has a context of CONTEXT tokens."""
    shutil.copyfile(TINY_PATH, path)
    with path.open("r+b") as file:
        head = file.read(_HEAD_BYTES)
        at = head.index(_TEMPLATE_KEY) + len(_TEMPLATE_KEY)
        n_bytes = int.from_bytes(head[at:at + 8], "little")
        file.seek(at + 8)
        file.write(_TEMPLATE + b"{#" + b" " * (n_bytes - len(_TEMPLATE) - 4) + b"#}")
        file.seek(head.index(_CONTEXT_KEY) + len(_CONTEXT_KEY))
        file.write(CONTEXT.to_bytes(4, "little"))


async def run_engine_chats(make_parts: Callable[[int], Parts], system: str, anew: tuple[int, int], n_chats: int,
                           report: Callable[[str], None]) -> EngineChats:
    """n_chats chats, one after another, at the route with summaries; the first one at the route without, too.

    anew: the early and the late turn, computed without the engine's cache. Without summaries no turn depends on the one
    before, so that only these and those after the late one are sent. Raises SetUpFailed.
    """
    early, late = anew
    found = EngineChats({OFF: [], ON: []}, {})
    with TemporaryDirectory(prefix="stayfast-engine-") as folder:
        model = Path(folder) / "chats.gguf"
        await asyncio.to_thread(write_chat_model, model)
        async with Processes() as processes:
            client = _EngineClient(await processes.start_gateway(_make_settings(model)), system)
            for number in range(n_chats):
                report(f"the embedded engine: chat {number + 1} of {n_chats}")
                parts = make_parts(number)
                after = range(late, len(parts) + 1)
                if number == 0:
                    found.turns[OFF].append(await client.run_chat(OFF, f"{number} {OFF}", parts, anew, {early, *after}))
                found.turns[ON].append(await client.run_chat(ON, f"{number} {ON}", parts, anew, range(1, after.stop)))
            found.summaries = (await client.read_history())["summaries"]
    return found


def _make_settings(model: Path) -> Mapping[str, Any]:
    history = {"mode": "summarize", "allowance_tokens": ALLOWANCE, "raw_turns": 2, "summary_share": 0.3, "by": SMALL}
    route = {"upstreams": ["engine"], "hedge": {"mode": "off"}, "deadline": WITHIN_S}
    return {
        "upstreams": {"engine": {"kind": "embedded", "model": str(model), "n_threads": 1, "n_slots": 1,
                                 "ctx_per_slot": CONTEXT, "prompt_cache_mib": 0, "limit": {"mode": "off"}},
                      SMALL: {"kind": "turn", "turn": f"{__name__}:summarize"}},
        "routes": {OFF: route, ON: {**route, "context": {"history": history}}, SMALL: {"upstreams": [SMALL]}}}


class _EngineClient:
    """Sends the chats, one request at a time."""

    def __init__(self, gateway: ServerProcess, system: str) -> None:
        self._gateway = gateway
        self._system = system

    async def run_chat(self, route: str, name: str, parts: Parts, anew: Sequence[int], sent: Container[int]
                       ) -> dict[int, EngineTurn]:
        """The requests of the turns `sent`."""
        messages: list[Json] = [{"role": "system", "content": f"Chat {name}. {self._system}"}]
        found = {}
        for turn, (question, answer) in enumerate(parts, 1):
            messages += question
            if turn in sent:
                found[turn] = await self._send({"model": route, "messages": messages, "max_tokens": 1,
                                                "cache_prompt": turn not in anew})
                await self._wait_for_summary()  # so that it is ready for the same turn on every machine
            messages += answer
        return found

    async def _wait_for_summary(self) -> None:
        for _ in range(round(WITHIN_S / POLL_S)):
            if not (await self.read_history())["running"]:
                return
            await asyncio.sleep(POLL_S)

    async def read_history(self) -> Json:
        """What the history of the route with summaries has done."""
        return next(one for one in (await self._gateway.get("/admin/conversations"))["data"] if one["route"] == ON)

    async def _send(self, body: Json) -> EngineTurn:
        began_s, began_at = self._gateway.children_cpu_s(), SystemClock.now()
        answer = await asyncio.to_thread(self._post, json.dumps(body))
        ended_at, usage = SystemClock.now(), answer["usage"]
        n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return EngineTurn(self._gateway.children_cpu_s() - began_s, ended_at - began_at, usage["prompt_tokens"], n_cached)

    def _post(self, body: str) -> Any:
        connection = http.client.HTTPConnection(urlsplit(self._gateway.url).netloc, timeout=WITHIN_S)
        try:
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise SetUpFailed(f"the embedded engine: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise SetUpFailed(f"the embedded engine: status {answer.status}: {content[:200].decode(errors='replace')}")
        return json.loads(content)
